"""Reads while members change: at every step, by replicas that are behind each other, with what a client has written.

A read asks what a query does (see `ClusterSource`), by the same pure rules: each group of a table has its second
phase, the data of its slots, and everything that other groups show as handed over. Else it waits.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.migration.slot_pull import brings_slots, slots_of_bits
from headrace.consumers.query.hand_overs import Required, missing
from headrace.consumers.replication.change_view import ChangeView
from headrace.schemas.group_changes import BEGINNING, GroupKey
from tests.sim.migration_groups import KEYS, TrueGroup

if TYPE_CHECKING:
    from tests.sim.migration_simulation import MigrationSimulation

MOMENTS_KEPT = 40
"""A replica is at one of so many moments before, and so is what a client knows."""
TABLES_READ = 2
KNOWN = 0.5
"""The share of logs that a client has written to."""


class Reads:
    """Asks for every key. Fails for a row that is lost, stale or deleted; a double one fails where it is applied."""

    def __init__(self, simulation: MigrationSimulation) -> None:
        self._simulation = simulation
        self._truth = simulation.truth
        self._moments: deque[dict[str, int]] = deque(maxlen=MOMENTS_KEPT)
        self._ends: dict[str, dict[str, int]] = {}
        self._gone: set[str] = set()
        # What follows from a table, or from a view and a table, is the same at every step.
        self._by_table: dict[int, tuple[list[TrueGroup], dict[str, GroupKey]]] = {}
        self._served: dict[tuple[int, int], bool] = {}
        self.answered = self.waiting = 0

    def note_gone(self, group: TrueGroup) -> None:
        """A topic is deleted: a node that finds it missing reads all groups that are there to their present ends."""
        present = [each for each in self._truth.groups.values() if each is not group and not each.deleted]
        self._ends[group.topic] = {each.topic: each.read for each in present}

    def read(self) -> None:
        """One read, of what every log has now or had before. Raises InvariantBroken."""
        chance, truth = self._simulation.world.random, self._truth
        self._moments.append({topic: group.read for topic, group in truth.groups.items()})
        known = chance.choice(self._moments)
        after = {topic: version for topic, version in known.items() if chance.random() < KNOWN}
        table = chance.choice(truth.tables[-TABLES_READ:])
        at = self._versions(table, chance.choice(self._moments), after)
        if at is None:
            self.waiting += 1
            return
        self.answered += 1
        answers = {key: truth.by_key(key).answers(version) for key, version in at.items()}
        _, holders = self._groups_of(table)
        for group, values in answers.items():
            if strange := [key for key in values if holders[key] != group]:
                self._simulation.fail(f"{group} answers {strange} at {at} with table {table.version}")
        self._check_arriving(at, holders)
        for key, holder in holders.items():
            value = answers[holder].get(key)
            if not truth.expected.admits(key, value, after):
                entries = truth.expected.entries[key]
                self._simulation.fail(f"{key} was read as {value} at {at}, after {after}: {entries}")

    def _check_arriving(self, at: dict[GroupKey, int], holders: dict[str, GroupKey]) -> None:
        """Rows that a group has from former holders, as a node of any membership log knows of them, are of its own slots."""
        for state in [node.state for node in self._simulation.nodes.values()]:
            change, known = state.change, 0 if state.table is None else state.table.version
            for group, version in at.items():
                settled = self._truth.by_key(group).history[version].changes.settled_version
                # Of a table that the node has not read yet it waits for every slot.
                if change is None or settled > known or not brings_slots(change, group.group, settled):
                    continue
                gained = slots_of_bits(change.gained[group.group])
                if strange := [key for key, holder in holders.items() if int(key[0]) in gained and holder != group]:
                    self._simulation.fail(
                        f"{group} has rows of {strange} from a former holder that answers at {at}, too"
                    )

    def _versions(self, table: SlotTable, moment: dict[str, int], after: dict[str, int]) -> dict[GroupKey, int] | None:
        """By group, how far the replica has read that answers; None while one of them waits."""
        truth, at = self._truth, dict[GroupKey, int]()
        self._gone.clear()
        after = self._contained(after)
        if any(truth.groups[topic].key.birth > table.version for topic in after):
            return None
        for group in self._groups_of(table)[0]:
            version = max(moment.get(group.topic, 0), after.get(group.topic, 0))
            at[group.key] = version if self._serves(group, version, table) else group.read
        required = self._required(at, after)
        if new := self._gone - after.keys():
            # What is gone has left its rows to the groups of the table, also where no client knows of it.
            return self._versions(table, moment, after | dict.fromkeys(new, 0))
        if not required.keys() <= at.keys():
            # A group that ended lacks what another one has handed over to it: it is asked until it has that.
            return None
        at |= {key: truth.by_key(key).read for key in required}
        serve = all(self._serves(truth.by_key(key), version, table) for key, version in at.items())
        return at if serve and not (required and self._required(at, after)) else None

    def _groups_of(self, table: SlotTable) -> tuple[list[TrueGroup], dict[str, GroupKey]]:
        """The groups of a table, and the one that holds each key."""
        found = self._by_table.get(table.version)
        if found is None:
            keys = {header: GroupKey(header, table.birth(header)) for header in table.headers}
            holders = {key: keys[table.holder(int(key[0]))] for key in KEYS}
            found = self._by_table[table.version] = [self._truth.by_key(each) for each in keys.values()], holders
        return found

    def _contained(self, after: dict[str, int]) -> dict[str, int]:
        """What is to be contained, with what the groups that are gone have left to others."""
        found, waiting = dict(after), list(after)
        while waiting:
            for topic, version in self._ends.get(waiting.pop(), {}).items():
                if version > found.get(topic, -1):
                    found[topic] = version
                    waiting.append(topic)
        return found

    def _serves(self, group: TrueGroup, version: int, table: SlotTable) -> bool:
        """Whether a group has a table, and the data of every slot that came with it or before."""
        view = group.history[version].changes
        name = id(view), table.version
        served = self._served.get(name)
        if served is None:
            served = self._is_served(group, view, table)
            # What a table brings is known with its cuts, so a refusal may end.
            if served:
                self._served[name] = served
        return served

    def _is_served(self, group: TrueGroup, view: ChangeView, table: SlotTable) -> bool:
        if view.settled_version != table.version or view.proven_version > table.version:
            return False
        cuts = self._truth.takeovers(group.key, table.version)
        return cuts is not None and all(view.accepted.get(origin, BEGINNING) >= position for origin, position in cuts)

    def _required(self, at: dict[GroupKey, int], after: dict[str, int]) -> Required:
        """What groups lack of what others show as handed over; also groups that a table has no longer."""
        truth = self._truth
        read = {key: truth.by_key(key).hand_overs(version) for key, version in at.items()}
        required = missing(read)
        waiting = [*after, *(truth.by_key(key).topic for key in required if key not in at)]
        while waiting:
            group = truth.groups[waiting.pop()]
            if group.key in read or group.topic in self._gone:
                continue
            if group.deleted:
                self._gone.add(group.topic)
                continue
            read[group.key] = group.hand_overs(group.read)
            required = missing(read)
            waiting += [truth.by_key(key).topic for key in required if key not in at]
        return {key: each for key, each in required.items() if truth.by_key(key).topic not in self._gone}
