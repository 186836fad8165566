"""Older answers of a node without Kafka, while slots change hands and after: every row exactly once, or an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.connectors.clock import Moment, SystemClock
from headrace.consumers.query.query_errors import NotReady
from tests.unit.query.test_slots_move import DONOR, TAKER, cluster_of


def test_an_older_answer_needs_groups_of_one_table(tmp_path: Path) -> None:
    """Without Kafka no change ends, and an answer under two slot tables would have rows twice or not at all."""
    with cluster_of(tmp_path, ("a", "b")) as cluster:
        state: Any = cluster.source._local.state
        state.refusals = lambda: ["no Kafka"]
        state.as_of = lambda: Moment(SystemClock().boot_ns())
        assert [("p1", 1), ("p2", 2), ("p3", 3)] == cluster.ask(stale_s=60.0)
        cluster.donor.settle(2)
        with pytest.raises(NotReady, match="slots change hands"):
            cluster.ask(stale_s=60.0)
        cluster.taker.settle(2)
        cluster.follow(2)
        assert 3 == len(cluster.ask(stale_s=60.0))
        cluster.donor.hand_over(TAKER, 5)
        with pytest.raises(NotReady, match="slots change hands"):
            cluster.ask(stale_s=60.0)


def test_an_older_answer_counts_on_groups_that_were_gone_at_its_moment(tmp_path: Path) -> None:
    """What a removed group took is at others. Before, an answer without Kafka was refused for good after a removal."""
    with cluster_of(tmp_path, ("b",)) as cluster:
        cluster.follow(2, "b")
        cluster.taker.settle(2)
        cluster.taker.hand_over(DONOR, 5)
        state: Any = cluster.source._local.state
        state.refusals = lambda: ["no Kafka"]
        moments = [Moment(SystemClock().boot_ns())]
        state.as_of = lambda: moments[-1]
        assert [("p3", 3)] == cluster.ask(stale_s=60.0)
        # While its topic is there it may still have rows; and at a moment before its end it may have had some.
        cluster.source.note_ended([DONOR])
        with pytest.raises(NotReady, match="slots change hands"):
            cluster.ask(stale_s=60.0)
        cluster.source.note_ended([])
        with pytest.raises(NotReady, match="slots change hands"):
            cluster.ask(stale_s=60.0)
        moments.append(Moment(SystemClock().boot_ns()))
        assert [("p3", 3)] == cluster.ask(stale_s=60.0)
