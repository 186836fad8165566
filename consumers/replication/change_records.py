"""The records of `state.avsc` for what a group's log has decided about its members and slots. Pure."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from headrace.consumers.replication.change_state import ChangeState
from headrace.consumers.replication.cut_memory import CutMemory
from headrace.consumers.replication.holdings import Given, Holding, Holdings
from headrace.consumers.replication.kept_deletes import KeptDeletes
from headrace.consumers.replication.producer_section import Origin, Section
from headrace.consumers.replication.transfers import Target, Transfer
from headrace.schemas.group_changes import (
    BarrierPhase,
    GroupKey,
    HandOverPosition,
    MovedProducer,
    Rank,
    Slots,
    delete_of,
    delete_record,
    from_runs,
    to_runs,
)

_NO_PHASE = "none"


def changes_record(state: ChangeState) -> dict[str, Any] | None:
    """The record of a state without its deletes, which are encoded apart; None for a group without any members."""
    if not state.members:
        return None
    return {
        "members": list(state.members),
        "era": state.era,
        "slots_total": state.slots_total,
        "change": state.change,
        "phase": str(state.phase or _NO_PHASE),
        "table_version": state.table_version,
        "gains": to_runs(state.gains),
        "gives": state.gives,
        "given": _given_records(state.given),
        "targets": [_target_record(key, target) for key, target in sorted(state.targets.items())],
        "cuts": [_cut_record(version, memory) for version, memory in sorted(state.cuts.items())],
        "origins": [_origin_record(key, origin) for key, origin in sorted(state.origins.items())],
        "added": list(state.added),
        "gained": _gained_records(state.gained),
        "earlier": _holding_records(state.holdings),
    }


def changes_of(record: dict[str, Any]) -> ChangeState:
    """The inverse of `changes_record`, with the deletes."""
    given = {
        slot: Given(_key(each), each["era"], each["version"])
        for each in record["given"]
        for slot in from_runs(each["slots"])
    }
    return ChangeState(
        tuple(record["members"]),
        **{name: record[name] for name in ("era", "slots_total", "change", "table_version", "gives")},
        phase=None if record["phase"] == _NO_PHASE else BarrierPhase(record["phase"]),
        gains=from_runs(record["gains"]),
        given=given,
        targets={_key(each): _target(each) for each in record["targets"]},
        deletes=KeptDeletes(map(delete_of, record["deletes"])),
        cuts={each["version"]: _cut(each) for each in record["cuts"]},
        origins={_key(each): _origin(each) for each in record["origins"]},
        added=tuple(record["added"]),
        gained={slot: each["table_version"] for each in record["gained"] for slot in from_runs(each["slots"])},
        holdings=_holdings(record["earlier"]),
    )


def _key(record: dict[str, Any]) -> GroupKey:
    return GroupKey(record["group"], record["birth"])


def _key_record(key: GroupKey) -> dict[str, Any]:
    return {"group": key.group, "birth": key.birth}


def _given_records(given: dict[int, Given]) -> list[dict[str, Any]]:
    def by_place(item: tuple[int, Given]) -> tuple[GroupKey, int, int, int]:
        slot, each = item
        return each.target, each.era, each.version, slot

    return [
        _key_record(each.target)
        | {"era": each.era, "version": each.version, "slots": to_runs(slot for slot, _ in slots)}
        for each, slots in groupby(sorted(given.items(), key=by_place), key=lambda item: item[1])
    ]


def _gained_records(gained: dict[int, int]) -> list[dict[str, Any]]:
    ordered = sorted(gained.items(), key=lambda item: (item[1], item[0]))
    return [
        {"table_version": version, "slots": to_runs(slot for slot, _ in slots)}
        for version, slots in groupby(ordered, key=lambda item: item[1])
    ]


def _holding_records(holdings: Holdings) -> list[dict[str, Any]]:
    by_times: dict[tuple[Holding, ...], list[int]] = {}
    for slot, times in sorted(holdings.earlier.items()):
        by_times.setdefault(times, []).append(slot)
    return [
        {"slots": to_runs(slots), "times": [{"until": each.until, "era": each.era} for each in times]}
        for times, slots in by_times.items()
    ]


def _holdings(records: list[dict[str, Any]]) -> Holdings:
    found: dict[int, tuple[Holding, ...]] = {}
    for record in records:
        times = tuple(Holding(each["until"], each["era"]) for each in record["times"])
        found |= dict.fromkeys(from_runs(record["slots"]), times)
    return Holdings(found)


def _target_record(key: GroupKey, target: Target) -> dict[str, Any]:
    accepted = {"accepted_version": target.accepted.version, "accepted_part": target.accepted.part}
    outstanding = [
        {
            "version": each.position.version,
            "part": each.position.part,
            "era": each.rank.era if each.rank else 0,
            "rank_version": each.rank.version if each.rank else 0,
            "slots": to_runs(each.slots),
            "offset": each.offset,
        }
        for each in (due.transfer for due in target.outstanding)
    ]
    return _key_record(key) | {"topic": target.topic} | accepted | {"outstanding": outstanding}


def _target(record: dict[str, Any]) -> Target:
    accepted = HandOverPosition(record["accepted_version"], record["accepted_part"])
    target = Target(_key(record), record["topic"], accepted)
    for each in record["outstanding"]:
        rank = Rank(each["era"], each["rank_version"]) if each["era"] else None
        position = HandOverPosition(each["version"], each["part"])
        target.add(Transfer(position, rank, from_runs(each["slots"]), each["offset"]))
    return target


def _cut_record(version: int, memory: CutMemory) -> dict[str, Any]:
    sections = [_section_record(*each) for each in memory.sections]
    return {
        "version": version,
        "table_version": memory.table_version,
        "targets": [_key_record(key) | {"slots": to_runs(slots)} for key, slots in memory.targets],
        "loads": memory.loads,
        "sections": sections,
        "deletes": [delete_record(each) for each in memory.deletes],
    }


def _cut(record: dict[str, Any]) -> CutMemory:
    sections = (_section(each) for each in record["sections"])
    targets = tuple((_key(each), from_runs(each["slots"])) for each in record["targets"])
    deletes = tuple(delete_of(each) for each in record["deletes"])
    return CutMemory(record["table_version"], targets, record["loads"], tuple(sections), deletes)


def _origin_record(key: GroupKey, origin: Origin) -> dict[str, Any]:
    place = {"version": origin.position.version, "part": origin.position.part, "table_version": origin.table_version}
    sections = [_section_record(tuple(sorted(each.slots)), each.moved()) for each in origin.sections]
    return _key_record(key) | place | {"sections": sections}


def _origin(record: dict[str, Any]) -> Origin:
    position = HandOverPosition(record["version"], record["part"])
    origin = Origin(position, table_version=record["table_version"])
    for each in record["sections"]:
        slots, producers = _section(each)
        origin.sections.append(Section(frozenset(slots)))
        origin.sections[-1].add(producers)
    return origin


def _section_record(slots: Slots, producers: tuple[MovedProducer, ...]) -> dict[str, Any]:
    found = [
        {
            "producer": each.producer,
            "batch": each.batch,
            "seen": [{"sequence": sequence, "digest": digest} for sequence, digest in each.seen],
        }
        for each in producers
    ]
    return {"slots": to_runs(slots), "producers": found}


def _section(record: dict[str, Any]) -> tuple[Slots, tuple[MovedProducer, ...]]:
    producers = (
        MovedProducer(
            each["producer"], each["batch"], tuple((seen["sequence"], seen["digest"]) for seen in each["seen"])
        )
        for each in record["producers"]
    )
    return from_runs(record["slots"]), tuple(producers)
