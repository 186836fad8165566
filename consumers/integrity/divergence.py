"""Whether the members of a group hold equal data, and who is wrong when they do not: pure.

Every status has the chain at the sender's newest multiple of 256 records, and the digest of its files at the
newest version that changed them: the samples. Members with different samples for one version are in dispute.
The log decides it where it still has its beginning; else a majority of the members does; else an operator.
docs/internals/replication.md has the rules as a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.schemas.records import Status

# A member that is behind shows older versions than the others, so the newest few samples of each are kept for
# comparison.
SAMPLES_MAX = 16


class Kind(StrEnum):
    """What differs: the records, or the files that were made of equal records."""

    RECORDS = "records"
    FILES = "files"


class Finding(StrEnum):
    """What a dispute means for this node."""

    RIGHT = "right"
    WRONG = "wrong"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Dispute:
    """The samples of the members for one version, by node, this one included; they are not all equal."""

    kind: Kind
    version: int
    node: str
    samples: Mapping[str, bytes]

    def __str__(self) -> str:
        camps = sorted(" ".join(sorted(camp)) for camp in self._camps())
        return f"the {self.kind} at version {self.version} differ: {' against '.join(camps)}"

    def _camps(self) -> Iterable[list[str]]:
        camps: dict[bytes, list[str]] = {}
        for node, sample in self.samples.items():
            camps.setdefault(sample, []).append(node)
        return camps.values()

    def right(self, members: int, truth: bytes | None) -> frozenset[str]:
        """The members with the right sample: that of the log, or else of a majority; empty without either."""
        # A majority of all members and not of those that are online: with one member away, two that disagree
        # are no majority.
        return frozenset(
            node
            for camp in self._camps()
            for node in camp
            if (self.samples[node] == truth if truth is not None else 2 * len(camp) > members)
        )

    def judge(self, members: int, truth: bytes | None) -> Finding:
        """Whether this node is right.

        `truth` is the sample that the log itself gives for that version, None when unknown.
        """
        if truth is not None:
            return Finding.RIGHT if self.samples[self.node] == truth else Finding.WRONG
        right = self.right(members, None)
        if not right:
            return Finding.UNDECIDED
        return Finding.RIGHT if self.node in right else Finding.WRONG


@dataclass(slots=True)
class _MemberSamples:
    """The newest samples of one run of one member, by version."""

    incarnation: str
    samples: dict[tuple[Kind, int], bytes] = field(default_factory=dict)

    def note(self, kind: Kind, version: int, sample: bytes) -> None:
        """Add a sample."""
        # Another sample for the same version, or an older version, means that other data took the place of
        # the member's store. Earlier samples do not describe that data, and would keep a recovered
        # member in dispute.
        newest = max((known for of, known in self.samples if of is kind), default=0)
        if version < newest or self.samples.get((kind, version), sample) != sample:
            self.samples.clear()
        self.samples[kind, version] = sample
        while len(self.samples) > SAMPLES_MAX:
            del self.samples[next(iter(self.samples))]


@dataclass(slots=True)
class ChainSamples:
    """The newest samples of the members of one group, this node included. Owned by one thread."""

    node: str
    _members: dict[str, _MemberSamples] = field(default_factory=dict)
    _dismissed: set[tuple[Kind, int, bytes]] = field(default_factory=set)

    def observe(self, status: Status) -> None:
        """Take the samples of a member's status; those of this node's own are compared like any other."""
        # Durable offset -1: a member that knows its data to be wrong. Compared, it would keep the members in doubt
        # that it is to copy from.
        if status.durable_offset < 0:
            self._members.pop(status.node, None)
            return
        known = self._members.get(status.node)
        if known is None or known.incarnation != status.incarnation:
            known = self._members[status.node] = _MemberSamples(status.incarnation)
        if status.chain_version > 0:
            known.note(Kind.RECORDS, status.chain_version, status.chain)
        if status.stored_version > 0:
            known.note(Kind.FILES, status.stored_version, status.content)

    def dismiss(self, dispute: Dispute) -> None:
        """This node is right: the other samples of the dispute are not compared again."""
        # By sample and not by member: the member that is wrong may show another wrong sample, which is a new
        # dispute.
        for sample in dispute.samples.values():
            if sample != dispute.samples[self.node]:
                self._dismissed.add((dispute.kind, dispute.version, sample))

    def dispute(self, chain_at: Callable[[int], bytes | None]) -> Dispute | None:
        """The dispute that most members have a sample for, of several the newest; None without any.

        `chain_at(version)` is this node's chain there, None when not known (any more).
        """
        found = [dispute for point in self._points() if (dispute := self._dispute_at(*point, chain_at)) is not None]
        return max(found, key=lambda dispute: (len(dispute.samples), dispute.version), default=None)

    def _points(self) -> set[tuple[Kind, int]]:
        return {point for member in self._members.values() for point in member.samples}

    def _dispute_at(self, kind: Kind, version: int, chain_at: Callable[[int], bytes | None]) -> Dispute | None:
        samples = {
            node: member.samples[kind, version]
            for node, member in self._members.items()
            if (kind, version) in member.samples
            and (kind, version, member.samples[kind, version]) not in self._dismissed
        }
        own = chain_at(version) if kind is Kind.RECORDS else samples.get(self.node)
        if own is None or all(sample == own for sample in samples.values()):
            return None
        return Dispute(kind, version, self.node, {**samples, self.node: own})
