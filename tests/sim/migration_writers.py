"""Writers of a simulation of changes: single records by old tables, and sessions whose attempts come back late.

A session writes batch after batch under one name. An attempt of a batch may be given up, and its messages arrive
much later: behind the next batch, and behind changes that moved the slots. They must not win then.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from headrace.consumers.membership.slot_table import SlotTable
from headrace.schemas.messages import Delete, Message, ProducerPosition, Write, encode_message
from tests.sim.membership_log import MemberLog
from tests.sim.migration_groups import KEYS
from tests.sim.migration_node import TOPICS
from tests.unit.replication.slot_logs import rows_write

if TYPE_CHECKING:
    from tests.sim.migration_simulation import MigrationSimulation

TABLES_KNOWN = 3
"""A writer has one of so many newest tables."""
DELETE = 0.25
SESSIONS = 3
BATCH, BATCH_KEYS = 0.35, 4
"""The share of turns with a batch of a session, and the most keys of one."""
GIVEN_UP, REPEATED, ROUTED_AGAIN = 0.5, 0.2, 0.2
"""Of the messages of a batch: an attempt that arrives late, a repeat, and one by the table of the time it arrives."""
LATE_MS_MAX = 40_000


@dataclass
class Session:
    """A producer with batches: the newest one, and the oldest table that it may use."""

    name: str
    batch: int = 0
    table: int = 0


class Writers:
    """All writers of a simulation. Values are unique and rise."""

    def __init__(self, simulation: MigrationSimulation) -> None:
        self._simulation = simulation
        self._world = simulation.world
        self.log = MemberLog(simulation.world, simulation.memory, "writers")
        self._sessions = [Session(f"s{number}") for number in range(SESSIONS)]
        self._values = 0
        self.zombies = 0

    def write(self) -> None:
        """One record, or a batch."""
        if self._world.random.random() < BATCH:
            self._write_batch(self._world.random.choice(self._sessions))
        else:
            self._write_record()

    def _write_record(self) -> None:
        simulation, chance = self._simulation, self._world.random
        table = chance.choice(simulation.truth.tables[-TABLES_KNOWN:])
        header = table.holder(int(chance.choice(KEYS)[0]))
        topic = _topic(table, header)
        keys = [key for key in KEYS if table.holder(int(key[0])) == header]
        self._values += 1
        body: Write | Delete
        if chance.random() < DELETE:
            body = Delete("db", "t", {"key": (chance.choice(keys),)})
        else:
            chosen = sorted(chance.sample(keys, min(len(keys), chance.randint(1, 3))))
            body = rows_write(dict.fromkeys(chosen, self._values), table.version)
        group = simulation.truth.groups[topic]
        # A delete names no table, so it proves none: a client of a new table comes with a writer of it.
        ahead = isinstance(body, Delete) and group.newest.changes.settled_version < simulation.table.version
        if not group.deleted and not ahead:
            message = Message(ProducerPosition(f"w{self._values}", 1, 0), body)
            self.log.appender().append(topic, encode_message(message), on_delivery=lambda *_: None)

    def _write_batch(self, session: Session) -> None:
        """Attempts that were given up arrive late; the last one arrives before the next batch begins."""
        tables, chance = self._simulation.truth.tables, self._world.random
        table = chance.choice([each for each in tables[-TABLES_KNOWN:] if each.version >= session.table])
        rows = {key: self._next_value() for key in sorted(chance.sample(KEYS, chance.randint(1, BATCH_KEYS)))}
        session.batch, session.table = session.batch + 1, table.version
        if not self._append(session, table, rows):
            # A closed topic refuses its part, and all of the batch is a new one by the newest table.
            session.batch, session.table, table = session.batch + 1, tables[-1].version, tables[-1]
            self._append(session, table, rows)
        for topic, value in _messages(session.name, session.batch, table, rows, alone=True):
            if chance.random() < GIVEN_UP:
                self._later(topic, value)
        for topic, value in _messages(session.name, session.batch, table, rows):
            if chance.random() < REPEATED:
                self._later(topic, value)
        if chance.random() < ROUTED_AGAIN:
            # As of a writer that was restarted: by the table of the time at which they arrive.
            self._world.after(
                chance.uniform(1, LATE_MS_MAX), partial(self._route_again, session.name, session.batch, rows)
            )

    def _next_value(self) -> int:
        self._values += 1
        return self._values

    def _append(self, session: Session, table: SlotTable, rows: dict[str, int]) -> bool:
        memory = self._simulation.memory
        stored = [
            memory.store(topic, value, None, ()) for topic, value in _messages(session.name, session.batch, table, rows)
        ]
        return min(stored) >= 0

    def _later(self, topic: str, value: bytes) -> None:
        def arrive() -> None:
            self.zombies += self._simulation.memory.store(topic, value, None, ()) >= 0

        self._world.after(self._world.random.uniform(1, LATE_MS_MAX), arrive)

    def _route_again(self, name: str, batch: int, rows: dict[str, int]) -> None:
        table = self._simulation.table
        for topic, value in _messages(name, batch, table, rows):
            self.zombies += self._simulation.memory.store(topic, value, None, ()) >= 0


def _topic(table: SlotTable, header: str) -> str:
    return TOPICS.forward(header, table.birth(header))


def _messages(
    name: str, batch: int, table: SlotTable, rows: dict[str, int], *, alone: bool = False
) -> list[tuple[str, bytes]]:
    """A batch as messages with their topics: one for each group, or for each key `alone`."""
    parts: dict[tuple[str, str], dict[str, int]] = {}
    for key, value in rows.items():
        header = table.holder(int(key[0]))
        parts.setdefault((header, key if alone else ""), {})[key] = value
    return [
        (
            _topic(table, header),
            encode_message(Message(ProducerPosition(name, batch, sequence), rows_write(part, table.version))),
        )
        for sequence, ((header, _), part) in enumerate(sorted(parts.items()))
    ]
