"""One manifest from its last chunk to its verdict: verify, schema, owner, stage, load.

Each step may be repeated, by this receiver or by the next holder of the partition. What passes by itself is tried again
for as long as it takes; what is the file's own fault becomes a verdict.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from headrace.consumers.sync.file_check import CheckedFile, FileDamaged, check_file
from headrace.consumers.sync.group_members import GroupMembers, Holder, MemberRefused, first_error
from headrace.consumers.sync.load_batches import LoadBatches
from headrace.consumers.sync.manifest_rules import (
    DatabaseDiffers,
    FormatTooNew,
    ManifestInvalid,
    SyncLoop,
    check_database,
)
from headrace.consumers.sync.member_routes import LoadRequest
from headrace.consumers.sync.owner_log import OwnerLog
from headrace.consumers.sync.owners import DeviceOwned, SenderCloned
from headrace.consumers.sync.receiver_disk import ReceiverDisk
from headrace.consumers.sync.sender_deletes import apply_deletes
from headrace.producers.cluster import Cluster
from headrace.schemas.errors import HeadraceError
from headrace.schemas.sync_records import (
    OwnerEnrolment,
    SyncFile,
    SyncManifest,
    SyncVerdict,
    Verdict,
    encode_manifest,
)
from headrace.schemas.tables import FieldType, SchemaError, TimeResolution, TypeClash

LOG_INTERVAL_S = 10.0
"""How often the log names why files wait, for each kind of error."""
STRAGGLER_S = 5.0
"""How long members beyond the majority are waited for: without the file they would be out of sync for a moment."""
REJECTIONS = (ManifestInvalid, SyncLoop, DatabaseDiffers, SchemaError, TypeClash, SenderCloned, DeviceOwned)
"""What is the file's own fault, whenever it is sent."""
DAMAGES = (FileDamaged, FormatTooNew)
"""What another transfer, or a later build of the centre, may end."""
_REFUSALS = {ManifestInvalid.__name__, DatabaseDiffers.__name__}
_MOVED = "SlotNotHeld"
HELD_S, HELD_AGAIN_S = 60.0, 600.0
"""How long a file waits before its sender reads that it is held, and how often it reads so."""
Attempts = Generator[SyncVerdict | None, None, SyncVerdict | None]
"""A job on its way to what it returns. Each yield is a pause before the next attempt, and what its sender reads then."""
_log = structlog.get_logger(__name__)


class ResolutionDiffers(SchemaError):
    """A table whose times have other digits here than at the sender."""


@dataclass(frozen=True, slots=True)
class FileJob:
    """A manifest that waits for its verdict. `path`: its file, None for deletes. `ended`: nobody waits any more.

    `settled`: nothing is done about it any more. `behind`: jobs that must be settled before this one begins. `held`: it
    has waited for so long that others no longer wait for it.
    """

    manifest: SyncManifest
    path: Path | None
    finish: Callable[[], None]
    ended: threading.Event
    settled: threading.Event
    behind: tuple[FileJob, ...] = ()
    held: threading.Event = field(default_factory=threading.Event)


class FileLoader:
    """Decides jobs. Safe to share between threads."""

    def __init__(
        self,
        cluster: Cluster,
        owners: OwnerLog,
        members: GroupMembers,
        pool: Executor,
        disk: ReceiverDisk,
    ) -> None:
        """`pool` runs requests to members that others wait for."""
        self._cluster = cluster
        self._owners = owners
        self._members = members
        self._batches = LoadBatches(members)
        self._pool = pool
        self._disk = disk
        self.waiting: dict[tuple[str, int], str] = {}
        self._logging = threading.Lock()
        self._logged_s: dict[str, float] = {}

    def decide(self, job: FileJob) -> Attempts:
        """The verdict of a job, None once it has ended."""
        key = job.manifest.sender, job.manifest.number
        try:
            return (yield from self._decide(job, key))
        finally:
            self.waiting.pop(key, None)

    def group_of(self, body: SyncFile) -> str:
        """The group for which a file waits."""
        return self._members.group_of(body)

    def _decide(self, job: FileJob, key: tuple[str, int]) -> Attempts:
        checked: CheckedFile | None = None
        hold_at_s: float | None = None
        for earlier in job.behind:
            # Ended, but a request of it may be under way: its load must be in the log before these deletes, or nowhere.
            while not (earlier.settled.is_set() or job.ended.is_set()):
                yield None
        while not job.ended.is_set():
            try:
                if not isinstance(job.manifest.body, SyncFile):
                    self._delete(job.manifest)
                else:
                    assert job.path is not None, job.manifest
                    if checked is None:
                        job.finish()
                        checked = check_file(job.path, job.manifest.body)
                    self._load(job, job.manifest.body, checked)
                return verdict_of(job.manifest, Verdict.ACCEPTED)
            except REJECTIONS as error:
                return verdict_of(job.manifest, Verdict.REJECTED, error)
            except DAMAGES as error:
                return verdict_of(job.manifest, Verdict.RETRY, error)
            except HeadraceError as error:
                if isinstance(error, MemberRefused) and error.kind in _REFUSALS:
                    return verdict_of(job.manifest, Verdict.REJECTED, error)
                self._note(key, job.manifest, error)
                now_s, waits = time.monotonic(), error
            except Exception as error:
                _log.exception("a file of a sender failed", sender=job.manifest.sender, number=job.manifest.number)
                return verdict_of(job.manifest, Verdict.RETRY, error)
            hold_at_s = now_s + HELD_S if hold_at_s is None else hold_at_s
            if now_s < hold_at_s or not isinstance(job.manifest.body, SyncFile):
                yield None
                continue
            hold_at_s = now_s + HELD_AGAIN_S
            job.held.set()
            # No chunk is missing: it is the one behind the last.
            yield verdict_of(job.manifest, Verdict.RESEND, waits, job.manifest.body.chunks)
        return None

    def _delete(self, manifest: SyncManifest) -> None:
        assert not isinstance(manifest.body, SyncFile), manifest
        records = apply_deletes(self._cluster, self._owners, _enrolment(manifest), manifest.number, manifest.body)
        _log.info("deletes of a sender", sender=manifest.sender, deletes=len(manifest.body.deletes), records=records)

    def _load(self, job: FileJob, body: SyncFile, checked: CheckedFile) -> None:
        version = self._schema(body)
        self._owners.own(_enrolment(job.manifest), body.file, body.database, checked.devices)
        holder = self._members.holder(body)
        try:
            self._stage(job, body, holder)
            leader = next(url for node, url in holder.online if node == holder.leader)
            self._batches.load(leader, holder, LoadRequest(encode_manifest(job.manifest), version))
        except MemberRefused as error:
            # The slot may have moved, or another member leads: the next attempt begins with a new look.
            if error.kind == _MOVED:
                self._members.holder(body, look=True)
            raise

    def _schema(self, body: SyncFile) -> int:
        """The version of the centre's table that has the columns of a file, read back as accepted."""
        tables = self._cluster.tables
        database = tables.ensure_database(body.database, body.slice_ns, body.buckets)
        check_database(body, database.slice_ns, database.buckets)
        fields: Mapping[str, FieldType] = {name: FieldType(kind) for name, kind in body.fields}
        resolution = TimeResolution(body.resolution)
        schema = tables.ensure(body.database, body.table, body.tags, fields, resolution=resolution)
        if schema.resolution is not resolution:
            raise ResolutionDiffers(
                f"{body.database}.{body.table} keeps {schema.resolution.unit}s here and {resolution.unit}s at the sender",
                action="both keep them for good: send into another table or database",
            )
        return schema.version

    def _stage(self, job: FileJob, body: SyncFile, holder: Holder) -> None:
        """Bring the file to a majority of the members, the leader among them. Raises MemberRefused."""
        assert job.path is not None, job.manifest
        path, sender = job.path, job.manifest.sender
        if not holder.leader:
            raise MemberRefused(f"group {holder.group.group} has no leader online", action="start its nodes")
        stage = self._members.stage
        tasks = {node: self._pool.submit(stage, url, holder, body, sender, path) for node, url in holder.online}
        errors: dict[str, HeadraceError] = {}
        held: set[str] = set()
        for node, task in tasks.items():
            # Those behind the majority get a moment: one that is slow must not hold up the others.
            enough = len(held) >= holder.majority and holder.leader in held
            try:
                task.result(STRAGGLER_S if enough else None)
                held.add(node)
            except HeadraceError as error:
                errors[node] = error
            except TimeoutError:
                continue
        if holder.leader in errors:
            raise errors[holder.leader]
        if len(held) < holder.majority:
            raise MemberRefused(
                f"{len(held)} of {len(holder.members)} members of group {holder.group.group} took {body.file}: "
                f"{first_error(list(errors.values())) or 'the others are offline'}",
                action="start them",
            )

    def _note(self, key: tuple[str, int], manifest: SyncManifest, error: HeadraceError) -> None:
        is_ours, is_new = self._disk.note(error), self.waiting.get(key) != error.message
        self.waiting[key] = error.message
        kind = error.kind if isinstance(error, MemberRefused) else type(error).__name__
        if is_ours or not is_new or not self._is_due(kind):
            return
        # While members change, whoever has held a slot a moment ago refuses its files.
        log = _log.info if kind == _MOVED else _log.warning
        log(
            "a file of a sender waits",
            sender=manifest.sender,
            number=manifest.number,
            error=str(error),
            files=len(self.waiting),
        )

    def _is_due(self, kind: str) -> bool:
        """Whether a line about errors of a kind is due: dozens of files wait for one disk, each with a path of its own."""
        now_s = time.monotonic()
        with self._logging:
            if now_s - self._logged_s.get(kind, -LOG_INTERVAL_S) < LOG_INTERVAL_S:
                return False
            self._logged_s[kind] = now_s
        return True


def decided(verdict: SyncVerdict) -> Attempts:
    """Of a job that needs no attempt."""
    yield from ()
    return verdict


def verdict_of(manifest: SyncManifest, state: Verdict, error: Exception | None = None, chunk: int = 0) -> SyncVerdict:
    """The verdict of a manifest."""
    body = manifest.body
    name, digest = (body.file, body.content_digest) if isinstance(body, SyncFile) else (body.group, b"")
    kind, message = ("", "") if error is None else (type(error).__name__, str(error))
    if isinstance(error, MemberRefused):
        kind = error.kind
    return SyncVerdict(manifest.sender, manifest.number, name, digest, state, chunk, kind, message)


def _enrolment(manifest: SyncManifest) -> OwnerEnrolment:
    return OwnerEnrolment(manifest.sender, manifest.store, manifest.name)
