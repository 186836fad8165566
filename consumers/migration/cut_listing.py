"""What a donor lists of a cut, as a JSON document between two nodes. Pure.

Every member of the donor lists the same files, and these follow from its log. So the loads that a leader of the
new group makes of the list are the same too, whichever member it asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import HandOverPosition
from headrace.schemas.message_rules import check_body
from headrace.schemas.messages import CarriedDelete, Leadership, Load, SyncedRows, load_identity
from headrace.schemas.series import slot_of

NOBODY = Leadership(0, "", "")
"""The leadership of a load that nobody has appended."""
_UNSENT = ("leadership", "origin", "held_since")
_OF_SYNC = ("sender", "order", "settled", "stores", "synced", "loaded_era", "loaded_version")


class CutListingInvalid(HeadraceError):
    """A list of a cut that no node writes."""


@dataclass(frozen=True)
class CutListing:
    """The files of some slots at the version of a cut, as loads without a leader.

    `parts` is how many records of the takeover the new group must accept, as far as the donor still knows.
    """

    table_version: int
    version: int
    parts: int
    slots: tuple[int, ...]
    slots_total: int
    loads: tuple[Load, ...]

    @property
    def takeover(self) -> HandOverPosition:
        """The last part of the takeover."""
        return HandOverPosition(self.version, self.parts - 1)

    @cached_property
    def by_identity(self) -> dict[bytes, Load]:
        """The loads by what each counts once by."""
        return {load_identity(load): load for load in self.loads}

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of all files, as the donor has them."""
        return sum(load.size_bytes for load in self.loads)

    def document(self) -> dict[str, Any]:
        """The list as JSON values."""
        head = {name: getattr(self, name) for name in ("table_version", "version", "parts", "slots_total")}
        return head | {"slots": list(self.slots), "files": [_file(load) for load in self.loads]}

    @classmethod
    def parse(cls, document: Mapping[str, Any], origin: str, held_since: int) -> CutListing:
        """The inverse of `document`; the receiver itself knows whom it asked, and since when it has the slots.

        Raises CutListingInvalid.
        """
        try:
            numbers = (int(document[name]) for name in ("table_version", "version", "parts"))
            table_version, version, parts = numbers
            slots, total = tuple(int(each) for each in document["slots"]), int(document["slots_total"])
            # By the version too: a slot that comes a second time from the same group has its files again.
            loads = tuple(_load(file, f"{origin}@{version}", held_since) for file in document["files"])
            for load in loads:
                check_body(load)
        except (KeyError, TypeError, ValueError, HeadraceError) as error:
            raise CutListingInvalid(f"a list of a cut cannot be read: {error!r}", retriable=True) from error
        if min(table_version, version, parts, total) < 1:
            raise CutListingInvalid("a list has numbers of no cut", retriable=True)
        held = frozenset(slots)
        if any(_slot(each, total) not in held for each in loads):
            raise CutListingInvalid("a list of a cut has files of other slots", retriable=True)
        return cls(table_version, version, parts, slots, total, loads)


def files_document(loads: Iterable[Load]) -> dict[str, Any]:
    """Files as JSON values, see `files_of_slots`."""
    return {"files": [_file(load) for load in loads]}


def files_of_slots(document: Any, origin: str, slots: Iterable[int], slots_total: int) -> tuple[Load, ...]:
    """The files of some slots out of a document of `files_document`. Raises CutListingInvalid."""
    held = frozenset(slots)
    try:
        loads = tuple(_load(file, origin, 0) for file in document["files"])
        for load in loads:
            check_body(load)
    except (KeyError, TypeError, ValueError, HeadraceError) as error:
        raise CutListingInvalid(f"a list of files cannot be read: {error!r}", retriable=True) from error
    return tuple(load for load in loads if _slot(load, slots_total) in held)


def led_by(loads: Iterable[Load], leadership: Leadership) -> tuple[Load, ...]:
    """The loads as the records of a leader."""
    return tuple(replace(load, leadership=leadership) for load in loads)


def _slot(load: Load, slots_total: int) -> int:
    return slot_of(load.database, load.bucket, load.slice_number, slots_total)


def _file(load: Load) -> dict[str, Any]:
    # Not by `asdict`, which copies every value deeply: a list has all files of a group.
    # An earlier build reads the list of files without rows of sync senders.
    left_out = (*_UNSENT, *(() if load.has_sync else _OF_SYNC))
    values = {name: getattr(load, name) for name in Load.__slots__ if name not in left_out}
    for name in values.keys() & {"deletes", "synced"}:
        values[name] = [asdict(each) for each in values[name]]
    return values | {"content_digest": load.content_digest.hex()}


def _load(file: Mapping[str, Any], origin: str, held_since: int) -> Load:
    deletes = (
        CarriedDelete(**{**each, "tags": tuple((tag, tuple(values)) for tag, values in each["tags"])})
        for each in file["deletes"]
    )
    given = {**file, "content_digest": bytes.fromhex(file["content_digest"]), "deletes": tuple(deletes)}
    given["stores"] = tuple(file.get("stores", ()))
    given["synced"] = tuple(SyncedRows(**each) for each in file.get("synced", ()))
    return Load(**given, leadership=NOBODY, origin=origin, held_since=held_since)
