"""What a leader may trim from the log."""

from __future__ import annotations

from dataclasses import replace

from headrace.consumers.replication.leader_tasks import trim_before
from tests.unit.statuses import STATUS


def test_the_log_is_trimmed_only_below_what_all_live_members_have_sealed() -> None:
    """A slow member, a missing majority and the replay window each hold the trim back."""
    live = [replace(STATUS, node=f"n{number}", sealed_offset=30 + number) for number in (1, 2, 3)]
    members = ("n1", "n2", "n3")
    assert trim_before(live, members, 40, 1_000) == 32
    assert trim_before(live, members, 20, 1_000) == 21
    assert trim_before(live, members, 40, 25) == 25
    assert trim_before(live[:1], members, 40, 1_000) == 0
    assert trim_before([replace(live[0], sealed_offset=-1), *live[1:]], members, 40, 1_000) == 0
