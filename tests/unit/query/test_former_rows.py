"""A query reads rows of slots that move from who had them, and waits for their files only where it cannot."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from headrace.consumers.query.local_source import NothingPulled
from headrace.schemas.series import slot_of
from tests.unit.query.test_slots_move import Cluster, Scan, cluster_of

SLOT = slot_of("plant", 3, 1, 12)


class FormerHolder:
    """Has one row of the slot, or does not answer."""

    def __init__(self, cluster: Cluster) -> None:
        self.asked: list[tuple[str, frozenset[int], str, int | None]] = []
        self.answers = True
        self._own: Any = cluster.taker.scan
        pulled: Any = cluster.pulled
        taker: Any = cluster.taker
        pulled.former_rows, taker.scan = self.rows, self.scan

    def rows(
        self, group: str, slots: Iterable[int], metadata: Any, request: Any, _timeout_s: float
    ) -> dict[str, int] | None:
        """See PulledSlots."""
        self.asked.append((group, frozenset(slots), metadata.schema.table, request.start_ns))
        return {"p4": 4} if self.answers else None

    def scan(self, database: str, table: str, former: dict[str, int] | None = None, **given: Any) -> Scan:
        """See Store."""
        found: Scan = self._own(database, table, **given)
        return Scan(dict(zip(*found.table.select(["pump", "flow"]).to_pydict().values(), strict=True)) | (former or {}))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where DuckDB finds no file."""
    return tmp_path


def test_rows_that_a_former_holder_has_are_not_waited_for(directory: Path) -> None:
    """A scan has them with its own. Where nobody answers, it waits."""
    with cluster_of(directory, ("a", "b")) as cluster:
        cluster.taker.change(slots_total=12)
        cluster.pulled.slots["b"] = frozenset({SLOT})
        holder = FormerHolder(cluster)
        assert [("p1", 1), ("p2", 2), ("p3", 3), ("p4", 4)] == cluster.ask()
        assert [("b", frozenset({SLOT}), "pumps", None)] == holder.asked
        assert [] == cluster.pulled.asked
        holder.answers = False
        cluster.world.steps = [cluster.pulled.slots.clear]
        assert [("p1", 1), ("p2", 2), ("p3", 3)] == cluster.ask()
        assert [frozenset({SLOT})] == cluster.pulled.asked


def test_a_query_of_another_time_asks_nobody(directory: Path) -> None:
    """Only slots count that the range of time may concern."""
    with cluster_of(directory, ("a", "b")) as cluster:
        cluster.taker.change(slots_total=12)
        holder = FormerHolder(cluster)
        touched = {slot_of("plant", bucket, 0, 12) for bucket in range(8)}
        cluster.pulled.slots["b"] = frozenset(range(12)) - touched
        sql = (
            "SELECT count(*) AS c FROM plant.pumps"
            " WHERE time > TIMESTAMP '1970-01-01 06:00:00' AND time < TIMESTAMP '1970-01-01 07:00:00'"
        )
        with cluster.engine.query(sql) as result:
            result.read_all()
        assert ([], []) == (holder.asked, cluster.pulled.asked)


def test_a_node_that_takes_no_data_asks_nobody() -> None:
    """It has all rows."""
    assert NothingPulled().former_rows("a", (), None, None, 1.0) is None  # type: ignore[arg-type]
