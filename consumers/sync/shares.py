"""What a receiver has of one number of partitions: open files, their bytes, and those that are being decided."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import structlog

from headrace.connectors.log.kafka_group import Partition
from headrace.consumers.sync.file_loader import FileJob
from headrace.consumers.sync.incoming import IncomingFile
from headrace.consumers.sync.partition_files import FileKey, OpenFile, PartitionFiles

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Share:
    """One number of the partitions of manifests and chunks; `manifest` and `chunk` are these two.

    `positions`: how far each was read; `ends`: which were read to their end. Chunks below `sure_below` whose manifest is
    not open have none; `awaited_manifests` is how far the manifests must be read before more are known to have none.
    `given_up`: see `give_up`.
    """

    number: int
    manifest: Partition
    chunk: Partition
    files: PartitionFiles
    positions: dict[Partition, int] = field(default_factory=dict)
    ends: set[Partition] = field(default_factory=set)
    incoming: dict[FileKey, IncomingFile] = field(default_factory=dict)
    jobs: dict[FileKey, FileJob] = field(default_factory=dict)
    sure_below: int = 0
    awaited_manifests: int | None = None
    checked_end: int = 0
    committed: dict[Partition, int] = field(default_factory=dict)
    given_up: set[FileKey] = field(default_factory=set)

    @property
    def staged_bytes(self) -> int:
        """Bytes of its files on the disk."""
        return sum(each.size_bytes for each in list(self.incoming.values()))

    @property
    def held(self) -> int:
        """Whole files that have waited for so long that others are read behind them."""
        return sum(each.held.is_set() for each in list(self.jobs.values()))

    @property
    def awaits_manifests(self) -> bool:
        """Whether a chunk waits for manifests that were not read yet."""
        return self.awaited_manifests is not None and self.manifests_read < self.awaited_manifests

    @property
    def manifests_read(self) -> int:
        """How far the manifests were read, -1 before the first."""
        return self.positions.get(self.manifest, -1)

    @property
    def is_at_end(self) -> bool:
        """Whether everything that is there was read."""
        return self.manifest in self.ends and self.chunk in self.ends

    def is_orphan(self, offset: int) -> bool:
        """Whether a chunk at an offset, whose manifest is not open, is known to have none."""
        if self.awaited_manifests is not None and not self.awaits_manifests:
            self.sure_below, self.awaited_manifests = self.checked_end, None
        return offset < self.sure_below

    def await_manifests(self, chunks_end: int, manifests_end: int) -> None:
        """Chunks below an end have their manifests below another one; `manifests_end` was asked for last."""
        self.checked_end, self.awaited_manifests = chunks_end, manifests_end

    def job(self, file: OpenFile, behind: tuple[FileJob, ...] = ()) -> FileJob:
        """A file is whole: what decides it, once the jobs in `behind` are settled."""
        incoming = self.incoming.get(file.key)
        path, finish = (None, _nothing) if incoming is None else (incoming.path, incoming.finish)
        job = self.jobs[file.key] = FileJob(
            file.manifest, path, finish, ended=threading.Event(), settled=threading.Event(), behind=behind
        )
        return job

    def forget(self, file: OpenFile) -> None:
        """A file is decided, or is another receiver's."""
        job = self.jobs.pop(file.key, None)
        if job is not None:
            job.ended.set()
        incoming = self.incoming.pop(file.key, None)
        if incoming is not None:
            incoming.discard()

    def give_up(self, file: OpenFile) -> None:
        """Forget a whole file that waits, without a verdict. Its sender announces it again within the hour."""
        # What was asked of a member for it may end later, as what another receiver has asked before it was replaced.
        self.files.decide(file.key)
        self.files.release(file)
        self.forget(file)
        self.given_up.add(file.key)

    def drop(self) -> None:
        """Everything goes."""
        for file in list(self.files.files.values()):
            self.forget(file)

    def due_commits(self) -> dict[Partition, int]:
        """The offsets to commit that were not committed before."""
        files, found = self.files, dict[Partition, int]()
        for partition, position_of in ((self.manifest, files.manifests_from), (self.chunk, files.chunks_from)):
            if partition in self.positions:
                offset = position_of(self.positions[partition])
                if self.committed.get(partition) != offset:
                    found[partition] = offset
        self.committed |= found
        return found


def note_assigned(partitions: Iterable[Partition]) -> None:
    """Log the numbers of partitions that have come, and those of which one of the two is at another receiver."""
    counts = Counter(number for _, number in partitions)
    _log.info("partitions assigned", numbers=sorted(counts))
    if alone := sorted(number for number, count in counts.items() if count == 1):
        _log.error(
            "the topics of manifests and chunks have different numbers of partitions: files of some wait",
            numbers=alone,
            action="give both the larger number with kafka-topics --alter",
        )


def _nothing() -> None:
    """Of a manifest without bytes."""
