"""Whether the members of a group hold the same, and who is wrong when they do not: pure (DESIGN 6).

Every status shows the chain at the sender's newest multiple of 256 records, and the digest of its files at the newest version that changed them.
Members that show different things for one version are in dispute. The log settles it where it still has its beginning; else a majority of the
members does; else an operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from schemas.records import Status

MARKS_MAX = 16


class Kind(StrEnum):
    """What differs: the records that were read, or the files that were made of equal records."""

    RECORDS = "records"
    FILES = "files"


class Finding(StrEnum):
    """What a dispute means for this node."""

    RIGHT = "right"
    WRONG = "wrong"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Dispute:
    """What the members show for one version, by node, this one included; not all show the same."""

    kind: Kind
    version: int
    node: str
    shown: Mapping[str, bytes]

    def __str__(self) -> str:
        camps = sorted(" ".join(sorted(camp)) for camp in self._camps())
        return f"the {self.kind} at version {self.version} differ: {' against '.join(camps)}"

    def _camps(self) -> Iterable[list[str]]:
        camps: dict[bytes, list[str]] = {}
        for node, mark in self.shown.items():
            camps.setdefault(mark, []).append(node)
        return camps.values()

    def right(self, members: int, truth: bytes | None) -> frozenset[str]:
        """The members that show what is right: what the log gives, or else what a majority shows; empty when neither can say."""
        return frozenset(
            node
            for camp in self._camps()
            for node in camp
            if (self.shown[node] == truth if truth is not None else 2 * len(camp) > members)
        )

    def judge(self, members: int, truth: bytes | None) -> Finding:
        """`truth` is what the log itself gives for that version, None when it cannot say."""
        if truth is not None:
            return Finding.RIGHT if self.shown[self.node] == truth else Finding.WRONG
        right = self.right(members, None)
        if not right:
            return Finding.UNDECIDED
        return Finding.RIGHT if self.node in right else Finding.WRONG


@dataclass(slots=True)
class _Shown:
    """What one run of one member has shown, by version, the newest few."""

    incarnation: str
    marks: dict[tuple[Kind, int], bytes] = field(default_factory=dict)

    def note(self, kind: Kind, version: int, mark: bytes) -> None:
        """A member that shows something else for a version than before, or goes back, has got other data: what it showed before is void."""
        newest = max((known for of, known in self.marks if of is kind), default=0)
        if version < newest or self.marks.get((kind, version), mark) != mark:
            self.marks.clear()
        self.marks[kind, version] = mark
        while len(self.marks) > MARKS_MAX:
            del self.marks[next(iter(self.marks))]


@dataclass(slots=True)
class Marks:
    """What the members of one group have shown lately, and what this node had at the same versions. Owned by one thread."""

    node: str
    _members: dict[str, _Shown] = field(default_factory=dict)
    _settled: set[tuple[Kind, int, bytes]] = field(default_factory=set)

    def hear(self, status: Status) -> None:
        """Take what a member says; this node's own word is as good as any."""
        shown = self._members.get(status.node)
        if shown is None or shown.incarnation != status.incarnation:
            shown = self._members[status.node] = _Shown(status.incarnation)
        if status.chain_version > 0:
            shown.note(Kind.RECORDS, status.chain_version, status.chain)
        if status.stored_version > 0:
            shown.note(Kind.FILES, status.stored_version, status.content)

    def forget(self, node: str) -> None:
        """A member that holds other data from now on."""
        self._members.pop(node, None)

    def settle(self, dispute: Dispute) -> None:
        """This node is right: what others showed there is not asked about again."""
        for mark in dispute.shown.values():
            if mark != dispute.shown[self.node]:
                self._settled.add((dispute.kind, dispute.version, mark))

    def dispute(self, chain_at: Callable[[int], bytes | None]) -> Dispute | None:
        """The dispute that most members have a say in, of several the newest; None while everything compared is equal.

        `chain_at(version)` is this node's chain there, None when not known (any more).
        """
        found = [dispute for point in self._points() if (dispute := self._dispute_at(*point, chain_at)) is not None]
        return max(found, key=lambda dispute: (len(dispute.shown), dispute.version), default=None)

    def _points(self) -> set[tuple[Kind, int]]:
        return {point for shown in self._members.values() for point in shown.marks}

    def _dispute_at(self, kind: Kind, version: int, chain_at: Callable[[int], bytes | None]) -> Dispute | None:
        shown = {
            node: known.marks[kind, version]
            for node, known in self._members.items()
            if (kind, version) in known.marks and (kind, version, known.marks[kind, version]) not in self._settled
        }
        mine = chain_at(version) if kind is Kind.RECORDS else shown.get(self.node)
        if mine is None or all(mark == mine for mark in shown.values()):
            return None
        return Dispute(kind, version, self.node, {**shown, self.node: mine})
