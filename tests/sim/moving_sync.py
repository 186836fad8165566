"""One edge, receivers of its files and deletes, and groups of a centre whose slots move: seed → one schedule.

The replicas are those that ship, and so is whatever decides for a receiver or a leader. A receiver may be replaced at
any step and run on as a zombie. Groups are born, take slots, give them up and end meanwhile; hand-overs arrive late.
The full sender and receiver have a simulation of their own (`sync_simulation`), in one group that never changes.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import xxhash

from headrace.consumers.replication.actions import Ignored
from headrace.schemas.group_changes import Slots
from headrace.schemas.messages import (
    CarriedDelete,
    Delete,
    Load,
    deletes_batch,
    deletes_producer,
    last_deletes_batch,
    load_identity,
)
from tests.sim.moving_groups import BUCKETS, Group, Key, MovingGroups, Refused, Table
from tests.unit.replication.slot_logs import SLOTS_TOTAL

SENDER, EDGE_GROUP = "s1", "n1/1"
TIMES = 3
STEPS = 500
CALM_STEPS = 6_000
JOBS_MAX = 12
STEP_NAMES = ("write", "delete", "send", "work", "wake", "replace", "go_on", "hand_over")
MOODS = {
    "edge": (12, 5, 20, 40, 0, 8, 8, 7),
    "members": (5, 0, 8, 20, 0, 2, 35, 30),
    "zombies": (3, 0, 10, 15, 45, 0, 12, 15),
    "still": (0, 0, 0, 2, 0, 0, 45, 40),
}
CALM = (0, 0, 20, 35, 10, 0, 15, 20)
"""How often each step comes. What goes wrong needs a zombie that stands still until members have changed."""
MOOD_STEPS = 30
FENCE = Delete("d", "t", {}, 0, 0)
Steps = Generator[None, None, bool]
"""The work of a receiver; each yield is a step. It ends with whether it is done."""


@dataclass(frozen=True, eq=False)
class EdgeFile:
    """A sealed file of the edge: rows of one slot. `place` orders it among files and deletes."""

    slot: int
    place: int
    rows: Mapping[Key, int]


@dataclass(frozen=True)
class EdgeDelete:
    """A delete of devices between two times."""

    place: int
    slots: Slots
    start: int
    end: int

    def hides(self, key: Key) -> bool:
        """Whether it matches a row."""
        return key[0] in self.slots and self.start <= key[1] < self.end


@dataclass(frozen=True)
class Manifest:
    """What was sent under a number: a file with the deletes that it brings, or deletes."""

    number: int
    file: EdgeFile | None
    deletes: tuple[EdgeDelete, ...]


@dataclass(eq=False)
class Job:
    """A receiver at work on a manifest."""

    manifest: Manifest
    steps: Steps


class MovingSyncSimulation:
    """See the module. `run` raises AssertionError, which names the seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.groups = MovingGroups(self.random)
        self.place = self.number = 0
        self.expected: dict[Key, int] = {}
        self.waiting: dict[int, list[EdgeFile]] = {slot: [] for slot in range(SLOTS_TOTAL)}
        self.under_way: dict[EdgeFile, int] = {}
        self.unsent: list[EdgeDelete] = []
        self.sent: list[EdgeDelete] = []
        self.deletes: Manifest | None = None
        self.owned: set[int] = set()
        self.jobs: list[Job] = []
        self.void = self.zombies = self.superseded = self.refused = 0
        self.calm = False
        self.mood = "edge"

    # The schedule.

    def run(self) -> None:
        """The whole schedule, and the check of its end."""
        try:
            for _ in range(STEPS):
                self._step()
            self.finish()
            self.check()
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed}: {error}") from error

    def finish(self) -> None:
        """Until everything is decided, and the zombies are dead."""
        self.calm = True
        for _ in range(CALM_STEPS):
            if self._is_done():
                return
            self._step()
        raise AssertionError("not everything is decided")

    def _is_done(self) -> bool:
        idle = not any(self.waiting.values()) and not self.unsent and self.deletes is None and not self.jobs
        return idle and self.groups.is_quiet

    def _step(self) -> None:
        chance = self.random
        if chance.random() < 1 / MOOD_STEPS:
            self.mood = chance.choice(list(MOODS))
        (name,) = chance.choices(STEP_NAMES, CALM if self.calm else MOODS[self.mood])
        getattr(self, f"_{name}")()

    def _go_on(self) -> None:
        self.groups.go_on(calm=self.calm)

    def _hand_over(self) -> None:
        self.groups.hand_over()

    def check(self) -> None:
        """The groups have the rows of the edge."""
        found = self.groups.rows()
        missing = {key: value for key, value in self.expected.items() if found.get(key) != value}
        assert found == self.expected, f"too much {sorted(set(found) - set(self.expected))}, missing {missing}"

    # The edge.

    def _next(self) -> int:
        self.place += 1
        return self.place

    def _write(self) -> None:
        slot = self.random.randrange(SLOTS_TOTAL)
        self.write(slot, [self.random.randrange(TIMES) for _ in range(2)])

    def write(self, slot: int, times: Sequence[int]) -> None:
        """The device of a slot gets rows, which are sealed."""
        rows = {(slot, time): self._next() for time in times}
        self.expected |= rows
        self.waiting[slot].append(EdgeFile(slot, self._next(), rows))

    def _delete(self) -> None:
        slots = tuple(sorted(self.random.sample(range(SLOTS_TOTAL), self.random.randint(1, 4))))
        start = self.random.randrange(TIMES)
        self.delete(slots, start, self.random.randint(start + 1, TIMES))

    def delete(self, slots: Slots, start: int, end: int) -> None:
        """A user deletes rows."""
        deleted = EdgeDelete(self._next(), slots, start, end)
        self.expected = {key: value for key, value in self.expected.items() if not deleted.hides(key)}
        self.unsent.append(deleted)

    def _send(self) -> None:
        """Deletes go first; files wait for their verdict, and those under way are sent again behind them."""
        if self.deletes is not None:
            return
        if self.unsent and (self.calm or (self.mood == "edge" and self.random.random() < 0.2)):
            self.send_deletes()
            return
        # Deletes go before all files that are newer.
        newest = self.unsent[0].place if self.unsent else self.place + 1
        first = [files[0] for files in self.waiting.values() if files]
        ready = [each for each in first if each not in self.under_way and each.place < newest]
        if ready:
            self.send_file(self.random.choice(ready))

    def send_deletes(self) -> Job:
        """All deletes that were not sent yet; a receiver begins with them."""
        self.number += 1
        self.deletes = Manifest(self.number, None, tuple(self.unsent))
        self.unsent = []
        self.under_way.clear()
        return self.begin(self.deletes)

    def send_file(self, file: EdgeFile) -> Job:
        """A file, with the deletes that it brings; a receiver begins with it."""
        self.number += 1
        self.under_way[file] = self.number
        newer = tuple(each for each in self.sent if each.place > file.place)
        return self.begin(Manifest(self.number, file, newer))

    def _accept(self, manifest: Manifest) -> None:
        if manifest.file is None:
            if self.deletes is not None and self.deletes.number == manifest.number:
                self.sent += manifest.deletes
                self.deletes = None
            return
        self.under_way.pop(manifest.file, None)
        files = self.waiting[manifest.file.slot]
        if manifest.file in files:
            assert files[0] is manifest.file, "files of a slot are sent in their order"
            del files[0]

    # Receivers.

    def begin(self, manifest: Manifest) -> Job:
        """A receiver begins with a manifest."""
        job = Job(manifest, self._load(manifest) if manifest.file is not None else self._apply(manifest))
        self.jobs.append(job)
        while len(self.jobs) > JOBS_MAX:
            # A zombie dies; what is wanted lives on.
            self.jobs.remove(self.random.choice([each for each in self.jobs if not self._is_wanted(each)]))
        return job

    def _is_wanted(self, job: Job) -> bool:
        manifest = job.manifest
        file, newest = manifest.file, [each for each in self.jobs if each.manifest is manifest][-1]
        wanted = self.deletes is manifest if file is None else self.under_way.get(file) == manifest.number
        return wanted and newest is job

    def _work(self) -> None:
        wanted = [each for each in self.jobs if self._is_wanted(each)]
        if wanted:
            self.do(self.random.choice(wanted))

    def _wake(self) -> None:
        """A zombie does one more step; in the end they die."""
        zombies = [each for each in self.jobs if not self._is_wanted(each)]
        if zombies and self.calm and self.random.random() < 0.05:
            self.jobs.remove(self.random.choice(zombies))
        elif zombies:
            self.do(self.random.choice(zombies))

    def do(self, job: Job) -> bool:
        """One step of a receiver; whether it is done."""
        if next(job.steps, self) is self:
            self.jobs.remove(job)
            self._accept(job.manifest)
            return True
        return False

    def _replace(self) -> None:
        """Another receiver begins; this one is dead, or does not know it yet."""
        wanted = [each for each in self.jobs if self._is_wanted(each)]
        if wanted:
            job = self.random.choice(wanted)
            self.zombies += 1
            if self.random.random() < 0.2:
                self.jobs.remove(job)
            self.begin(job.manifest)

    def _append(self, group: Group, body: Delete, batch: int) -> None:
        """Raises Refused."""
        ignored = group.log.replica.ignored
        before = ignored[Ignored.SUPERSEDED]
        self.refused += group.closed
        self.groups.append(group, body, deletes_producer(SENDER, EDGE_GROUP), batch)
        self.superseded += ignored[Ignored.SUPERSEDED] - before

    def _apply(self, manifest: Manifest) -> Steps:
        """As `apply_deletes`."""
        while True:
            try:
                if (yield from self._applied(manifest)):
                    return True
            except Refused:
                pass
            yield

    def _applied(self, manifest: Manifest) -> Steps:
        table = self.groups.table
        yield
        if not self.is_whole(table):
            return False
        number, version = manifest.number, table.version
        yield from self._to_all(table, FENCE, deletes_batch(number, version))
        owned = frozenset(self.owned)
        yield
        for place, each in enumerate(manifest.deletes, 1):
            mine = tuple(str(slot) for slot in each.slots if slot in owned)
            if mine:
                body = Delete("d", "t", {"s": mine}, each.start, each.end)
                yield from self._to_all(table, body, deletes_batch(number, version, place))
        if not self.is_newest(table):
            return False
        yield
        yield from self._to_all(table, FENCE, last_deletes_batch(number))
        found = self.is_newest(table)
        yield
        return found

    def is_newest(self, table: Table) -> bool:
        """Whether members have not changed since deletes began with a table."""
        return table is self.groups.table

    def is_whole(self, table: Table) -> bool:
        """Whether each group that gains slots knows what those knew that give them."""
        moved = ((table.holders[slot], former) for slot, former in table.previous.items())
        return self.groups.change is None or all(each.has_taken_over(former, table.version) for each, former in moved)

    def may_load(self, group: Group, slot: int) -> bool:
        """Whether the leader of a group takes a file for a slot: not before its takeover has begun."""
        table = self.groups.table
        former = table.previous.get(slot)
        return former is None or self.groups.change is None or group.has_taken_over(former, table.version)

    def _to_all(self, table: Table, body: Delete, batch: int) -> Steps:
        groups = [*table.ending, *self.random.sample(table.groups, len(table.groups))]
        for group in groups:
            try:
                self._append(group, body, batch)
            except Refused:
                if group not in table.ending:
                    raise
            yield
        return True

    def _load(self, manifest: Manifest) -> Steps:
        """As `FileLoader`: own the device, then ask the leader of the group until the load has counted."""
        file = manifest.file
        assert file is not None
        self.owned.add(file.slot)
        while True:
            yield
            group = self.groups.table.holders[file.slot]
            yield
            load = self._record(manifest, file)
            state = group.log.replica.state
            if file.slot in state.changes.given or group.closed or not self.may_load(group, file.slot):
                continue
            if load_identity(load) not in state.loads:
                self.groups.append(group, load)
            if load_identity(load) in state.loads:
                return True
            self.void += 1

    def _record(self, manifest: Manifest, file: EdgeFile) -> Load:
        digest = xxhash.xxh3_128_digest(f"{file.place}".encode())
        self.groups.contents[digest] = file.rows
        carried = tuple(
            CarriedDelete(1, each.place, (("s", tuple(str(slot) for slot in each.slots)),), each.start, each.end)
            for each in manifest.deletes
        )
        leader = self.groups.table.holders[file.slot].log.replica.state.leader
        assert leader is not None
        return Load(
            leadership=leader,
            origin=SENDER,
            held_since=0,
            database="d",
            table="t",
            slice_number=0,
            bucket=BUCKETS[file.slot],
            era=1,
            first_version=file.place,
            last_version=file.place,
            generation=0,
            content_digest=digest,
            rows=len(file.rows),
            min_time_ns=0,
            max_time_ns=TIMES,
            size_bytes=1,
            schema_version=1,
            deletes=carried,
            sender=SENDER,
            order=f"{file.place:09}",
            group=EDGE_GROUP,
            number=manifest.number,
        )

    # The groups.
