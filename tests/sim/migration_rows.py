"""The rows that one group holds, as its store would: values by key with their rank, deletes, and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.consumers.replication.actions import (
    Action,
    ApplyDelete,
    ApplyHandedDelete,
    ApplyRows,
    ApplyWrite,
    SealNow,
)
from headrace.schemas.group_changes import Rank
from tests.unit.replication.slot_logs import rows_of

SEALED_EVERY = 3
"""Records with rows between two seals."""


@dataclass
class GroupRows:
    """Values and deletes; `held_since` has, for each slot that came, the table that brought it.

    Sealed rows of a slot and an era are in one file, as after every possible merge. A delete that was handed over
    concerns a file only if it outranks every row of it, as in a store: a file has no ranks of single rows. `newest`
    has the highest version of each file, and `unsealed` the rows that are in none.
    """

    values: dict[str, dict[Rank, int]] = field(default_factory=dict)
    deletes: dict[str, list[Rank]] = field(default_factory=dict)
    handed: dict[str, list[Rank]] = field(default_factory=dict)
    held_since: dict[int, int] = field(default_factory=dict)
    newest: dict[tuple[int, int], int] = field(default_factory=dict)
    unsealed: set[tuple[str, Rank]] = field(default_factory=set)
    seen: set[tuple[str, Rank]] = field(default_factory=set)
    _records: int = 0

    def act(self, actions: Sequence[Action], era: int) -> None:
        """The actions of one record. Raises AssertionError for a row that comes twice."""
        for action in actions:
            if isinstance(action, ApplyWrite | ApplyRows):
                handed = action if isinstance(action, ApplyRows) else None
                rank = handed.rank if handed else Rank(era, action.version)
                for key, value in rows_of(action.write).items():
                    if handed is None or int(key[0]) in handed.slots:
                        self._add(key, rank, value)
                self._records += 1
            elif isinstance(action, ApplyDelete):
                self.deletes.setdefault(action.delete.tags["key"][0], []).append(Rank(era, action.version))
            elif isinstance(action, ApplyHandedDelete):
                self._delete(action.rank, frozenset(action.slots), action.delete.tags["key"][0])
            elif isinstance(action, SealNow):
                self.seal()
        if self._records >= SEALED_EVERY:
            self.seal()

    def _add(self, key: str, rank: Rank, value: int) -> None:
        assert (key, rank) not in self.seen, f"{key} twice at {rank}"
        self.seen.add((key, rank))
        # Deletes that were handed over before hide a late row when it comes.
        if not any(rank < each for each in self.handed.get(key, ())):
            self.values.setdefault(key, {})[rank] = value
            self.unsealed.add((key, rank))

    def _delete(self, rank: Rank, slots: frozenset[int], key: str) -> None:
        if int(key[0]) not in slots:
            return
        self.handed.setdefault(key, []).append(rank)
        for each in [each for each in self.values.get(key, {}) if each < rank]:
            if (key, each) in self.unsealed or self._file(key, each) < rank:
                del self.values[key][each]
                self.unsealed.discard((key, each))

    def _file(self, key: str, rank: Rank) -> Rank:
        """The highest rank in the file of a row."""
        return Rank(rank.era, self.newest[int(key[0]), rank.era])

    def seal(self) -> None:
        """Every row goes to the file of its slot and era."""
        self._records = 0
        for key, rank in self.unsealed:
            self._note(key, rank)
        self.unsealed.clear()

    def _note(self, key: str, rank: Rank) -> None:
        file = int(key[0]), rank.era
        self.newest[file] = max(self.newest.get(file, 0), rank.version)

    def leave(self, key: str) -> dict[Rank, int]:
        """The visible rows of a key leave with the file of its slot."""
        found = self.visible(key)
        self.values.pop(key, None)
        for file in [file for file in self.newest if file[0] == int(key[0])]:
            del self.newest[file]
        return found

    def attach(self, found: Mapping[str, dict[Rank, int]], table_version: int) -> None:
        """Files come from the former holder of their slots. Raises AssertionError for a row that is here."""
        for key, rows in found.items():
            self.held_since[int(key[0])] = table_version
            known = self.values.setdefault(key, {})
            assert known.keys().isdisjoint(rows), f"the file of {key} came twice"
            known |= rows
            for rank in rows:
                self._note(key, rank)
        for key in found:
            for rank in self.handed.get(key, ()):
                kept = {each: value for each, value in self.values[key].items() if self._kept(key, each, rank)}
                self.values[key] = kept

    def _kept(self, key: str, row: Rank, delete: Rank) -> bool:
        return (key, row) in self.unsealed or not self._file(key, row) < delete

    def visible(self, key: str) -> dict[Rank, int]:
        """The rows of a key that no delete hides."""
        since = self.held_since.get(int(key[0]), 0)
        # An own delete of an era before the slot came concerns no row of a former holder.
        hiding = (rank for rank in self.deletes.get(key, ()) if rank.era >= since)
        newest = max(hiding, default=Rank(0, 0))
        return {rank: value for rank, value in self.values.get(key, {}).items() if rank > newest}

    def value(self, key: str) -> int | None:
        """What the group answers for a key; None for no row."""
        found = self.visible(key)
        return found[max(found)] if found else None
