"""The alert rules: Prometheus accepts each, and what it shows to an operator is well formed.

That a running node has their metrics and labels shows tests/e2e/test_quick_start.py.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ALERTS = Path(__file__).resolve().parents[2] / "ops/alerts.yml"
RULES: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"][0]["rules"]
DURATION = r"[1-9][0-9]*[smhd]"
TEMPLATE = re.compile(r"\{\{ \$labels\.[a-z_]+ \}\}|\{\{ \$value(?: \| humanize(?:Percentage|Duration)?)? \}\}")
FUNCTIONS = {"increase", "rate", "max", "min", "sum", "by", "ignoring", "or"}


def test_names_are_unique() -> None:
    """An operator silences an alert by its name."""
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names) > 10
    assert all(re.fullmatch(r"Headrace([A-Z][a-z]+)+", name) for name in names)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_a_rule_is_whole(rule: dict[str, Any]) -> None:
    """A state must last for a while, an event in a window fires at once; severity, summary and action have texts, and
    their templates are of forms that Prometheus fills in.
    """
    assert (
        {"alert", "expr", "labels", "annotations"} <= rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    )
    assert {"severity"} == rule["labels"].keys()
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert {"summary", "action"} == rule["annotations"].keys()
    for text in rule["annotations"].values():
        plain = TEMPLATE.sub("", text)
        assert plain.strip()
        assert not re.search(r"[{}$]", plain), text
    if "for" in rule:
        assert re.fullmatch(DURATION, rule["for"])
    else:
        assert re.fullmatch(rf"increase\(.*\[{DURATION}\]\) > 0", rule["expr"])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_expression_is_a_comparison_with_a_bound(rule: dict[str, Any]) -> None:
    """An alert fires for each series of its expression: brackets are closed, words known, and each side is bounded."""
    bare = re.sub(r'"[^"]*"', '""', rule["expr"])
    for opened, closed in ("()", "[]", "{}"):
        assert bare.count(opened) == bare.count(closed)
    outside = re.sub(rf"\{{[^}}]*\}}|\[{DURATION}\]|\b(?:by|ignoring) \([a-z, ]+\)", "", bare)
    words = set(re.findall(r"[a-z_]\w*", outside))
    assert all(word in FUNCTIONS or word == "up" or word.startswith("headrace_") for word in words), words
    for side in outside.split(" or "):
        assert re.search(r" (?:==|>|<) -?[0-9.]+$", side), side


def test_prometheus_accepts_the_rules() -> None:
    """`promtool check rules` parses expressions and templates."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool command")
    done = subprocess.run([promtool, "check", "rules", ALERTS], capture_output=True, text=True, timeout=60, check=False)
    assert 0 == done.returncode, done.stderr
    assert f"{len(RULES)} rules found" in done.stdout
