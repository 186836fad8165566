"""The page: it needs nothing from outside, its parts fit together, and what it shows of rows is right."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

STATIC = Path(__file__).parents[3] / "consumers/serve/static"
SHOTS = Path(__file__).parents[3] / "tools/shots.py"
TRUCKS = [
    {
        "driver": "Andy" if truck == 1 else "Trish",
        "fleet": "North",
        "name": f"truck_{truck}",
        "time": f"2026-01-01T00:0{minute}:00.000000000Z",
        "capacity": 150.0,
        "velocity": 10.5 * minute,
        "grade": 2.0 * minute,
    }
    for minute in range(5)
    for truck in range(3)
]


def in_node(expression: str, script: str = "columns.js", **values: Any) -> Any:
    """The value of an expression over the functions of a script, evaluated by Node."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node command")
    given = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in values.items())
    code = f"{(STATIC / script).read_text()}\n{given}console.log(JSON.stringify({expression}));"
    done = subprocess.run([node, "-e", code], capture_output=True, text=True, timeout=30, check=False)
    assert 0 == done.returncode, done.stderr
    return json.loads(done.stdout)


def test_the_page_needs_nothing_from_outside() -> None:
    """Every file that the page names is served by the node; the only address is the name of SVG."""
    names = set(re.findall(r'(?:src|href)="/static/([^"]+)"', (STATIC / "index.html").read_text()))
    assert {path.name for path in STATIC.iterdir()} - {"index.html"} == names
    for path in STATIC.iterdir():
        assert set(re.findall(r"https?://[^\"' >)]+", path.read_text())) <= {"http://www.w3.org/2000/svg"}


def test_the_scripts_find_their_elements() -> None:
    """Each id that a script looks up is in the page, once."""
    ids = re.findall(r'\bid="([^"]+)"', (STATIC / "index.html").read_text())
    assert len(ids) == len(set(ids))
    wanted = {name for path in STATIC.glob("*.js") for name in re.findall(r'find\("([^"]+)"\)', path.read_text())}
    assert wanted
    assert wanted <= set(ids)


@pytest.mark.parametrize("path", sorted(STATIC.glob("*.js")), ids=lambda path: path.name)
def test_a_script_is_valid(path: Path) -> None:
    """A browser can parse it."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node command")
    assert 0 == subprocess.run([node, "--check", str(path)], check=False).returncode


def test_select_star_draws_one_column_for_each_series() -> None:
    """Of many columns one that changes is drawn, under the shortest names that distinguish the series."""
    columns = in_node("columnsOf(rows)", rows=TRUCKS)
    assert "time" == columns["time"]
    assert ["capacity", "velocity", "grade"] == columns["numbers"]
    assert ["name"] == in_node("keyColumns(rows, texts)", rows=TRUCKS, texts=columns["texts"])
    chosen = in_node("chosenColumns(rows, numbers, ['name'])", rows=TRUCKS, numbers=columns["numbers"])
    assert ["velocity"] == chosen
    drawn = in_node("linesOf(rows, 'time', ['name'], ['velocity', 'grade'])", rows=TRUCKS)
    assert {f"truck_{truck} · {column}" for truck in range(3) for column in ("velocity", "grade")} == {
        line["name"] for line in drawn["lines"]
    }


def test_without_series_columns_of_one_size_share_an_axis() -> None:
    """A column of millions beside one of tens would make a flat line of it."""
    rows = [{"time": f"2026-01-0{day}T00:00:00Z", "a": day, "b": 3 * day, "c": 10**6 * day} for day in range(1, 5)]
    assert ["a", "b"] == in_node("chosenColumns(rows, ['a', 'b', 'c'], [])", rows=rows)
    assert ["c"] == in_node("chosenColumns(rows, ['c'], [])", rows=rows)


def test_rows_that_cannot_be_drawn_have_no_lines() -> None:
    """No time, mixed values, or a single moment."""
    assert "time" not in in_node("columnsOf(rows)", rows=[{"n": 1}, {"n": 2}])
    assert [] == in_node("columnsOf(rows)", rows=[{"n": 1}, {"n": "x"}])["numbers"]
    assert in_node("linesOf(rows, 'time', [], ['n'])", rows=[{"time": "2026-01-01T00:00:00Z", "n": 1}]) is None


@pytest.mark.parametrize(
    ("value", "text", "full"),
    [
        (23.166666666666668, "23.1667", "23.166666666666668"),
        (12, "12", ""),
        (0.1, "0.1", ""),
        (-1234567, "-1234567", ""),
        (1.5e300, "1.5e300", "1.5e+300"),
        (0.00000123456, "1.23456e-6", "0.00000123456"),
        ("2026-01-01T00:00:10.500000000Z", "2026-01-01 00:00:10.5", "2026-01-01T00:00:10.500000000Z"),
        ("2026-01-01T00:00:10.000000000Z", "2026-01-01 00:00:10", "2026-01-01T00:00:10.000000000Z"),
        ("100", "100", ""),
        ({"a": [1, None]}, '{"a":[1,null]}', ""),
    ],
)
def test_a_cell_is_short_and_its_title_is_exact(value: object, text: str, full: str) -> None:
    """Decimals are rounded to six digits; whole numbers and texts are not."""
    shown = in_node("cellOf(value)", value=value)
    assert text == shown["text"]
    assert (full == "") == (shown["full"] == "")
    if isinstance(value, float) and full:
        assert value == float(shown["full"])


def test_the_history_keeps_each_query_once() -> None:
    """The newest first, and not without end."""
    entries = in_node("['a', 'b', 'a'].reduce((kept, sql, at) => withQuery(kept, sql, at), [])", "history.js")
    assert [("a", 2), ("b", 1)] == [(entry["sql"], entry["at"]) for entry in entries]
    many = in_node(
        "[...Array(500).keys()].reduce((kept, at) => withQuery(kept, `q${at}`, at), []).length", "history.js"
    )
    assert 50 == many


def test_shots_without_a_browser_report_it(tmp_path: Path) -> None:
    """`make shots` is one clear line and no failure where there is no browser."""
    environment = {"PATH": str(tmp_path), "HEADRACE_BROWSER": "no-such-browser"}
    done = subprocess.run(
        [sys.executable, str(SHOTS), str(tmp_path)], capture_output=True, text=True, env=environment, check=False
    )
    assert (0, 1) == (done.returncode, len(done.stdout.splitlines())), done.stderr
    assert "no browser found" in done.stdout
