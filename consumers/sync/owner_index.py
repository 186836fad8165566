"""The owners of devices at a receiver: a view of the owner topic, see `view_database`.

Keys and values: `s/` sender → JSON {"store", "name"}; `d/` database 0x00 series key → sender.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.consumers.sync.owners import Enrolled, OwnerChange
from headrace.consumers.sync.view_database import ViewDatabase


class OwnerIndex:
    """See Owners. Owns `directory`; one thread at a time."""

    def __init__(self, directory: Path, topic_id: str) -> None:
        """Raises ViewUnwritable."""
        self._view = ViewDatabase(directory, topic_id)

    @property
    def next(self) -> int:
        """The offset behind the records that were taken."""
        return self._view.next

    def sender(self, sender: str) -> Enrolled | None:
        """See Owners."""
        value = self._view.get([_sender_key(sender)])[0]
        return None if value is None else Enrolled(**json.loads(value))

    def owners_of(self, database: str, devices: Sequence[str]) -> list[str | None]:
        """See Owners."""
        found = self._view.get([_device_key(database, device) for device in devices])
        return [None if value is None else value.decode() for value in found]

    def devices_of(self, database: str, sender: str) -> Iterator[str]:
        """The devices of a sender in one database, in order."""
        wanted = sender.encode()
        return (key.decode() for key, value in self._view.items(_device_key(database, "")) if value == wanted)

    def apply(self, change: OwnerChange, following: int) -> None:
        """Take what one record changes; the next one is at `following`. Raises ViewUnwritable."""
        owner = change.owner.encode()
        values = {_device_key(change.database, device): owner for device in change.devices}
        if change.enrolled is not None:
            sender, enrolled = change.enrolled
            values[_sender_key(sender)] = json.dumps({"store": enrolled.store, "name": enrolled.name}).encode()
        self._view.put(values, following)

    def close(self) -> None:
        """Release the directory."""
        self._view.close()


def _sender_key(sender: str) -> bytes:
    return b"s/" + sender.encode()


def _device_key(database: str, device: str) -> bytes:
    return f"d/{database}\0{device}".encode()
