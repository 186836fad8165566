"""Which transactions survive: the decision of a recovery. Pure: scans in, verdict out.

The recovered state is the state after a *prefix* of the transaction order. It ends before the first transaction that is
missing, or that stands in the files twice. Whether that is an honest end or damage is settled by evidence: the highest
transaction that any valid frame, any journal header or the snapshot says was durable.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter

from consumers.wal.frames import Frame

_transaction = itemgetter(0)


@dataclass(slots=True)
class Scan:
    """What reading one journal forward found. Mutable while it is read, a value afterwards.

    `trouble` is None when the file ends cleanly at `end`; `beyond` lists (offset, transaction, durable) of valid
    headers after a bad stretch.
    """

    number: int
    durable: int
    frames: list[Frame] = field(default_factory=list)
    end: int = 0
    trouble: str | None = None
    beyond: list[tuple[int, int, int]] = field(default_factory=list)

    def evidence(self) -> int:
        """The highest transaction that this file says was durable."""
        durable = self.durable
        # The watermark never falls along a file, so its last frame says the most.
        if self.frames:
            durable = max(durable, self.frames[-1].durable)
        return max((durable, *(claim for _, _, claim in self.beyond)))


@dataclass(frozen=True, slots=True)
class Cut:
    """A journal that is to end at `offset`, and the transactions that this drops from it."""

    number: int
    offset: int
    transactions: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Damage:
    """A durable transaction that cannot be recovered: the first one missing, and where it is missed."""

    number: int
    offset: int
    transaction: int
    durable: int
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """`last` is the end of the prefix, of which all up to `durable` is known to be on disk; `cuts` make the files say the
    same. With `damage` the cuts would lose durable transactions.
    """

    last: int
    durable: int
    cuts: tuple[Cut, ...]
    damage: Damage | None


def decide(scans: Sequence[Scan], snapshot_transaction: int, durable: int = 0) -> Verdict:
    """Decides what survives of transactions after `snapshot_transaction`; `durable` is evidence from elsewhere (0 =
    none).
    """
    last = prefix_end(scans, snapshot_transaction)
    evidence = max([durable, *(scan.evidence() for scan in scans)])
    cuts = tuple(cut for scan in scans if (cut := _cut(scan, last)) is not None)
    damage = _locate(scans, last, evidence) if evidence > last else None
    return Verdict(last, max(evidence, snapshot_transaction), cuts, damage)


def prefix_end(scans: Sequence[Scan], start: int) -> int:
    """The last transaction of the longest run start + 1, start + 2, … in which each one is there exactly once."""
    total = sum(len(scan.frames) for scan in scans)
    # The usual case, a whole log of a million transactions, at the speed of sorted runs.
    if sorted(map(_transaction, chain.from_iterable(scan.frames for scan in scans))) == list(
        range(start + 1, start + 1 + total)
    ):
        return start + total
    seen = bytearray(total)
    for scan in scans:
        for frame in scan.frames:
            index = frame[0] - start - 1
            if 0 <= index < total and seen[index] < 2:
                seen[index] += 1
    once = seen.find(0)
    twice = seen.find(2)
    return start + min(total if once < 0 else once, total if twice < 0 else twice)


def _cut(scan: Scan, last: int) -> Cut | None:
    late = scan.frames[bisect_right(scan.frames, last, key=_transaction) :]
    beyond = tuple(transaction for _, transaction, _ in scan.beyond)
    if late:
        transactions = tuple(frame.transaction for frame in late) + beyond
        return Cut(scan.number, late[0].offset, transactions, f"transaction {last + 1} before them is missing")
    if scan.trouble is not None:
        return Cut(scan.number, scan.end, beyond, scan.trouble)
    return None


def _locate(scans: Sequence[Scan], last: int, evidence: int) -> Damage:
    missing = last + 1
    suspects = [scan for scan in scans if scan.trouble is not None and not _is_past(scan, missing)]
    # With no bad bytes anywhere, the file that stops earliest is the likeliest to have lost its end.
    suspects = suspects or sorted(scans, key=lambda scan: scan.frames[-1].transaction if scan.frames else last)
    chosen = suspects[0]
    why = chosen.trouble or "it ends too early, or repeats a transaction"
    reason = f"{why}; transaction {missing} is missing here or in a file beside it, and it was durable (as was all up to {evidence})"
    return Damage(chosen.number, chosen.end, missing, evidence, reason)


def _is_past(scan: Scan, transaction: int) -> bool:
    return bool(scan.frames) and scan.frames[-1].transaction > transaction
