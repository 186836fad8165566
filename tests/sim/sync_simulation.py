"""Edges, their senders, Kafka, receivers and one group of a centre, on one thread: seed → one schedule.

Sender, Receiver and all decisions are the code that ships. Senders are killed at any step, records are lost, chunks
are dropped or damaged, receivers are killed, replaced, and expelled while they run on as zombies; requests arrive late.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.migration.cut_listing import NOBODY
from headrace.consumers.replication.actions import Ignored
from headrace.consumers.sync.load import sync_load
from headrace.consumers.sync.manifest_rules import ManifestInvalid
from headrace.schemas.messages import load_identity
from headrace.schemas.sync_records import (
    OwnerClaim,
    OwnerEnrolment,
    SyncFile,
    SyncManifest,
    SyncVerdict,
    Verdict,
    encode_verdict,
    verdict_key,
)
from tests.manual_clock import ManualClock
from tests.sim.sync_kafka import SimKafka
from tests.sim.sync_receivers import MemoryView, SimReceiver
from tests.sim.sync_senders import SimSender
from tests.sim.sync_store import Key, SimStore

EDGES = (("a", "b"), ("c", "x"), ("d", "x"))
"""Devices of each edge: two of them bring the same one, and the second one is refused."""
PARTITIONS = 2
STEPS = 1_500
CALM_STEPS = 12_000
IDLE_STEPS = 400
STEP_S = 0.05
IDLE_S = 3_700.0


class SyncSimulation:
    """See the module. `run` raises AssertionError, which names the seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.clock = ManualClock(1.0)
        self.topics = Topics("c")
        self.faults = True
        self.log = MemoryLog()
        self.log.create_topic(self.topics.sync_verdict, {})
        self.kafka = SimKafka(self.random, self.topics, PARTITIONS)
        self.store = SimStore()
        self.owner_log: list[tuple[OwnerEnrolment | OwnerClaim, list[str]]] = []
        self.rejected = self.damaged = self.zombies = self.late_requests = 0
        self._requests: list[Callable[[], object]] = []
        self._receivers_made = 0
        self.senders = [SimSender(self, number, series) for number, series in enumerate(EDGES, 1)]
        self.receivers = [self._new_receiver() for _ in range(2)]

    # What the parts ask of their world.

    def fails(self) -> bool:
        """Whether a request finds nobody now."""
        return self.faults and self.random.random() < 0.05

    def take(self, topic: str, number: int, value: bytes) -> None:
        """A record comes to Kafka; a chunk may be damaged on its way."""
        if topic == self.topics.sync_chunk and self.faults and self.random.random() < 0.01:
            self.damaged += 1
            value = value[:-1] + bytes([value[-1] ^ 1])
        self.kafka.append(topic, number, value)

    def append_verdict(self, verdict: SyncVerdict) -> None:
        """A verdict comes to its topic."""
        if verdict.state is Verdict.ACCEPTED and verdict.content_digest:
            loaded = self.store.contents.get((verdict.sender, verdict.content_digest), 0)
            assert loaded == 1, f"{verdict.file} was accepted and loaded {loaded} times"
        if verdict.state is Verdict.REJECTED:
            assert verdict.kind == "DeviceOwned", f"{verdict.file} was rejected: {verdict.kind} {verdict.message}"
            self.rejected += 1
            next(each for each in self.senders if each.name == verdict.sender).note_rejected(verdict.file)
        key = verdict_key(verdict.sender, verdict.file)
        self.log.store(self.topics.sync_verdict, encode_verdict(verdict), key, ())

    def verdict_end(self) -> int:
        """The end of the verdict topic."""
        return self.log.topic(self.topics.sync_verdict).end

    def verdict_at(self, offset: int) -> bytes:
        """The value of a verdict."""
        return self.log.topic(self.topics.sync_verdict).records[offset].value

    @staticmethod
    def devices_of(data: bytes) -> list[str]:
        """The devices of a file. Raises ManifestInvalid."""
        try:
            return sorted({series for series, _, _ in json.loads(data)})
        except ValueError as error:
            raise ManifestInvalid(f"the file is none: {error}") from error

    def load(self, manifest: SyncManifest, body: SyncFile, data: bytes) -> Ignored | None:
        """The leader takes a file: one that is here already is not appended again."""
        load = sync_load(body, manifest.sender, manifest.number, NOBODY, 1)
        if load_identity(load) in self.store.loads:
            return Ignored.REPEATED
        return self.store.load(body, manifest.sender, manifest.number, data)

    def request(self, carry_out: Callable[[], Ignored | None]) -> Callable[[], Ignored | None]:
        """A request that is under way: carried out when its asker looks, or later if the asker is gone by then."""
        answers: list[Ignored | None] = []

        def once() -> Ignored | None:
            if not answers:
                answers.append(carry_out())
                if once in self._requests:
                    self._requests.remove(once)
            return answers[0]

        self._requests.append(once)
        return once

    # The schedule.

    def run(self) -> None:
        """The whole schedule, and all checks."""
        try:
            for _ in range(STEPS):
                self._step()
            self._finish()
            self.check()
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed}: {error}") from error

    def _step(self) -> None:
        self.clock.now_s += STEP_S
        chance = self.random.random()
        if chance < 0.42:
            self.random.choice(self.senders).step()
        elif chance < 0.62:
            self.random.choice(self.receivers).turn()
        elif chance < 0.82:
            self.random.choice([*self.receivers, *self._zombies()]).decisions.step()
        elif self.faults:
            self._live(self.random.choice(self.senders))
            self._fault()
        else:
            self.store.merge()

    def _live(self, site: SimSender) -> None:
        """What else happens at an edge."""
        chance = self.random.random()
        if chance < 0.5:
            site.edge.write()
        elif chance < 0.6:
            site.edge.seal_now()
        elif chance < 0.7:
            site.edge.merge()
        elif chance < 0.73:
            site.edge.restart()
        elif chance < 0.8:
            self.store.merge()

    def _fault(self) -> None:
        chance = self.random.random()
        if chance < 0.05:
            self._kill()
        elif chance < 0.07:
            self._stall()
        elif chance < 0.09:
            self._resume()
        elif chance < 0.10:
            self.kafka.drop_chunks()
        elif chance < 0.13 and self._requests:
            self.late_requests += 1
            self.random.choice(self._requests)()

    def _kill(self) -> None:
        """A receiver dies; it starts again under its name, or another one takes its place."""
        place = self.random.randrange(len(self.receivers))
        dead = self.receivers[place]
        if self.random.random() < 0.5:
            view = dead.view if self.random.random() < 0.5 else MemoryView()
            self.receivers[place] = SimReceiver(self, dead.name, view)
            return
        self.receivers[place] = self._new_receiver()
        self.kafka.leave(dead.consumer)

    def _stall(self) -> None:
        """A receiver does not poll for so long that the others get its partitions; its jobs run on."""
        found = self.random.choice(self.receivers)
        if not found.stalled and len([each for each in self.receivers if not each.stalled]) > 1:
            found.stalled = True
            self.kafka.leave(found.consumer)
            self.zombies += bool(found.decisions.jobs)

    def _resume(self) -> None:
        for each in self.receivers:
            each.stalled = False

    def _zombies(self) -> list[SimReceiver]:
        return [each for each in self.receivers if each.stalled]

    def _new_receiver(self) -> SimReceiver:
        self._receivers_made += 1
        return SimReceiver(self, f"r{self._receivers_made}", MemoryView())

    def _finish(self) -> None:
        """Without faults, until everything is decided."""
        while self._requests:
            self._requests[-1]()
        self.faults = self.kafka.faults = False
        self._resume()
        for each in self.senders:
            each.calm()
        before, idle = -1, 0
        for _ in range(CALM_STEPS):
            self._step()
            if all(each.done for each in self.senders):
                return
            progress = sum(each.edge.progress for each in self.senders) + self.verdict_end()
            idle = 0 if progress != before else idle + 1
            before = progress
            if idle > IDLE_STEPS:
                # Whoever waits for a timeout gets it.
                self.clock.now_s, idle = self.clock.now_s + IDLE_S, 0
        left = [(each.edge.progress, each.edge.version, each.sender.figures()) for each in self.senders]
        raise AssertionError(f"not everything is decided: {left}")

    # What must hold at the end.

    def check(self) -> None:
        """The centre has the rows of every edge, except those that a rejected file may have had."""
        for _ in range(50):
            self.store.merge()
        seen = self.store.rows()
        assert all(count == 1 for count in self.store.contents.values()), "a file was loaded twice"
        for each in self.senders:
            wanted = {key: value for key, value in each.edge.expected.items() if key not in each.refused_keys}
            mine = {key for key in seen if self.store.senders[key[0]] == each.name}
            found = {key: seen[key] for key in mine if key not in each.refused_keys}
            assert found == wanted, f"{each.name} has {_difference(found, wanted)}"


def _difference(found: dict[Key, int], wanted: dict[Key, int]) -> str:
    missing = {key: value for key, value in wanted.items() if found.get(key) != value}
    return f"too much {sorted(set(found) - set(wanted))}, missing or other {missing}"
