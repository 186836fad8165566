"""The groups that are present at one node. They come and go while the node runs.

Every thread of a node asks this registry at each turn. What it iterates is the set of one moment, and a group that
has gone since is `GroupNotHere` at its next look-up: the thread drops that step and takes the next one.
"""

from __future__ import annotations

import threading
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import TypeVar

from headrace.consumers.replication.group import Group
from headrace.schemas.errors import HeadraceError

Value = TypeVar("Value")


class GroupNotHere(HeadraceError, KeyError):
    """A group that this node does not hold, or does not hold any more."""

    # A KeyError too, so that `get` and `in` of a mapping work as they do everywhere.

    @classmethod
    def of(cls, topic: str) -> GroupNotHere:
        """The error for a forward topic."""
        return cls(f"this node does not hold the group of {topic}", action="ask a member of the group", retriable=True)


class ByTopic(dict[str, Value]):
    """What a part of the node knows by forward topic. A topic that has gone is GroupNotHere."""

    def __missing__(self, topic: str) -> Value:
        raise GroupNotHere.of(topic)


class GroupRegistry(Mapping[str, Group]):
    """The groups of one node by forward topic. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Replaced at each change and never changed, so that readers need no lock.
        self._present: Mapping[str, Group] = {}

    def __getitem__(self, topic: str) -> Group:
        """The group of a topic. Raises GroupNotHere."""
        group = self._present.get(topic)
        if group is None:
            raise GroupNotHere.of(topic)
        return group

    def __iter__(self) -> Iterator[str]:
        return iter(self._present)

    def __len__(self) -> int:
        return len(self._present)

    def keys(self) -> KeysView[str]:
        """The topics at one moment."""
        return self._present.keys()

    def values(self) -> ValuesView[Group]:
        """The groups at one moment."""
        return self._present.values()

    def items(self) -> ItemsView[str, Group]:
        """Topics and groups at one moment."""
        return self._present.items()

    def put(self, topic: str, group: Group) -> None:
        """Add a group, or put it in the place of the one whose data it replaces."""
        with self._lock:
            self._present = {**self._present, topic: group}

    def remove(self, topic: str) -> None:
        """Take a group out; nothing when it is not here."""
        with self._lock:
            self._present = {other: group for other, group in self._present.items() if other != topic}


def forget_gone(kept: dict[str, Value], present: Iterable[str]) -> list[Value]:
    """Drop what a part knows of topics that have gone; returns what it knew."""
    return [kept.pop(topic) for topic in set(kept).difference(present)]
