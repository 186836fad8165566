"""A receiver: one member of the consumer group that shares the files of all senders.

One thread polls, writes chunks and commits. Whole files are decided by a pool, and come back to it with their verdict.
Nothing that it holds is needed by the next holder of a partition, which begins at the oldest open file.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import structlog

from headrace.connectors.clock import SYSTEM_CLOCK, Clock
from headrace.connectors.log.kafka_group import GroupConsumer, Partition, PartitionEnd, PartitionEvent, PartitionRecord
from headrace.connectors.log.port import LogUnavailable
from headrace.connectors.log.topics import Topics
from headrace.consumers.sync.chunk_states import ChunkAction, FileState
from headrace.consumers.sync.decided_files import DecidedFiles
from headrace.consumers.sync.decisions import Decisions
from headrace.consumers.sync.file_loader import DAMAGES, REJECTIONS, FileJob, FileLoader, decided, verdict_of
from headrace.consumers.sync.incoming import IncomingFiles, ReceiverDiskFull
from headrace.consumers.sync.manifest_rules import ManifestInvalid, check_loop, check_manifest, is_answerable
from headrace.consumers.sync.partition_files import OpenFile, PartitionFiles
from headrace.consumers.sync.receiver_disk import ReceiverDisk
from headrace.consumers.sync.receiver_metrics import ReceiverFigures
from headrace.consumers.sync.receiver_room import TooManyWait, is_full, loading, may_return, staged_bytes, surplus
from headrace.consumers.sync.settings import SyncSettings
from headrace.consumers.sync.shares import Share, note_assigned
from headrace.consumers.sync.view_database import ViewUnwritable
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import FORMAT, FrameInvalid
from headrace.schemas.sync_records import (
    ChunkDamaged,
    SyncChunk,
    SyncFile,
    SyncManifest,
    SyncVerdict,
    Verdict,
    decode_chunk,
    decode_manifest,
)

POLL_RECORDS = 64
POLL_S = 0.2
COMMIT_INTERVAL_S = 1.0
_log = structlog.get_logger(__name__)


class Receiver:
    """See the module. `run` and the callbacks belong to one thread; `stop` and `gauges` are for any."""

    def __init__(
        self,
        topics: Topics,
        identity: str,
        incoming: IncomingFiles,
        decided: DecidedFiles,
        loader: FileLoader,
        decisions: Decisions,
        disk: ReceiverDisk,
        settings: SyncSettings,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`identity` is that of the cluster, as `stores` of a manifest has it."""
        self._topics = topics
        self._identity = identity
        self._incoming = incoming
        self._decided = decided
        self._loader = loader
        self._decisions = decisions
        self._disk = disk
        self._settings = settings
        self._clock = clock
        self._shares: dict[int, Share] = {}
        self._held: dict[Partition, int] = {}
        self._polled: list[PartitionEvent] = []
        self._asked_again_s: dict[Partition, float] = {}
        self._paused: set[Partition] = set()
        self._commit_at_s = 0.0
        self._looks_due = False
        self._stopping = threading.Event()
        self._consumer: GroupConsumer | None = None
        self.figures = ReceiverFigures()

    # For any thread.

    def stop(self) -> None:
        """End `run` after its present step."""
        self._stopping.set()

    def gauges(self) -> Mapping[str, float]:
        """What is under way now, by name."""
        shares = list(self._shares.values())
        return {
            "partitions": float(len(shares)),
            "files_open": float(sum(len(share.files.files) for share in shares)),
            "files_loading": float(loading(shares)),
            "staging_bytes": float(staged_bytes(shares)),
            "disk_fault": float(bool(self._disk.fault)),
        }

    # The thread.

    def assigned(self, partitions: list[Partition]) -> None:
        """Partitions come; called inside `poll`."""
        for number in {number for _, number in partitions}:
            manifest, chunk = (self._topics.sync_manifest, number), (self._topics.sync_chunk, number)
            self._shares.setdefault(number, Share(number, manifest, chunk, PartitionFiles(self._settings.resend_s)))
        # Another receiver may have decided files in them a moment ago.
        self._looks_due = True
        note_assigned(partitions)

    def revoked(self, partitions: list[Partition]) -> None:
        """Partitions go, and what is here of them; called inside `poll`."""
        self._commit()
        for number in {number for _, number in partitions}:
            share = self._shares.pop(number, None)
            if share is not None:
                share.drop()
        self._polled = [event for event in self._polled if event.partition not in partitions]
        for each in partitions:
            self._held.pop(each, None)
            self._asked_again_s.pop(each, None)
            self._paused.discard(each)
        _log.info("partitions revoked", numbers=sorted({number for _, number in partitions}))

    def run(self, consumer: GroupConsumer) -> None:
        """Receive until `stop`. Raises errors that do not pass by themselves."""
        self._consumer = consumer
        try:
            while not self._stopping.is_set():
                try:
                    self.turn(consumer)
                except HeadraceError as error:
                    if not error.retriable:
                        raise
                    self._wait(error)
        finally:
            self._commit()
            for share in self._shares.values():
                share.drop()
            self._decisions.close()

    def turn(self, consumer: GroupConsumer) -> None:
        """One step: what has arrived, what was decided, what is due."""
        self._consumer = consumer
        self._disk.look()
        for share, given_up in surplus(self._shares.values(), self._settings, self._loader.group_of):
            share.give_up(given_up)
        # While no chunk may come, what was decided is waited for: it is what makes room.
        waits = is_full(self._shares.values(), self._settings)
        if waits:
            self._decisions.wait(POLL_S)
        polled, now_s = consumer.poll(POLL_RECORDS, 0.0 if waits else POLL_S), self._clock.monotonic_s()
        # First, whatever becomes of the records: what is decided frees the space that these may wait for.
        self._take_done()
        try:
            self._take_events([*self._polled, *polled], now_s)
        except HeadraceError:
            self._hold_back(consumer)
            raise
        finally:
            if now_s >= self._commit_at_s:
                self._commit_at_s = now_s + COMMIT_INTERVAL_S
                self._commit()
        self._ask_again(now_s)
        self._pause(consumer, now_s)

    def _wait(self, error: HeadraceError) -> None:
        if not self._disk.note(error):
            _log.warning("receiving waits", error=str(error))
        self._stopping.wait(self._settings.retry_s)

    def _hold_back(self, consumer: GroupConsumer) -> None:
        """Read nothing before what was polled is taken: else the memory would fill while an error lasts."""
        every = {each for share in self._shares.values() for each in (share.manifest, share.chunk)}
        consumer.pause(every - self._paused)
        self._paused = every

    def _take_events(self, events: list[PartitionEvent], now_s: float) -> None:
        # Manifests first: a chunk whose manifest is behind it in one poll need not be read twice.
        events = sorted(events, key=lambda each: each.partition[0] != self._topics.sync_manifest)
        for place, event in enumerate(events):
            # The consumer is behind them already: what an error leaves is taken in the next turn.
            self._polled = events[place:]
            share = self._shares.get(event.partition[1])
            if share is None or event.partition in self._held:
                continue
            if isinstance(event, PartitionEnd):
                share.positions[event.partition] = max(event.offset, share.positions.get(event.partition, 0))
                share.ends.add(event.partition)
            else:
                self._take(share, event, now_s)
        self._polled = []

    def _take(self, share: Share, record: PartitionRecord, now_s: float) -> None:
        share.ends.discard(record.partition)
        if record.partition == share.manifest:
            self._take_manifest(share, record, now_s)
        elif not self._take_chunk(share, record, now_s):
            self._held[record.partition] = record.offset
            share.positions[record.partition] = record.offset
            return
        share.positions[record.partition] = record.offset + 1

    def _take_manifest(self, share: Share, record: PartitionRecord, now_s: float) -> None:
        self._look()
        try:
            manifest = decode_manifest(record.value)
        except FrameInvalid as error:
            _log.warning("a manifest cannot be read", partition=record.partition[1], error=error.message)
            return
        if not is_answerable(manifest):
            _log.warning("a manifest of no sender", partition=record.partition[1], offset=record.offset)
            return
        body = manifest.body
        name = body.file if isinstance(body, SyncFile) else body.group
        group = "/".join(name.split("/", 2)[:2])
        decided = max(self._decided.number(manifest.sender, each) for each in {name, group})
        if decided >= manifest.number:
            # Its verdict is there, or that of deletes which make it void.
            return
        if isinstance(body, SyncFile) and not self._may_come(share, manifest, body):
            return
        decision = share.files.take_manifest(record.offset, manifest, now_s)
        behind = tuple(share.jobs[older.key] for older in decision.superseded if older.key in share.jobs)
        for older in decision.superseded:
            share.forget(older)
        file = decision.file
        if file is None:
            return
        if (why := self._objection(manifest)) is not None:
            self._answer(share, file, why)
        elif decision.complete:
            self._submit(share, file, behind)

    def _may_come(self, share: Share, manifest: SyncManifest, body: SyncFile) -> bool:
        """Whether a file was not given up, or has room again; else its sender reads once more that it waits here."""
        key, every, group_of = (manifest.sender, manifest.number), self._shares.values(), self._loader.group_of
        if key in share.given_up and not may_return(body, every, self._settings, group_of):
            self._decisions.tell(verdict_of(manifest, Verdict.RESEND, TooManyWait.now(), body.chunks))
            return False
        share.given_up.discard(key)
        return True

    def _look(self) -> None:
        """Read what was decided, once after partitions have come. Raises as `DecidedFiles.refresh`."""
        if self._looks_due:
            self._decided.refresh()
            self._looks_due = False

    def _objection(self, manifest: SyncManifest) -> HeadraceError | None:
        """Why a manifest is refused before anything of its file is read."""
        try:
            check_manifest(manifest, FORMAT)
            if isinstance(manifest.body, SyncFile):
                check_loop(manifest.body, self._identity)
        except (*REJECTIONS, *DAMAGES) as error:
            return error
        return None

    def _take_chunk(self, share: Share, record: PartitionRecord, now_s: float) -> bool:
        """Whether a chunk was taken; else its partition is read from there again."""
        try:
            chunk = decode_chunk(record.value)
        except (FrameInvalid, ChunkDamaged) as error:
            # The one behind it finds the gap.
            self.figures.chunks_damaged += 1
            _log.warning("a chunk cannot be read", partition=record.partition[1], error=str(error))
            return True
        if share.files.knows(chunk):
            return self._take_known(share, record.offset, chunk, now_s)
        if not share.is_orphan(record.offset):
            if share.awaits_manifests:
                return False
            # In this order: what is below the end of the chunks now has its manifest below the other end.
            consumer = self._consumer
            assert consumer is not None, "a receiver that does not run"
            try:
                share.await_manifests(consumer.bounds(share.chunk)[1], consumer.bounds(share.manifest)[1])
            except LogUnavailable as error:
                # That of one partition may be away: it is asked again, and the others are read meanwhile.
                _log.warning("receiving waits", partition=record.partition[1], error=str(error))
                self._asked_again_s[record.partition] = self._clock.monotonic_s() + self._settings.retry_s
                return False
            if not share.is_orphan(record.offset):
                return False
        self.figures.chunks_ignored += 1
        return True

    def _take_known(self, share: Share, offset: int, chunk: SyncChunk, now_s: float) -> bool:
        file = share.files.files[chunk.sender, chunk.number]
        before = file.state, file.chunks_from
        decision = share.files.take_chunk(offset, chunk, now_s)
        if decision.action is ChunkAction.WRITE:
            if not self._write(share, file, chunk.data):
                share.files.undo(file, *before)
                return False
            self.figures.chunks += 1
            self.figures.chunk_bytes += len(chunk.data)
            if decision.complete:
                self._submit(share, file)
            return True
        self.figures.chunks_ignored += 1
        if decision.action is ChunkAction.RESEND:
            self._resend(file)
        elif decision.action is ChunkAction.REJECT:
            self._answer(share, file, ManifestInvalid("its chunks have other sizes than its manifest announces"))
        return True

    def _write(self, share: Share, file: OpenFile, data: bytes | memoryview) -> bool:
        assert isinstance(file.manifest.body, SyncFile), file
        try:
            if file.key not in share.incoming:
                share.incoming[file.key] = self._incoming.open(file.manifest.body)
            share.incoming[file.key].write(data)
        except ReceiverDiskFull as error:
            self._disk.note(error)
            return False
        return True

    def _resend(self, file: OpenFile) -> None:
        self.figures.resends += 1
        _log.info("chunks asked for again", sender=file.manifest.sender, file=file.name, chunk=file.next_chunk)
        self._decisions.tell(verdict_of(file.manifest, Verdict.RESEND, chunk=file.next_chunk))

    def _submit(self, share: Share, file: OpenFile, behind: tuple[FileJob, ...] = ()) -> None:
        job = share.job(file, behind)
        self._decisions.decide(share.number, job, self._loader.decide(job))

    def _answer(self, share: Share, file: OpenFile, why: HeadraceError) -> None:
        """A verdict that needs nothing of the file."""
        # Whole by definition: no chunk of it is taken any more.
        file.state = FileState.COMPLETE
        state = Verdict.RETRY if isinstance(why, DAMAGES) else Verdict.REJECTED
        self._decisions.decide(share.number, share.job(file), decided(verdict_of(file.manifest, state, why)))

    def _take_done(self) -> None:
        decided: list[tuple[Share, OpenFile, SyncVerdict]] = []
        for done in self._decisions.done():
            share, key = self._shares.get(done.number), (done.job.manifest.sender, done.job.manifest.number)
            if share is None or share.jobs.get(key) is not done.job or done.verdict is None:
                continue
            self._count(done.verdict)
            file = share.files.files.get(key)
            share.files.decide(key)
            if file is not None:
                share.forget(file)
                decided.append((share, file, done.verdict))
        try:
            self._decided.note([verdict for _, _, verdict in decided])
        except ViewUnwritable as error:
            if not self._disk.note(error):
                _log.warning("verdicts were not kept", error=error.message)
        for share, file, _ in decided:
            share.files.release(file)

    def _count(self, verdict: SyncVerdict) -> None:
        self.figures.files_accepted += verdict.state is Verdict.ACCEPTED
        self.figures.files_rejected += verdict.state is Verdict.REJECTED
        self.figures.files_damaged += verdict.state is Verdict.RETRY

    # What is due.

    def _ask_again(self, now_s: float) -> None:
        """Ask for chunks that do not come, where everything that is there was read."""
        for share in self._shares.values() if not self._paused else ():
            if share.is_at_end:
                for file in share.files.silent(now_s):
                    self._resend(file)

    def _pause(self, consumer: GroupConsumer, now_s: float) -> None:
        """Read chunks while there is room, and those that wait for something once it is there."""
        # Only what is being loaded frees room by itself. Files in the middle of which nobody reads on never would.
        if is_full(self._shares.values(), self._settings):
            wanted = {share.chunk for share in self._shares.values()}
        else:
            wanted = {each for each in self._held if self._disk.fault or self._waits(each, now_s)}
        if paused := wanted - self._paused:
            consumer.pause(paused)
        if resumed := self._paused - wanted:
            consumer.resume(resumed)
        self._paused = wanted
        # What could not be taken is read again. After `resume`, which begins where reading had come to.
        for partition in set(self._held) - wanted:
            consumer.seek(partition, self._held[partition])
            del self._held[partition]

    def _waits(self, partition: Partition, now_s: float) -> bool:
        """Whether a chunk could not be taken yet if it were read again."""
        return self._shares[partition[1]].awaits_manifests or now_s < self._asked_again_s.get(partition, 0.0)

    def _commit(self) -> None:
        due: dict[Partition, int] = {}
        for share in self._shares.values():
            due |= share.due_commits()
        if due and self._consumer is not None:
            self._consumer.commit(due)
