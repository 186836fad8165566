"""Which transactions survive: the decision of a recovery. Pure: scans in, decision out.

The recovered state is the state after a *prefix* of the transaction order. The prefix ends before the first
transaction that is missing or occurs twice. The rest is a torn tail or damage, and the watermark decides: the
highest transaction that a valid frame, a journal header or the snapshot states as durable. A prefix that ends
before it is damage.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter

from headrace.consumers.wal.frames import Frame

_transaction = itemgetter(0)


@dataclass(slots=True)
class JournalScan:
    """The result of reading one journal forward. Mutable while the file is read, a value afterwards.

    `stop_reason` is None when the file ends cleanly at `end`. `later_headers` lists (offset, transaction,
    durable) of valid headers after invalid bytes. `has_header`: whether the file begins with its own header.
    """

    number: int
    durable: int
    frames: list[Frame] = field(default_factory=list)
    end: int = 0
    stop_reason: str | None = None
    has_header: bool = True
    later_headers: list[tuple[int, int, int]] = field(default_factory=list)

    def watermark(self) -> int:
        """The highest transaction that this file states as durable."""
        durable = self.durable
        # Watermarks never decrease along a file, so that of the last frame is the highest.
        if self.frames:
            durable = max(durable, self.frames[-1].durable)
        return max((durable, *(stated for _, _, stated in self.later_headers)))


@dataclass(frozen=True, slots=True)
class Truncation:
    """A journal to truncate at `offset`, and the transactions that this removes."""

    number: int
    offset: int
    transactions: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Damage:
    """A durable transaction that cannot be recovered: the first missing one, and its likeliest location."""

    number: int
    offset: int
    transaction: int
    durable: int
    reason: str


@dataclass(frozen=True, slots=True)
class PrefixDecision:
    """The prefix, and the truncations after which the files hold exactly the prefix.

    `last` is its end; transactions up to `durable` are known to be on disk. With `damage` the truncations
    would remove durable transactions.
    """

    last: int
    durable: int
    truncations: tuple[Truncation, ...]
    damage: Damage | None


def decide(scans: Sequence[JournalScan], snapshot_transaction: int, durable: int = 0) -> PrefixDecision:
    """Decides which transactions after `snapshot_transaction` survive.

    `durable` is a watermark from elsewhere (0 = none).
    """
    last = prefix_end(scans, snapshot_transaction)
    watermark = max([durable, *(scan.watermark() for scan in scans)])
    truncations = tuple(found for scan in scans if (found := _truncation(scan, last)) is not None)
    damage = _locate_damage(scans, last, watermark) if watermark > last else _lost_file(scans, last)
    return PrefixDecision(last, max(watermark, snapshot_transaction), truncations, damage)


def prefix_end(scans: Sequence[JournalScan], start: int) -> int:
    """The last transaction of the longest run start + 1, start + 2, … without a gap or a duplicate."""
    total = sum(len(scan.frames) for scan in scans)
    # The common case, a whole log of a million transactions, without a Python step for each.
    if sorted(map(_transaction, chain.from_iterable(scan.frames for scan in scans))) == list(
        range(start + 1, start + 1 + total)
    ):
        return start + total
    # A transaction that occurs twice ends the prefix too: the
    # files do not show which of the two was acknowledged.
    seen = bytearray(total)
    for scan in scans:
        for frame in scan.frames:
            index = frame[0] - start - 1
            if 0 <= index < total and seen[index] < 2:
                seen[index] += 1
    once = seen.find(0)
    twice = seen.find(2)
    return start + min(total if once < 0 else once, total if twice < 0 else twice)


def _truncation(scan: JournalScan, last: int) -> Truncation | None:
    late = scan.frames[bisect_right(scan.frames, last, key=_transaction) :]
    later = tuple(transaction for _, transaction, _ in scan.later_headers)
    # Whole frames after the end of the prefix go too: if they
    # stayed, the numbers of the next updates would occur twice.
    if late:
        transactions = tuple(frame.transaction for frame in late) + later
        return Truncation(scan.number, late[0].offset, transactions, f"transaction {last + 1} before them is missing")
    if scan.stop_reason is not None:
        return Truncation(scan.number, scan.end, later, scan.stop_reason)
    return None


def _locate_damage(scans: Sequence[JournalScan], last: int, watermark: int) -> Damage:
    missing = last + 1
    suspects = [scan for scan in scans if scan.stop_reason is not None and not _is_past(scan, missing)]
    # Without invalid bytes in any file, the one that ends earliest is the likeliest to have lost its end.
    suspects = suspects or sorted(scans, key=lambda scan: scan.frames[-1].transaction if scan.frames else last)
    chosen = suspects[0]
    cause = chosen.stop_reason or "it ends too early, or has a transaction twice"
    reason = f"{cause}; transaction {missing} is missing in this file or another, and it was durable (as were all up to {watermark})"
    return Damage(chosen.number, chosen.end, missing, watermark, reason)


def _lost_file(scans: Sequence[JournalScan], last: int) -> Damage | None:
    # The header was durable before the manifest named the file, so no crash takes it. Which transactions the
    # file had, and which of them were durable, would be stated by the file alone.
    lost = next((scan for scan in scans if not scan.has_header), None)
    if lost is None:
        return None
    cause = lost.stop_reason or "the file is empty"
    return Damage(lost.number, 0, last + 1, last, f"{cause}; its transactions are unknown, and may have been durable")


def _is_past(scan: JournalScan, transaction: int) -> bool:
    return bool(scan.frames) and scan.frames[-1].transaction > transaction
