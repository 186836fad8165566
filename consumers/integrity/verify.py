"""Whether the members of a group hold equal data, by chains at one version and digests of segments. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class MemberEvidence:
    """One member's chain at the compared version, and its segments up to the compared frontier.

    `stored_version` is the newest record whose jobs are done, -1 while one is running. Only members with
    equal ones have the same set of files. A member that has none to compare with has read its files and the end of
    its log: so many, and what was `wrong`.
    """

    node: str
    chain: str
    digests: Mapping[str, str]
    stored_version: int = 0
    files_read: int = 0
    records_read: int = 0
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """The comparison of one group.

    `differences` is empty when all members that answered hold equal data; `missing` names those that are down
    or late. `files_read` and `records_read` are those of a group with one member, see MemberEvidence.
    """

    group: str
    version: int
    sealed_version: int
    segments: int
    members: tuple[str, ...]
    missing: tuple[str, ...] = ()
    differences: tuple[str, ...] = field(default=())
    files_read: int = 0
    records_read: int = 0

    @property
    def ok(self) -> bool:
        """Whether everything compared is equal."""
        return not self.differences


def compare(
    group: str, version: int, sealed_version: int, evidence: Sequence[MemberEvidence], missing: Sequence[str]
) -> GroupVerdict:
    """Compare every member with the first one."""
    # Segments are compared by content digest. Their bytes are equal only within one version of the Parquet
    # library, and members of a rolling upgrade must not be reported as different.
    differences = [f"{member.node}: {text}" for member in evidence for text in member.wrong]
    first = evidence[0] if evidence else None
    for other in evidence[1:]:
        assert first is not None
        if other.chain != first.chain:
            differences.append(f"chain at version {version}: {first.node} {first.chain}, {other.node} {other.chain}")
        for name in sorted(first.digests.keys() | other.digests.keys()):
            left, right = first.digests.get(name, "absent"), other.digests.get(name, "absent")
            if left != right:
                differences.append(f"segment {name}: {first.node} {left}, {other.node} {right}")
    return GroupVerdict(
        group,
        version,
        sealed_version,
        len(first.digests) if first else 0,
        tuple(member.node for member in evidence),
        tuple(missing),
        tuple(differences),
        sum(member.files_read for member in evidence),
        sum(member.records_read for member in evidence),
    )


def exit_code(verdicts: Sequence[GroupVerdict], allow_missing: int) -> int:
    """0 equal, 1 different, 2 too many members down or late."""
    # A difference outranks a missing member: --allow-missing must never hide one.
    if any(not verdict.ok for verdict in verdicts):
        return 1
    missing = {node for verdict in verdicts for node in verdict.missing}
    return 2 if len(missing) > allow_missing or any(not verdict.members for verdict in verdicts) else 0
