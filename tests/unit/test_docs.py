"""The documents match the code: commands, options, links and metrics exist."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from headrace.cli.main import build_app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "ops/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MONITORING = ROOT / "docs/operating/monitoring.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
METRIC = re.compile(r"\bheadrace_[a-z_]+\b")


def name_of(page: Path) -> str:
    """A page as a failing test names it."""
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language on a page."""
    return [text for found, text in FENCE.findall(page.read_text("utf-8")) if found == language]


def commands(page: Path) -> Iterator[list[str]]:
    """Every `headrace …` on a page, in a shell block or in the text, as words."""
    for block in blocks(page, "sh"):
        joined = re.sub(r"\\\n\s*", " ", re.sub(r"<<'(\w+)'\n.*?^\1$", "", block, flags=re.MULTILINE | re.DOTALL))
        for line in joined.splitlines():
            if re.search(r"(^|\s)headrace\s", line):
                words = shlex.split(line, comments=True)
                if "headrace" in words:
                    yield words[words.index("headrace") + 1 :]
    prose = FENCE.sub("", page.read_text("utf-8"))
    for text in re.findall(r"`headrace ([^`]+)`", prose):
        yield text.split()


@cache
def command_line() -> Any:
    """All commands; they are read only, and building them takes longer than a page of checks."""
    return typer.main.get_command(build_app())


def check_command(words: list[str]) -> None:
    """Fail unless the words name a command, and options that it has."""
    here = command_line()
    rest = list(words)
    while rest and hasattr(here, "commands") and not rest[0].startswith("-"):
        assert rest[0] in here.commands, f"there is no command {' '.join(words)!r}"
        here = here.commands[rest.pop(0)]
    known = {option for parameter in here.params for option in parameter.opts} | {"--help", "-h"}
    for word in rest:
        if word.startswith("--"):
            assert word.partition("=")[0] in known, f"headrace {' '.join(words)}: {word} is no option"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def source_metrics() -> set[str]:
    """Names of all metrics that the code of nodes and ingest makes, with the ending that counters get."""
    found = set()
    for path in [*(ROOT / "consumers").rglob("*.py"), *(ROOT / "pipeline").rglob("*.py")]:
        text = re.sub(r'""".*?"""', "", path.read_text("utf-8"), flags=re.DOTALL)
        counters = set(re.findall(r'(?:_counters?|CounterMetricFamily)\(\s*"(headrace_[a-z_]+)"', text))
        found |= {
            f"{name}_total" if name in counters else name for name in re.findall(r'"(headrace_[a-z_]+)["{]', text)
        }
    return found - {DATA_SOURCE}


DATA_SOURCE = "headrace_raw"
"""No metric: the name of a data source of Spark."""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_on_a_page_exist(page: Path) -> None:
    """No documented command is a usage error."""
    for words in commands(page):
        check_command(words)


def test_the_readme_has_commands_to_check() -> None:
    """The check above sees the first steps."""
    first = {words[0] for words in commands(ROOT / "README.md")}
    assert {"up", "write", "query", "status", "ingest", "seal", "down", "demo"} <= first


def test_a_command_that_does_not_exist_is_noticed() -> None:
    """Neither a noun nor an option can be invented."""
    for words in (["fly"], ["node", "fly"], ["query", "SELECT 1", "--fast"]):
        with pytest.raises(AssertionError):
            check_command(words)


def test_make_targets_in_the_readme_exist() -> None:
    """Each `make …` of the README is in the Makefile."""
    wanted = set(re.findall(r"\bmake ([a-z]+)\b", "\n".join(blocks(ROOT / "README.md", "sh"))))
    there = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test", "setup"} <= wanted <= there


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_link_targets_exist(page: Path) -> None:
    """Files and headings that a page links to are there."""
    prose = FENCE.sub("", page.read_text("utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if target.startswith(("https://", "http://")):
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), f"{name_of(page)} links to {target}"
        assert not anchor or anchor in anchors(there), f"{name_of(page)} links to {target}"


def test_every_page_is_reached_from_the_readme() -> None:
    """Every page is in the README's list."""
    linked = set(re.findall(r"\]\((docs/[^)#\s]+)", (ROOT / "README.md").read_text("utf-8")))
    assert {name_of(page) for page in PAGES if page.is_relative_to(ROOT / "docs")} <= linked


def test_metrics_on_the_page_are_those_of_the_code() -> None:
    """The table has every metric of the code, and none that is not."""
    rows = re.findall(r"^\| `(headrace_[a-z_]+)", MONITORING.read_text("utf-8"), re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert source_metrics() == set(rows)


def test_every_subject_of_an_alarm_has_a_rule() -> None:
    """Every subject has a rule, every rule a severity and an action. A running node has their series: see
    tests/e2e/test_quick_start.py.
    """
    rules = yaml.safe_load((ROOT / "ops/alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
    dashboard = json.loads((ROOT / "ops/grafana-dashboard.json").read_text("utf-8"))
    # Of each subject that an operator must be alarmed about there is a rule.
    ruled = {name for rule in rules for name in METRIC.findall(rule["expr"])}
    wanted = {"headrace_ingest_lag_seconds", "headrace_ingest_rejected_lines_total", "headrace_disk_bytes"}
    assert wanted | {"headrace_data_age_seconds", "headrace_queries_stale_total"} <= ruled
    assert all(rule["labels"]["severity"] and rule["annotations"]["action"] for rule in rules)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_rules_and_dashboard_keep_clusters_apart() -> None:
    """Groups of two clusters have the same names: each panel selects by cluster, and each sum keeps it."""
    rules = yaml.safe_load((ROOT / "ops/alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
    dashboard = json.loads((ROOT / "ops/grafana-dashboard.json").read_text("utf-8"))
    targets = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert "cluster" in {variable["name"] for variable in dashboard["templating"]["list"]}
    for text in targets:
        assert len(METRIC.findall(text)) == text.count('{cluster=~"$cluster"'), text
    for text in [*targets, *(rule["expr"] for rule in rules)]:
        kept = re.findall(r"\b(?:by|on) \(([^)]*)\)", text)
        assert all("cluster" in labels for labels in kept), text
        assert len(re.findall(r"\b(?:sum|max|min|avg|count)\b", text)) == len(kept), text


def test_the_version_is_in_the_changelog() -> None:
    """The installed version has an entry."""
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    assert f"## {version[1]}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
