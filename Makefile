.DEFAULT_GOAL := help
.PHONY: help setup environment packages demo test bytecode sim bench lint type soak shots spark-package clean
BIN := .venv/bin
# Three have tests of whole clusters, which mostly wait, and the last one what only computes. A fourth of clusters only
# added load. tests/conftest.py deals the tests to them, the longest first.
WORKERS ?= 4
# Tests start hundreds of our processes: what one compiled the next one takes, also where the environment says not to keep it.
# Beside the sources, and not in a directory of its own: there the packages, which pip has compiled, are compiled again.
PYTHON_KEEPING := env PYTHONDONTWRITEBYTECODE= $(BIN)/python
SPREAD := -n $(WORKERS) --dist loadscope --no-loadscope-reorder
PYTEST := $(PYTHON_KEEPING) -m pytest $(SPREAD)
SOURCES := schemas connectors producers consumers pipeline headrace pyspark_headrace.py

help:  ## Show this list.
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## Make .venv with everything in it and fetch the jars; does nothing when nothing changed.
	@tools/setup

# What needs no Java begins before its archives are here.
packages:
	@tools/setup --quiet --packages

environment: packages
	@tools/setup --quiet

demo: environment  ## Broker, three nodes, real readings, kill -9 and recovery, with proof (under 3 minutes).
	@$(BIN)/headrace demo

test:  ## Lint, types and all tests (about 20 minutes on 2 cores).
	@$(MAKE) --no-print-directory -j environment lint type bytecode
# In the place of the shell, which would keep a signal to itself.
	exec $(PYTHON_KEEPING) tools/test_run.py $(SPREAD) -m "not soak"

# Else every worker compiles all tests at its start, all of them at the same time. What fails here fails again where it is seen.
bytecode: packages
	@$(PYTHON_KEEPING) -m pytest --collect-only -q >/dev/null 2>&1 || true

sim: environment  ## The simulator's tests only.
	$(PYTEST) -m "not soak" tests/sim

soak: environment  ## The long versions of tests.
	$(PYTEST) -m soak --timeout 7200 -o faulthandler_timeout=7260

bench: environment  ## How fast this machine takes readings in, beside its limits.
	$(BIN)/headrace bench ingest

shots: environment  ## Screenshots of the page in build/shots, if a browser is in PATH (or HEADRACE_BROWSER).
	@$(BIN)/python tools/shots.py build/shots

lint: packages  ## Style and format.
	$(BIN)/ruff check $(SOURCES) tests tools
	$(BIN)/ruff format --check $(SOURCES) tests tools

type: packages  ## Types, strictly, also those of the tests.
	$(BIN)/mypy headrace tools tests

spark-package: environment  ## The zip for spark-submit --py-files and the jobs, in build/spark.
	@$(BIN)/python -m headrace.pipeline.package build/spark

clean:  ## Remove caches and build output; .venv and the jar cache stay.
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find $(SOURCES) tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
