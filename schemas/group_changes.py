"""Records of a forward log about the members of its group, and about slots that changed hands.

They have a schema of their own, `group_change.avsc`, which explains the fields. Builds that do not know it stop
at these records by their `format` header.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from headrace.schemas.framing import FrameInvalid
from headrace.schemas.message_bodies import Anchor, Delete, Leadership, ProducerPosition, Write

_NAMESPACE = "headrace.v1."
RECORD_SLOTS_MAX = 1 << 20
"""Slots that one list of a record may have: as many as a cluster."""

Slots = tuple[int, ...]
"""Numbers of slots, ascending, each once."""


class BarrierPhase(StrEnum):
    """What a barrier does: the group takes its new member, gives up members and slots, or returns to the old ones."""

    PRE = "pre"
    FORMAL = "formal"
    REVERT = "revert"


@dataclass(frozen=True, slots=True, order=True)
class GroupKey:
    """A data group and the version of the slot table of its birth: a header that joins again has another group."""

    group: str
    birth: int


@dataclass(frozen=True, slots=True, order=True)
class HandOverPosition:
    """The version of a record in the log that hands it over, and the number of the part; (0, 0) is before the first."""

    version: int
    part: int


BEGINNING = HandOverPosition(0, 0)


@dataclass(frozen=True, slots=True, order=True)
class Rank:
    """Which of two rows of one (series, time) wins: the one of the later era, and in one era of the later version."""

    era: int
    version: int


@dataclass(frozen=True, slots=True)
class MovedTo:
    """Slots with the group that holds them from a cut on, and its topic."""

    key: GroupKey
    topic: str
    slots: Slots


@dataclass(frozen=True, slots=True)
class Barrier:
    """A change of members reaches this group. Leader only.

    A replica decides from the record and its state alone, so the record has the members after it, and for a cut
    each slot with its next holder.
    """

    leadership: Leadership
    anchor: Anchor
    change: int
    phase: BarrierPhase
    table_version: int
    slots_total: int
    members: tuple[str, ...]
    moves: tuple[MovedTo, ...] = ()
    gains: Slots = ()


@dataclass(frozen=True, slots=True)
class MovedProducer:
    """The newest batch of a producer at the former holder: (sequence, digest) of its messages, sorted."""

    producer: str
    batch: int
    seen: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class HandedRows:
    """A late write as it came, with the rank of its rows; those of `slots` belong to the new holder."""

    rank: Rank
    slots: Slots
    position: ProducerPosition
    digest: bytes
    write: Write


@dataclass(frozen=True, slots=True)
class HandedDelete:
    """A late delete with its rank; it concerns rows of `slots`."""

    rank: Rank
    slots: Slots
    delete: Delete


@dataclass(frozen=True, slots=True)
class Takeover:
    """The cut as the new holder needs it: slots, and what the former one knew of producers, loaded files and deletes."""

    table_version: int
    slots_total: int
    slots: Slots
    producers: tuple[MovedProducer, ...] = ()
    loads: bytes = b""
    deletes: tuple[HandedDelete, ...] = ()


HandedBody = Takeover | HandedRows | HandedDelete


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A record of the log of `origin`, as far as it concerns slots that moved here.

    It counts if `previous` is the position of the last one that counted from there, whoever appends it: the
    content follows from the log of the origin alone.
    """

    origin: GroupKey
    position: HandOverPosition
    previous: HandOverPosition
    body: HandedBody


@dataclass(frozen=True, slots=True)
class HandOverAccepted:
    """The new holder `target` has accepted everything up to `position`. Leader only."""

    leadership: Leadership
    target: GroupKey
    position: HandOverPosition


GroupChange = Barrier | HandedOver | HandOverAccepted


def to_runs(slots: Iterable[int]) -> list[int]:
    """Ascending slots as first slot, length, first slot, length."""
    runs: list[int] = []
    for slot in slots:
        if runs and runs[-2] + runs[-1] == slot:
            runs[-1] += 1
        else:
            runs += (slot, 1)
    return runs


def from_runs(runs: Sequence[int]) -> Slots:
    """The inverse of `to_runs`. Raises FrameInvalid for what it never gives."""
    lengths, found, least = runs[1::2], list[int](), 0
    # Before anything is built: a length is a few bytes, whatever it stands for.
    if len(runs) % 2 or min(lengths, default=1) < 1 or sum(lengths) > RECORD_SLOTS_MAX:
        raise FrameInvalid("a list of slots is no list of runs")
    for first, length in zip(runs[::2], lengths, strict=True):
        if first < least:
            raise FrameInvalid("the slots of a record are not in order")
        found += range(first, first + length)
        least = first + length + 1
    return tuple(found)


def group_change_record(body: GroupChange) -> tuple[str, dict[str, Any]]:
    """A body as the branch of the union that `group_change.avsc` has for it."""
    name = _NAMESPACE + type(body).__name__
    if isinstance(body, Barrier):
        moves = [asdict(each.key) | {"topic": each.topic, "slots": to_runs(each.slots)} for each in body.moves]
        changed = {"phase": str(body.phase), "moves": moves, "gains": to_runs(body.gains)}
        return name, {each: getattr(body, each) for each in Barrier.__slots__} | _leader(body) | changed
    if isinstance(body, HandOverAccepted):
        return name, asdict(body.target) | asdict(body.position) | {"leadership": asdict(body.leadership)}
    previous = {"previous_version": body.previous.version, "previous_part": body.previous.part}
    content = (_NAMESPACE + type(body.body).__name__, _handed_record(body.body))
    return name, asdict(body.origin) | asdict(body.position) | previous | {"body": content}


def group_change(name: str, content: dict[str, Any]) -> GroupChange:
    """The inverse of `group_change_record`. Raises FrameInvalid."""
    kind = name.removeprefix(_NAMESPACE)
    if kind == "Barrier":
        moves = tuple(
            MovedTo(GroupKey(each["group"], each["birth"]), each["topic"], from_runs(each["slots"]))
            for each in content["moves"]
        )
        changed = {
            "leadership": Leadership(**content["leadership"]),
            "anchor": Anchor(**content["anchor"]),
            "phase": BarrierPhase(content["phase"]),
            "members": tuple(content["members"]),
            "moves": moves,
            "gains": from_runs(content["gains"]),
        }
        return Barrier(**{**content, **changed})
    key, position = GroupKey(content["group"], content["birth"]), HandOverPosition(content["version"], content["part"])
    if kind == "HandOverAccepted":
        return HandOverAccepted(Leadership(**content["leadership"]), key, position)
    previous = HandOverPosition(content["previous_version"], content["previous_part"])
    return HandedOver(key, position, previous, _handed(*content["body"]))


def digest_parts(body: GroupChange) -> Iterator[bytes]:
    """The content of a body, in the order in which its digest covers it."""
    # The rows as they are: the text of 8 MiB of bytes would be four times as long.
    rows = b""
    name, record = group_change_record(body)
    if isinstance(body, HandedOver):
        inner = dict(record["body"][1])
        rows = inner.pop("rows", b"")
        record = record | {"body": (record["body"][0], sorted(inner.items()))}
    yield repr((name, sorted(record.items()))).encode()
    yield rows


def _leader(body: Barrier) -> dict[str, Any]:
    return {"leadership": asdict(body.leadership), "anchor": asdict(body.anchor), "members": list(body.members)}


def delete_record(handed: HandedDelete) -> dict[str, Any]:
    """A delete with its rank and slots."""
    rank, delete = handed.rank, handed.delete
    tags = {name: list(values) for name, values in sorted(delete.tags.items())}
    content = {name: getattr(delete, name) for name in Delete.__slots__}
    ranked = {"era": rank.era, "rank_version": rank.version, "slots": to_runs(handed.slots)}
    return ranked | content | {"tags": tags}


def delete_of(record: dict[str, Any]) -> HandedDelete:
    """The inverse of `delete_record`."""
    tags = {tag: tuple(values) for tag, values in sorted(record["tags"].items())}
    delete = Delete(record["database"], record["table"], tags, record["start_ns"], record["end_ns"])
    return HandedDelete(Rank(record["era"], record["rank_version"]), from_runs(record["slots"]), delete)


def _handed_record(body: HandedBody) -> dict[str, Any]:
    if isinstance(body, Takeover):
        producers = [
            {
                "producer": each.producer,
                "batch": each.batch,
                "seen": [{"sequence": sequence, "digest": digest} for sequence, digest in each.seen],
            }
            for each in body.producers
        ]
        head: dict[str, Any] = {
            "table_version": body.table_version,
            "slots_total": body.slots_total,
            "slots": to_runs(body.slots),
        }
        deletes = [_handed_record(each) for each in body.deletes]
        return head | {"producers": producers, "loads": body.loads, "deletes": deletes}
    if isinstance(body, HandedDelete):
        return delete_record(body)
    rank = {"era": body.rank.era, "rank_version": body.rank.version, "slots": to_runs(body.slots)}
    write = {name: getattr(body.write, name) for name in Write.__slots__}
    return rank | asdict(body.position) | {"digest": body.digest} | write


def _handed(name: str, content: dict[str, Any]) -> HandedBody:
    kind, slots = name.removeprefix(_NAMESPACE), from_runs(content["slots"])
    if kind == "Takeover":
        producers = tuple(
            MovedProducer(
                each["producer"], each["batch"], tuple((seen["sequence"], seen["digest"]) for seen in each["seen"])
            )
            for each in content["producers"]
        )
        return Takeover(
            content["table_version"],
            content["slots_total"],
            slots,
            producers,
            content["loads"],
            tuple(map(delete_of, content["deletes"])),
        )
    if kind == "HandedDelete":
        return delete_of(content)
    rank = Rank(content["era"], content["rank_version"])
    write = Write(**{each: content[each] for each in Write.__slots__})
    position = ProducerPosition(content["producer"], content["batch"], content["sequence"])
    return HandedRows(rank, slots, position, content["digest"], write)
