"""Slots move between groups in random schedules: nothing is lost, doubled, stale or back, and replicas agree."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.replication.slot_model import GROUPS, Cluster

STEPS = {
    "write": Cluster.write,
    "repeat": Cluster.repeat,
    "repeat_at_holder": Cluster.repeat_at_holder,
    "delete": Cluster.delete,
    "claim": lambda cluster, first, second: cluster.claim(GROUPS[first % 3], second),
    "begin": Cluster.begin,
    "formal": Cluster.formal,
    "cancel": Cluster.cancel,
    "end": Cluster.end,
    "barrier": Cluster.barrier,
    "advance": Cluster.advance,
    "settle": Cluster.settle,
    "hand_over": Cluster.hand_over,
    "accept": Cluster.accept,
    "restore": Cluster.restore,
}
# What leads to a late record is done more often than what ends a change early.
WEIGHTS = [*STEPS, *("write", "advance", "settle") * 5, *("delete", "barrier", "hand_over", "end") * 2]
COMMANDS = st.lists(
    st.tuples(st.sampled_from(WEIGHTS), st.integers(0, 63), st.integers(0, 63)), min_size=20, max_size=90
)


@given(commands=COMMANDS)
@settings(max_examples=60, deadline=None)
def test_slots_move_in_any_schedule(commands: list[tuple[str, int, int]]) -> None:
    """With late writers, zombie leaders, cancelled changes, and hand-overs that are lost and repeated."""
    cluster = Cluster()
    for name, first, second in commands:
        STEPS[name](cluster, first, second)
    cluster.finish()
