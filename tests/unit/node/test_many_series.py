"""Series by the hundred thousand in groups of different sizes: some have tags as texts, and others as dictionaries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.consumers.replication.group import Group
from headrace.consumers.store.batch_columns import TEXT_ROWS_MIN
from headrace.producers.writer import TableWriter
from tests.unit.node.test_fewer_replicas import ask, connected, rows_of
from tests.unit.nodes import running_nodes
from tests.waiting import eventually

pytestmark = pytest.mark.slow(2.5)

NAMES = ("n1", "n2", "n3")
SERIES = 3 * TEXT_ROWS_MIN
QUESTIONS: dict[str, tuple[dict[str, object], ...]] = {
    "SELECT count(*) AS c, count(DISTINCT device) AS d, sum(v) AS v FROM plant.devices": (
        {"c": SERIES, "d": SERIES, "v": SERIES * (SERIES - 1) / 2},
    ),
    "SELECT region, count(*) AS c FROM plant.devices GROUP BY region ORDER BY region LIMIT 1": (
        {"region": "r0", "c": SERIES // 4},
    ),
    "SELECT device, v FROM plant.devices WHERE device IN ('d7', 'd190001') ORDER BY device": (
        {"device": "d190001", "v": 190001.0},
        {"device": "d7", "v": 7.0},
    ),
    "SELECT device, max(time) AS t, arg_max(v, time) AS v FROM plant.devices GROUP BY device ORDER BY device LIMIT 1": (
        {"device": "d0", "v": 0.0},
    ),
    "SELECT device, region FROM plant.devices ORDER BY v DESC LIMIT 1": (
        {"device": f"d{SERIES - 1}", "region": f"r{(SERIES - 1) % 4}"},
    ),
}


def live_rows(group: Group) -> int:
    """Rows of a group that no file has."""
    return group.store.unsealed().rows


def test_answers_of_groups_with_many_and_with_fewer_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a node holds and what it fetches from others is one answer."""
    numbers = np.arange(SERIES)
    rows = pa.table(
        {
            "device": [f"d{number}" for number in numbers],
            "region": [f"r{number % 4}" for number in numbers],
            "time": pa.array(numbers * 1_000 + 1_700_000_000_000_000_000, pa.timestamp("ns")),
            "v": numbers.astype(np.float64),
        }
    )
    with running_nodes(tmp_path, monkeypatch, NAMES, 1_000_000_000, replication=1) as nodes:
        with connected(nodes) as shared, TableWriter(shared, "plant", "devices") as writer:
            writer.write(rows, ["device", "region"])
        groups = [group for node in nodes.running.values() for group in node.groups.values()]
        eventually(lambda: SERIES == sum(map(live_rows, groups)), "all rows")
        assert min(map(live_rows, groups)) < TEXT_ROWS_MIN < max(map(live_rows, groups))
        for sql, want in QUESTIONS.items():
            for name in NAMES:
                found = rows_of(ask(nodes, name, sql)).to_pylist()
                assert list(want) == [{key: row[key] for key in want[0]} for row in found], (name, sql)
