.DEFAULT_GOAL := help
.PHONY: help setup environment demo test sim bench lint type soak clean
BIN := .venv/bin
WORKERS ?= 3
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
SOURCES := schemas connectors consumers pipeline headrace

help:  ## Show this list.
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## Make .venv with everything in it and fetch the jars; does nothing when nothing changed.
	@tools/setup

environment:
	@tools/setup --quiet

demo: environment  ## Broker, three nodes, real readings, kill -9 and recovery, with proof (under 3 minutes).
	@$(BIN)/headrace demo

test: lint type  ## Lint, types and all tests (under 15 minutes on 2 cores).
	$(PYTEST) -m "not soak"

sim: environment  ## The simulator's tests only.
	$(PYTEST) -m "not soak" tests/sim

soak: environment  ## The long versions of tests.
	$(PYTEST) -m soak --timeout 7200

bench: environment  ## How fast this machine takes readings in, beside its limits.
	$(BIN)/headrace bench ingest

lint: environment  ## Style and format.
	$(BIN)/ruff check $(SOURCES) tests tools
	$(BIN)/ruff format --check $(SOURCES) tests tools

type: environment  ## Types, strictly.
	$(BIN)/mypy $(SOURCES)

clean:  ## Remove caches and build output; .venv and the jar cache stay.
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find $(SOURCES) tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
