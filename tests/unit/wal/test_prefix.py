"""The decision of a recovery: which transactions survive, what is cut off, and what is damage."""

from __future__ import annotations

import pytest

from headrace.consumers.wal.frames import Frame
from headrace.consumers.wal.prefix import JournalScan, decide


def scan(number: int, *transactions: int, durable: int = 0, reason: str | None = None) -> JournalScan:
    """A journal with these whole frames, which state `durable`; invalid bytes follow when there is a reason."""
    frames = [Frame(each, durable, 1, 100 * each, 100 * each + 99, 100 * each + 50, b"") for each in transactions]
    return JournalScan(number, 0, frames, 100 * (max(transactions, default=0) + 1), reason)


@pytest.mark.parametrize(
    ("scans", "last", "truncated"),
    [
        ([scan(1, 1, 2), scan(2, 3)], 3, []),
        ([scan(1, 1, 4), scan(2, 3)], 1, [(1, (4,)), (2, (3,))]),
        # The files do not show which of the two was acknowledged.
        ([scan(1, 1, 2), scan(2, 2, 3)], 1, [(1, (2,)), (2, (2, 3))]),
        ([scan(1, 1, 2, 3), scan(2, 2)], 1, [(1, (2, 3)), (2, (2,))]),
        ([scan(1, 1, reason="torn"), scan(2, 2)], 2, [(1, ())]),
    ],
)
def test_the_prefix_ends_at_a_gap_or_a_repetition(
    scans: list[JournalScan], last: int, truncated: list[tuple[int, tuple[int, ...]]]
) -> None:
    """Everything behind it is cut off in all journals, so that its numbers can be given again."""
    decision = decide(scans, 0)
    assert (last, None) == (decision.last, decision.damage)
    assert truncated == [(each.number, each.transactions) for each in decision.truncations]


@pytest.mark.parametrize("durable", [2, 3])
def test_a_prefix_that_ends_before_the_watermark_is_damage(durable: int) -> None:
    """A transaction that some frame states as durable is never cut off."""
    decision = decide([scan(1, 1, reason="torn"), scan(2, 4, durable=durable)], 0)
    assert decision.damage is not None
    assert (1, 2, durable) == (decision.damage.number, decision.damage.transaction, decision.damage.durable)
    assert decide([scan(1, 1, reason="torn"), scan(2, 4, durable=1)], 0).damage is None
