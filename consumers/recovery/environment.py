"""What recovery asks of its node, and what it orders: the only way from this room to the node's other parts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from headrace.consumers.recovery.file_copy import Source
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_state import LogBase
from headrace.consumers.replication.log_prefix import Cursor
from headrace.schemas.errors import HeadraceError
from headrace.schemas.records import Status


class GroupBusy(HeadraceError):
    """A group cannot be replaced yet: the consuming thread still has records for it."""


class RecoveryEnvironment(Protocol):
    """A node, or its simulation. Every method may be called by any thread; topics are forward topics of `groups`."""

    # What recovery asks.

    @property
    def node(self) -> str:
        """Name of the node."""
        ...

    @property
    def store(self) -> str:
        """Identity of the node's data; another one once data was replaced."""
        ...

    @property
    def directory(self) -> Path:
        """The data directory."""
        ...

    @property
    def groups(self) -> Mapping[str, Group]:
        """The groups by forward topic; one gets another value when `install` has replaced its data."""
        ...

    def topic_id(self, topic: str) -> str:
        """The id of the topic that the data came from."""
        ...

    def live(self, group: Group) -> list[Status]:
        """The newest statuses of the members of a group that are alive."""
        ...

    def caught_up(self, topic: str) -> bool:
        """Whether the group has reached the end of its log since it began to follow it."""
        ...

    def durable_offset(self, topic: str) -> int:
        """Every record of the log up to this offset is durable here."""
        ...

    def cursor(self, topic: str) -> Cursor:
        """The newest record of its log that is durable here."""
        ...

    def is_released(self, topic: str) -> bool:
        """Whether its log is no longer read for the group, so that its durable offset stays."""
        ...

    def is_idle(self, topic: str) -> bool:
        """Whether no record is on its way to the group: its log is not read, and what was read is applied."""
        ...

    def source(self, url: str, group: str) -> Source:
        """The member at an address as a source of files."""
        ...

    def chain_of(self, url: str, group: str, version: int) -> bytes | None:
        """A member's chain after a record, None when it does not answer or does not remember."""
        ...

    # What recovery orders.

    def record_wrong(self, topic: str, group: Group) -> None:
        """Make it durable that the data of this group is wrong; nothing when another one has taken its place.

        Raises OSError.
        """
        ...

    def record_gap(self, topic: str, base: LogBase) -> None:
        """Make the accepted gap of a log durable. Raises OSError."""
        ...

    def repeat_records(self) -> None:
        """Make durable what a full disk refused before, if there is such a thing."""
        ...

    def reassign(self, topic: str) -> None:
        """The group has begun or ceased to follow its log."""
        ...

    def join_gap(self, topic: str, base: LogBase) -> None:
        """Let a group that is idle continue its log behind a gap."""
        ...

    def install(self, topic: str) -> None:
        """Put the committed copy in the place of the group's data; it then follows its log from there.

        Does not wait for records on their way to the group: raises GroupBusy, and OSError.
        """
        ...
