"""Receivers in a simulation of sync: the Receiver that ships, with jobs whose every step is one of the scheduler.

A job does what FileLoader does, in its order and by the same pure decisions. Between any two of its steps the receiver
may be killed, lose its partitions, or be another one's zombie. A request that is under way then may arrive later.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from headrace.connectors.log.port import LogUnavailable
from headrace.consumers.replication.actions import Ignored
from headrace.consumers.sync import owners
from headrace.consumers.sync.decided_files import DecidedFiles
from headrace.consumers.sync.decisions import Done
from headrace.consumers.sync.file_check import FileDamaged
from headrace.consumers.sync.file_loader import DAMAGES, REJECTIONS, FileJob, verdict_of
from headrace.consumers.sync.owners import OwnersInMemory
from headrace.consumers.sync.receiver import Receiver
from headrace.consumers.sync.receiver_disk import ReceiverDisk
from headrace.consumers.sync.settings import SyncSettings
from headrace.schemas.errors import HeadraceError
from headrace.schemas.message_bodies import ProducerPosition
from headrace.schemas.messages import deletes_batch, deletes_producer, last_deletes_batch
from headrace.schemas.sync_records import (
    OwnerClaim,
    OwnerEnrolment,
    SyncDeletes,
    SyncFile,
    SyncManifest,
    SyncVerdict,
    Verdict,
)
from tests.sim.sync_kafka import SimConsumer
from tests.sim.sync_store import OwnDelete

if TYPE_CHECKING:
    from tests.sim.sync_simulation import SyncSimulation

SETTINGS = SyncSettings(files_max=4, staging_mb_max=1, resend_s=5.0, retry_s=0.0)
IDENTITY = "the-centre"
Steps = Generator[None, None, Any]
"""Ends with the value that the function of production returns; each yield is a step."""


class MemoryFile:
    """See IncomingFile."""

    def __init__(self, path: Path, body: SyncFile) -> None:
        self.path, self._body = path, body
        self.data = bytearray()

    @property
    def size_bytes(self) -> int:
        """Bytes so far."""
        return len(self.data)

    def write(self, data: bytes) -> None:
        """See IncomingFile."""
        self.data += data

    def finish(self) -> None:
        """See IncomingFile."""
        parts = self.data[: self._body.segment_bytes], self.data[self._body.segment_bytes :]
        digests = self._body.segment_digest, self._body.series_digest
        if any(xxhash.xxh3_128_digest(part) != digest for part, digest in zip(parts, digests, strict=True)):
            raise FileDamaged("other bytes", retriable=True)

    def discard(self) -> None:
        """See IncomingFile."""


class MemoryFiles:
    """See IncomingFiles; `files` has all that were opened."""

    def __init__(self) -> None:
        self.files: dict[Path, MemoryFile] = {}

    def open(self, body: SyncFile) -> MemoryFile:
        """See IncomingFiles."""
        path = Path(str(len(self.files)))
        found = self.files[path] = MemoryFile(path, body)
        return found


class MemoryView:
    """See ViewDatabase."""

    def __init__(self) -> None:
        self.next = 0
        self._values: dict[bytes, bytes] = {}

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """See ViewDatabase."""
        return [self._values.get(key) for key in keys]

    def put(self, values: dict[bytes, bytes], end: int) -> None:
        """See ViewDatabase."""
        self._values |= values
        self.next = end


class SimDecided(DecidedFiles):
    """The one that ships, over a view in memory."""

    def __init__(self, world: SyncSimulation, view: MemoryView) -> None:
        self._log: Any = world.log
        self._topic = world.topics.sync_verdict
        self._view: Any = view
        self._reader = None
        self._unkept = {}


@dataclass
class SimDecisions:
    """See Decisions: its threads are steps of the scheduler."""

    world: SyncSimulation
    jobs: list[Steps] = field(default_factory=list)
    finished: list[Done] = field(default_factory=list)

    def decide(self, number: int, job: FileJob, attempts: Steps) -> None:
        """See Decisions."""
        self.jobs.append(self._run(number, job, attempts))

    def tell(self, verdict: SyncVerdict) -> None:
        """See Decisions."""
        if not self.world.fails():
            self.world.append_verdict(verdict)

    def wait(self, timeout_s: float) -> None:
        """See Decisions."""

    def done(self) -> Iterator[Done]:
        """See Decisions."""
        found, self.finished = self.finished, []
        return iter(found)

    def close(self) -> None:
        """See Decisions."""

    def step(self) -> None:
        """One step of one job."""
        if self.jobs:
            job = self.world.random.choice(self.jobs)
            if next(job, "ended") == "ended":
                self.jobs.remove(job)

    def _run(self, number: int, job: FileJob, attempts: Steps) -> Steps:
        verdict = yield from attempts
        while verdict is not None and not job.ended.is_set():
            yield
            if not self.world.fails():
                self.world.append_verdict(verdict)
                break
        job.settled.set()
        self.finished.append(Done(number, job, None if job.ended.is_set() else verdict))


class SimLoader:
    """See FileLoader, whose order of steps this repeats."""

    def __init__(self, world: SyncSimulation, incoming: MemoryFiles) -> None:
        self._world = world
        self._incoming = incoming
        self._owners = OwnersInMemory()
        self._owners_read = 0

    def group_of(self, _body: SyncFile) -> str:
        """See FileLoader."""
        return "centre"

    def decide(self, job: FileJob) -> Steps:
        """See FileLoader."""
        for earlier in job.behind:
            while not (earlier.settled.is_set() or job.ended.is_set()):
                yield
        while not job.ended.is_set():
            try:
                if isinstance(job.manifest.body, SyncDeletes):
                    yield from self._delete(job.manifest, job.manifest.body)
                else:
                    job.finish()
                    yield from self._load(job, job.manifest.body)
                return verdict_of(job.manifest, Verdict.ACCEPTED)
            except REJECTIONS as error:
                return verdict_of(job.manifest, Verdict.REJECTED, error)
            except DAMAGES as error:
                return verdict_of(job.manifest, Verdict.RETRY, error)
            except HeadraceError:
                yield
        return None

    def _load(self, job: FileJob, body: SyncFile) -> Steps:
        assert job.path is not None
        data = bytes(self._incoming.files[job.path].data)
        yield from self._own(job.manifest, body.file, self._world.devices_of(data))
        yield
        self._try()
        # From here on the request may be carried out whatever becomes of this receiver.
        request = self._world.request(lambda: self._world.load(job.manifest, body, data))
        yield
        ignored = request()
        if ignored is Ignored.VOID or self._world.fails():
            raise LogUnavailable("no answer", retriable=True)

    def _own(self, manifest: SyncManifest, file: str, devices: list[str]) -> Steps:
        sender, store = manifest.sender, manifest.store
        if not self._look(lambda: owners.check_store(self._owners, sender, store)):
            yield
            self._append_owner(OwnerEnrolment(sender, store, ""), [])
        if self._look(lambda: owners.check_devices(self._owners, sender, "d", devices)):
            return
        yield
        self._append_owner(OwnerClaim(sender, store, file, "d", b""), devices)
        yield
        self._read_owners()
        if not owners.check_devices(self._owners, sender, "d", devices):
            raise LogUnavailable("a claim was appended and not read back", retriable=True)

    def _look(self, question: Callable[[], bool]) -> bool:
        """As OwnerLog: from what was read a moment ago, and if that refuses, from the end."""
        if self._world.random.random() < 0.5:
            try:
                return question()
            except owners.DeviceOwned:
                pass
        self._read_owners()
        return question()

    def _append_owner(self, record: OwnerEnrolment | OwnerClaim, devices: list[str]) -> None:
        self._try()
        self._world.owner_log.append((record, devices))

    def _read_owners(self) -> None:
        for record, devices in self._world.owner_log[self._owners_read :]:
            self._owners.apply(owners.change_of(self._owners, record, devices))
        self._owners_read = len(self._world.owner_log)

    def _delete(self, manifest: SyncManifest, body: SyncDeletes) -> Steps:
        producer = deletes_producer(manifest.sender, body.group)
        self._fence(ProducerPosition(producer, deletes_batch(manifest.number, 1), 0))
        yield
        self._read_owners()
        for place, each in enumerate(body.deletes, 1):
            mine = [s for s in each.tags["s"] if self._owners.devices.get(("d", s)) == manifest.sender]
            assert each.start_ns is not None
            assert each.end_ns is not None
            if mine:
                at = ProducerPosition(producer, deletes_batch(manifest.number, 1, place), 0)
                found = OwnDelete(at, tuple(mine), each.start_ns, each.end_ns)
                yield
                self._try()
                self._world.store.delete(found)
        yield
        self._fence(ProducerPosition(producer, last_deletes_batch(manifest.number), 0))

    def _fence(self, position: ProducerPosition) -> None:
        self._try()
        self._world.store.delete(OwnDelete(position, (), 0, 0))

    def _try(self) -> None:
        if self._world.fails():
            raise LogUnavailable("no answer", retriable=True)


class SimReceiver:
    """One process of a receiver."""

    def __init__(self, world: SyncSimulation, name: str, view: MemoryView) -> None:
        self.name, self.view = name, view
        self.stalled = False
        self.decisions = SimDecisions(world)
        incoming: Any = MemoryFiles()
        loader: Any = SimLoader(world, incoming)
        decisions: Any = self.decisions
        disk = ReceiverDisk(Path(), SETTINGS.retry_s, world.clock)
        self.receiver = Receiver(
            world.topics, IDENTITY, incoming, SimDecided(world, view), loader, decisions, disk, SETTINGS, world.clock
        )
        self.consumer = SimConsumer(world.kafka, name, self.receiver.assigned, self.receiver.revoked)
        world.kafka.join(self.consumer)

    def turn(self) -> None:
        """One step of its thread, unless it is stalled."""
        if not self.stalled:
            self.receiver.turn(self.consumer)
