"""The rows that one group holds, as its store would: values by key with their rank, and deletes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.consumers.replication.actions import Action, ApplyDelete, ApplyHandedDelete, ApplyRows, ApplyWrite
from headrace.schemas.group_changes import Rank
from tests.unit.replication.slot_logs import rows_of


@dataclass
class GroupRows:
    """Values and deletes; `held_since` has, for each slot that came, the table that brought it."""

    values: dict[str, dict[Rank, int]] = field(default_factory=dict)
    deletes: list[tuple[Rank, frozenset[int] | None, str]] = field(default_factory=list)
    held_since: dict[int, int] = field(default_factory=dict)

    def act(self, actions: Sequence[Action], era: int) -> None:
        """The actions of one record. Raises AssertionError for a row that comes twice."""
        for action in actions:
            if isinstance(action, ApplyWrite | ApplyRows):
                own = isinstance(action, ApplyWrite)
                rank = Rank(era, action.version) if own else action.rank
                for key, value in rows_of(action.write).items():
                    if own or int(key[0]) in action.slots:
                        known = self.values.setdefault(key, {})
                        assert rank not in known, f"{key} twice at {rank}"
                        known[rank] = value
            elif isinstance(action, ApplyDelete):
                self.deletes.append((Rank(era, action.version), None, action.delete.tags["key"][0]))
            elif isinstance(action, ApplyHandedDelete):
                self.deletes.append((action.rank, frozenset(action.slots), action.delete.tags["key"][0]))

    def visible(self, key: str) -> dict[Rank, int]:
        """The rows of a key that no delete hides."""
        slot = int(key[0])
        hiding = [
            rank
            for rank, slots, deleted in self.deletes
            # An own delete of an era before the slot came concerns no row of a former holder.
            if deleted == key and (rank.era >= self.held_since.get(slot, 0) if slots is None else slot in slots)
        ]
        newest = max(hiding, default=Rank(0, 0))
        return {rank: value for rank, value in self.values.get(key, {}).items() if rank > newest}
