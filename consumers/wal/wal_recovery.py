"""Recovery of a log in numbered passes; each names the crash that leaves the state it handles.

1. Leftovers. Crash while a snapshot or manifest was written: its `.partial` file is removed.
2. Manifest. None and no other file either: a new log. It is replaced in one step, so no crash leaves another
   state than a whole manifest; anything else is damage.
3. Snapshot. Crash between its rename and the next manifest: it is newer than the manifest states, which is
   valid. Older or missing is damage.
4. Journals. Crash between the creation of a journal and its manifest, or between the manifest and the
   deletion of an obsolete journal: it is not named, and removed. A named journal that is missing, or has lost
   its header, is damage.
5. Scan. Each journal that the snapshot does not contain is read to its first invalid byte. Crash during a
   write, or write-back of a later page only: headers after that byte count only as watermarks.
6. Decision (`prefix.decide`): the prefix and the truncations to it, or damage.
7. Replay: the snapshot, then the prefix in the order of transactions.
8. Truncations, each synced. Then transactions that no watermark covers are written again, and every scanned
   journal is synced. Crash after a failed sync: without this pass the recovered transactions could vanish in
   the next power cut.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

from headrace.connectors.files import PARTIAL_SUFFIX, FileLayer
from headrace.consumers.wal.frames import Frame
from headrace.consumers.wal.journal_file import JournalFile
from headrace.consumers.wal.keys import BYTES
from headrace.consumers.wal.manifest import MANIFEST_NAME, Manifest, decode_manifest, encode_manifest
from headrace.consumers.wal.prefix import JournalScan, PrefixDecision, Truncation, decide, prefix_end
from headrace.consumers.wal.record_encoding import HEAD, PAIR, Placed, decode
from headrace.consumers.wal.replace import publish_partial, read_whole, write_partial
from headrace.consumers.wal.snapshot_file import SNAPSHOT_NAME, SnapshotHeader, SnapshotReader
from headrace.consumers.wal.value_references import Entry, ValueReference
from headrace.consumers.wal.wal_errors import FileMissing, ForeignLog, ForeignSerde, LogDamaged

JOURNAL_PREFIX = "journal-"


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The result of a recovery.

    `dropped` has a line for each truncated file; what it lost was never known durable.
    """

    last_transaction: int
    snapshot_transaction: int
    transactions: int
    records: int
    seconds: float
    dropped: tuple[str, ...]


@dataclass(slots=True)
class Recovered:
    """The files and the state of a log after all passes."""

    manifest: Manifest
    journals: dict[int, JournalFile]
    snapshot: SnapshotHeader | None
    entries: dict[Hashable, Entry]
    last: int
    report: RecoveryReport


@dataclass(slots=True)
class Survey:
    """The files of a log after passes 1 to 6; no record has been changed."""

    manifest: Manifest
    snapshot: SnapshotReader | None
    journals: dict[int, JournalFile] = field(default_factory=dict)
    scans: list[JournalScan] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    decision: PrefixDecision = field(default_factory=lambda: PrefixDecision(0, 0, (), None))

    @property
    def start(self) -> int:
        """The last transaction in the snapshot."""
        return self.snapshot.header.transaction if self.snapshot else 0


def recover_files(files: FileLayer, directory: Path, serde: tuple[str, int], new_identity: bytes) -> Recovered:
    """Runs all passes. `serde` is (name, version).

    Raises `LogDamaged`, `FileMissing`, `ForeignSerde`, `ForeignLog` or `OSError`. Until pass 8 only leftovers
    are changed.
    """
    started = time.perf_counter()
    survey = survey_files(files, directory, Manifest(new_identity, *serde))
    # Before damage is reported: a log of a newer build needs that build, and a repair would only lose data.
    check_serde(survey, directory, serde)
    if survey.decision.damage is not None:
        damage = survey.decision.damage
        raise LogDamaged(survey.journals[damage.number].path, damage.offset, damage.reason)
    # Everything is read before anything is cut: an error up to here leaves the files as evidence.
    entries = read_entries(survey.snapshot, survey.journals, serde[1])
    transactions = replay(entries, survey.scans, survey.journals, survey.start, survey.decision.last, serde[1])
    files.step("recovery: replayed")
    truncate_and_sync(files, survey)
    seconds = time.perf_counter() - started
    dropped = tuple(
        describe_truncation(survey.journals[each.number].path, each) for each in survey.decision.truncations
    )
    report = RecoveryReport(survey.decision.last, survey.start, transactions, len(entries), seconds, dropped)
    header = survey.snapshot.header if survey.snapshot else None
    return Recovered(survey.manifest, survey.journals, header, entries, survey.decision.last, report)


def survey_files(files: FileLayer, directory: Path, new: Manifest | None) -> Survey:
    """Passes 1 to 6. With `new` None no file is changed, and a directory without a log is an error.

    Missing journals are then listed instead of raised.
    """
    names = files.names(directory)
    if new is not None:
        # A killed process may have renamed a file without syncing the directory. Files must not be deleted
        # because of a manifest or snapshot whose name a power cut can still take back.
        files.sync_directory(directory)
        _remove_partials(files, directory, names)
    manifest = _read_manifest(files, directory, names, new)
    survey = Survey(manifest, read_snapshot(files, directory, manifest))
    _open_journals(files, directory, survey, note_missing=new is None)
    if new is not None:
        _remove_unnamed_journals(files, directory, names, survey)
    replay_from = survey.snapshot.header.replay_from if survey.snapshot else 0
    # Older journals are not scanned, however large: only the values that the snapshot references matter in
    # them, and those carry CRCs of their own.
    survey.scans = [journal.scan() for number, journal in survey.journals.items() if number >= replay_from]
    survey.decision = decide(survey.scans, survey.start)
    return survey


def _remove_partials(files: FileLayer, directory: Path, names: Sequence[str]) -> None:
    for name in names:
        if name in (SNAPSHOT_NAME + PARTIAL_SUFFIX, MANIFEST_NAME + PARTIAL_SUFFIX):
            files.unlink(directory / name)


def _read_manifest(files: FileLayer, directory: Path, names: Sequence[str], new: Manifest | None) -> Manifest:
    path = directory / MANIFEST_NAME
    if MANIFEST_NAME in names:
        return decode_manifest(path, read_whole(files, path))
    # A new manifest would name none of these files, and pass 4 would delete them all.
    if SNAPSHOT_NAME in names or any(name.startswith(JOURNAL_PREFIX) for name in names):
        raise FileMissing(path, 0, "the directory has files of a log but no manifest")
    if new is None:
        raise FileMissing(path, 0, "there is no log here")
    write_manifest(files, directory, new)
    return new


def write_manifest(files: FileLayer, directory: Path, manifest: Manifest) -> None:
    """Replaces the manifest durably."""
    path = directory / MANIFEST_NAME
    write_partial(files, path, [encode_manifest(manifest)])
    publish_partial(files, path)


def read_snapshot(files: FileLayer, directory: Path, manifest: Manifest) -> SnapshotReader | None:
    """Opens the snapshot; None when there is none yet.

    It must be the one that the manifest names, or a newer one.
    """
    path = directory / SNAPSHOT_NAME
    try:
        descriptor = files.open(path)
    except FileNotFoundError:
        if manifest.snapshot:
            raise FileMissing(path, 0, "the snapshot that the manifest names does not exist") from None
        return None
    handle = _Handle(files, descriptor)
    snapshot = SnapshotReader(path, handle.read, files.size(descriptor))
    # Each log has a random identity: files of two logs in one directory, after a wrong restore, must not mix.
    if snapshot.header.identity != manifest.identity:
        raise ForeignLog(f"{path} belongs to another log", action="put the files of one log together")
    if snapshot.header.replay_from < manifest.snapshot:
        raise LogDamaged(path, 0, "the snapshot is older than the one that the manifest names")
    return snapshot


class _Handle:
    """A descriptor that is closed with its last reader."""

    def __init__(self, files: FileLayer, descriptor: int) -> None:
        self._files = files
        self._descriptor = descriptor

    def read(self, offset: int, length: int) -> bytes:
        return self._files.read(self._descriptor, length, offset)

    def __del__(self) -> None:
        self._files.close(self._descriptor)


def _open_journals(files: FileLayer, directory: Path, survey: Survey, note_missing: bool) -> None:
    for number, partition in survey.manifest.journals:
        try:
            journal = JournalFile.open(files, directory, number, partition)
        except FileNotFoundError as error:
            if note_missing:
                survey.missing.append(number)
                continue
            raise FileMissing(
                Path(error.filename or directory), 0, "a journal that the manifest names does not exist"
            ) from None
        header = journal.header
        if header is not None and header.identity != survey.manifest.identity:
            raise ForeignLog(f"{journal.path} belongs to another log", action="put the files of one log together")
        if header is not None and (header.number, header.partition) != (number, partition):
            raise LogDamaged(
                journal.path, 0, f"its header is that of journal {header.number} of partition {header.partition}"
            )
        survey.journals[number] = journal


def _remove_unnamed_journals(files: FileLayer, directory: Path, names: Sequence[str], survey: Survey) -> None:
    known = {journal.path.name for journal in survey.journals.values()}
    for name in names:
        if name.startswith(JOURNAL_PREFIX) and name not in known:
            files.unlink(directory / name)


def check_serde(survey: Survey, directory: Path, serde: tuple[str, int]) -> None:
    """Raises `ForeignSerde` unless every file was written by this serde, in this version or an older one."""
    written = [(directory / MANIFEST_NAME, survey.manifest.serde_name, survey.manifest.serde_version)]
    if survey.snapshot is not None:
        written.append((survey.snapshot.path, survey.snapshot.header.serde_name, survey.snapshot.header.serde_version))
    headers = [(journal.path, journal.header) for journal in survey.journals.values()]
    written += [(path, header.serde_name, header.serde_version) for path, header in headers if header is not None]
    for path, name, version in written:
        if name != serde[0] or version > serde[1]:
            raise ForeignSerde(path, (name, version), serde)


def read_entries(
    snapshot: SnapshotReader | None, journals: dict[int, JournalFile], version: int
) -> dict[Hashable, Entry]:
    """The state in the snapshot; empty when there is none."""
    return dict(snapshot.entries(journals.get, version)) if snapshot is not None else {}


def replay(
    entries: dict[Hashable, Entry],
    scans: Sequence[JournalScan],
    journals: dict[int, JournalFile],
    start: int,
    last: int,
    version: int,
) -> int:
    """Applies transactions start + 1 … last to `entries`, in order; returns their number."""
    # With one journal its frames are in order already;
    # otherwise each frame is put in its place by its number.
    runs: list[tuple[JournalFile, Iterable[Frame]]]
    if len(scans) == 1 and scans[0].has_header:
        kept = last - start
        frames = scans[0].frames
        runs = [(journals[scans[0].number], frames if len(frames) == kept else frames[:kept])]
        for journal, run in runs:
            _replay_run(entries, journal, run, version)
    else:
        for journal, frame in _in_order(scans, journals, start, last):
            _replay_run(entries, journal, (frame,), version)
    return last - start


def _in_order(
    scans: Sequence[JournalScan], journals: dict[int, JournalFile], start: int, last: int
) -> Iterable[tuple[JournalFile, Frame]]:
    ordered: list[tuple[JournalFile, Frame] | None] = [None] * (last - start)
    for scan in scans:
        journal = journals[scan.number]
        for frame in scan.frames:
            if start < frame[0] <= last:
                ordered[frame[0] - start - 1] = (journal, frame)
    for item in ordered:
        assert item is not None, "the prefix has no holes"
        yield item


def _replay_run(entries: dict[Hashable, Entry], journal: JournalFile, frames: Iterable[Frame], version: int) -> None:
    assert journal.header is not None
    written = journal.header.serde_version
    current = written == version
    unpack, head_bytes = HEAD.unpack_from, HEAD.size
    for frame in frames:
        body = frame[6]
        if frame[2] == 1 and current:
            # By far the most frequent frame: one small pair. Decoding
            # it here saves a generator for each transaction.
            kind, code, key_length, _ = unpack(body)
            if kind == PAIR and code == BYTES:
                split = head_bytes + key_length
                entries[body[head_bytes:split]] = body[split:]
                continue
        for key, value in decode(body, written, current):
            if value is None:
                entries.pop(key, None)
            elif type(value) is Placed:
                offset = frame.values_offset + value.offset
                entries[key] = ValueReference(journal, value.kind, written, offset, value.length, value.crc)
            else:
                entries[key] = value  # type: ignore[assignment]


def truncate_and_sync(files: FileLayer, survey: Survey) -> None:
    """Pass 8."""
    # A crash between two truncations is harmless: the first missing transaction stays missing, so the next
    # recovery decides the same.
    decision = survey.decision
    for truncation in decision.truncations:
        survey.journals[truncation.number].truncate(truncation.offset)
        files.step("recovery: journal truncated")
    # The previous process may have been killed after a failed sync: its bytes
    # are readable from pages that the kernel marks clean. A sync alone would
    # succeed and prove nothing, so bytes above the watermark are written again.
    for scan in survey.scans:
        first = bisect_right(scan.frames, decision.durable, key=itemgetter(0))
        stop = bisect_right(scan.frames, decision.last, key=itemgetter(0))
        if first < stop:
            survey.journals[scan.number].rewrite(scan.frames[first].offset, scan.frames[stop - 1].end)
        survey.journals[scan.number].sync()
    files.step("recovery: journals synced")


def describe_truncation(path: Path, truncation: Truncation) -> str:
    """One line for reports and the log output."""
    transactions = truncation.transactions
    removed = "an unfinished write"
    if transactions:
        removed = f"{len(transactions)} transactions ({min(transactions)} to {max(transactions)})"
    return f"{path.name} at offset {truncation.offset}: {removed}, because {truncation.reason}"


def rebuild(
    files: FileLayer, directory: Path, manifest: Manifest, journals: dict[int, JournalFile], limit: int, version: int
) -> dict[Hashable, Entry]:
    """The state after transaction `limit`, read from the files of an open log.

    Raises `LogDamaged` when they no longer hold it.
    """
    snapshot = read_snapshot(files, directory, manifest)
    entries = read_entries(snapshot, journals, version)
    start, replay_from = (snapshot.header.transaction, snapshot.header.replay_from) if snapshot else (0, 0)
    if start >= limit:
        return entries
    scans = [journal.scan() for number, journal in journals.items() if number >= replay_from and journal.published]
    if prefix_end(scans, start) < limit:
        raise LogDamaged(
            directory / MANIFEST_NAME, 0, f"the journals no longer hold transaction {limit}, which was durable"
        )
    for scan in scans:
        scan.frames = [frame for frame in scan.frames if frame.transaction <= limit]
    replay(entries, scans, journals, start, limit, version)
    return entries
