"""Whose devices are whose: what each record of the owner topic changes. Pure.

The order of the topic decides. A claim names all devices of one file, and counts only if each of them is free or the
sender's: check all, then set. Everybody who reads the topic comes to the same owners.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.schemas.errors import HeadraceError
from headrace.schemas.sync_records import OwnerClaim, OwnerEnrolment, OwnerRecord


class SenderCloned(HeadraceError):
    """A second store under the UUID of a sender, such as that of a copied image."""


class DeviceOwned(HeadraceError):
    """A device that another sender brought first."""


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A sender: the store that its UUID is bound to, and what people call it."""

    store: str
    name: str


class Owners(Protocol):
    """The owners after some records of the topic."""

    def sender(self, sender: str) -> Enrolled | None:
        """A sender, None for one that never enrolled."""
        ...

    def owners_of(self, database: str, devices: Sequence[str]) -> list[str | None]:
        """The owner of each device, None for one that is free."""
        ...


@dataclass(frozen=True, slots=True)
class OwnerChange:
    """What a record sets: a sender, or the owner of devices."""

    enrolled: tuple[str, Enrolled] | None = None
    owner: str = ""
    database: str = ""
    devices: Sequence[str] = ()


NO_CHANGE = OwnerChange()


def change_of(owners: Owners, record: OwnerRecord, devices: Sequence[str]) -> OwnerChange:
    """What a record changes; `devices` are those that it names, decoded."""
    if isinstance(record, OwnerEnrolment):
        if owners.sender(record.sender) is not None:
            return NO_CHANGE
        return OwnerChange(enrolled=(record.sender, Enrolled(record.store, record.name)))
    if isinstance(record, OwnerClaim):
        known = owners.sender(record.sender)
        if known is None or known.store != record.store:
            return NO_CHANGE
        found = owners.owners_of(record.database, devices)
        if any(owner not in (None, record.sender) for owner in found):
            return NO_CHANGE
        free = [device for device, owner in zip(devices, found, strict=True) if owner is None]
        return OwnerChange(owner=record.sender, database=record.database, devices=free)
    return OwnerChange(owner=record.sender, database=record.database, devices=devices)


def check_store(owners: Owners, sender: str, store: str) -> bool:
    """Whether a sender has enrolled. Raises SenderCloned."""
    known = owners.sender(sender)
    if known is not None and known.store != store:
        raise SenderCloned(
            f"sender {sender} is bound to store {known.store}, and this file comes from store {store}",
            action="give the copy a sender of its own: a new state directory for headrace sync send",
        )
    return known is not None


def check_devices(owners: Owners, sender: str, database: str, devices: Sequence[str]) -> bool:
    """Whether all devices are the sender's, else some of them are free. Raises DeviceOwned."""
    found = owners.owners_of(database, devices)
    for device, owner in zip(devices, found, strict=True):
        if owner is not None and owner != sender:
            known = owners.sender(owner)
            name = f"{known.name} " if known is not None and known.name else ""
            raise DeviceOwned(
                f"device {device_name(database, device)} is that of sender {name}({owner})",
                action="headrace sync owners move hands it over",
            )
    return all(owner is not None for owner in found)


def device_name(database: str, device: str) -> str:
    """A device as people name it."""
    return f"{database}/{device}"


@dataclass(slots=True)
class OwnersInMemory:
    """All owners in memory: for commands and tests."""

    senders: dict[str, Enrolled] = field(default_factory=dict)
    devices: dict[tuple[str, str], str] = field(default_factory=dict)

    def sender(self, sender: str) -> Enrolled | None:
        """See Owners."""
        return self.senders.get(sender)

    def owners_of(self, database: str, devices: Sequence[str]) -> list[str | None]:
        """See Owners."""
        return [self.devices.get((database, device)) for device in devices]

    def apply(self, change: OwnerChange) -> None:
        """Take a change."""
        if change.enrolled is not None:
            sender, enrolled = change.enrolled
            self.senders[sender] = enrolled
        self.devices.update({(change.database, device): change.owner for device in change.devices})

    def counts(self) -> Mapping[str, int]:
        """The number of devices of each sender that has enrolled or owns some."""
        found = dict.fromkeys(self.senders, 0)
        for owner in self.devices.values():
            found[owner] = found.get(owner, 0) + 1
        return found


def devices_of(owners: Iterable[tuple[str, str, str]], sender: str) -> list[tuple[str, str]]:
    """(database, device) of one sender, of (database, device, owner)."""
    return sorted((database, device) for database, device, owner in owners if owner == sender)
