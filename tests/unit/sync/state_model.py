"""A model of the log in a sender's state directory, with full disks and power cuts."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from headrace.consumers.sync.sender_ports import StateUnwritable
from headrace.consumers.sync.sender_state import Changes


class ModelLog:
    """See StateLog. A power cut keeps a prefix of the transactions with every synced one."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.transactions: list[Mapping[bytes, bytes | None]] = []
        self.synced = 0
        self.faults = True

    def write(self, changes: Changes) -> None:
        """See StateLog."""
        if self.faults and self._random.random() < 0.01:
            raise StateUnwritable("the disk is full")
        self.transactions.append(dict(changes.records))
        if changes.sync:
            self.synced = len(self.transactions)

    def rewrite(self, records: Mapping[bytes, bytes]) -> None:
        """See StateLog."""
        self.transactions.append(dict(records))

    def recovered(self, *, power_cut: bool) -> dict[bytes, bytes]:
        """What a start finds."""
        if power_cut:
            del self.transactions[self._random.randrange(self.synced, len(self.transactions) + 1) :]
        found: dict[bytes, bytes] = {}
        for each in self.transactions:
            found |= {key: value for key, value in each.items() if value is not None}
            for key in [key for key, value in each.items() if value is None]:
                found.pop(key, None)
        self.synced = len(self.transactions)
        return found
