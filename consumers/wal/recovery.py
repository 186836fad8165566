"""From files to a state, in numbered passes; each names the crash that leaves what it deals with.

1. Leftovers: a `.partial` file is a snapshot or manifest that was being written. Removed.
2. Manifest: none, and nothing else either, is a new log. It is replaced in one step, so anything wrong with it is
   damage.
3. Snapshot: replaced in one step as well; a crash before the manifest follows it leaves one that is newer than the
   manifest says.
4. Journals: each one named must exist. One not named was made but not published yet, or is dead and was being deleted.
   Removed.
5. Scan: every journal that the snapshot does not contain is read to its first bad byte; what stands after that is only
   evidence.
6. Decision (`prefix.decide`): the prefix, the cuts that make the files say the same, or damage.
7. Replay: snapshot, then the prefix in the order of transactions.
8. Cuts, each synced; then what no frame says was durable is written once more, and every journal that was read is
   synced: what recovery returned does not disappear in the next power cut, also when the last thing the process before
   met was a failed sync.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

from connectors.files import PARTIAL_SUFFIX, FileLayer
from consumers.wal.errors import FileMissing, ForeignLog, ForeignSerde, LogDamaged
from consumers.wal.frames import Frame
from consumers.wal.journal import Journal
from consumers.wal.keys import BYTES
from consumers.wal.manifest import MANIFEST_NAME, Manifest, decode_manifest, encode_manifest
from consumers.wal.prefix import Cut, Scan, Verdict, decide, prefix_end
from consumers.wal.records import HEAD, PAIR, Placed, decode
from consumers.wal.replace import publish_partial, read_whole, write_partial
from consumers.wal.snapshot import SNAPSHOT_NAME, SnapshotHeader, SnapshotReader
from consumers.wal.values import Entry, ValueReference

JOURNAL_PREFIX = "journal-"


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What a recovery found. `dropped` says file by file what was cut off the end because it was never known durable."""

    last_transaction: int
    snapshot_transaction: int
    transactions: int
    records: int
    seconds: float
    dropped: tuple[str, ...]


@dataclass(slots=True)
class Recovered:
    """The files of a log, opened and made consistent."""

    manifest: Manifest
    journals: dict[int, Journal]
    snapshot: SnapshotHeader | None
    entries: dict[Hashable, Entry]
    last: int
    report: RecoveryReport


@dataclass(slots=True)
class Survey:
    """The files of a log as they were found by passes 1 to 6; nothing that a record needs was changed."""

    manifest: Manifest
    snapshot: SnapshotReader | None
    journals: dict[int, Journal] = field(default_factory=dict)
    scans: list[Scan] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    verdict: Verdict = field(default_factory=lambda: Verdict(0, 0, (), None))

    @property
    def start(self) -> int:
        """The last transaction that is in the snapshot."""
        return self.snapshot.header.transaction if self.snapshot else 0


def recover_files(files: FileLayer, directory: Path, serde: tuple[str, int], new_identity: bytes) -> Recovered:
    """Runs all passes. `serde` is (name, version). Raises `LogDamaged`, `FileMissing`, `ForeignSerde`, `ForeignLog`,
    `OSError`; the files are then as they were, but for leftovers.
    """
    begun = time.perf_counter()
    survey = survey_files(files, directory, Manifest(new_identity, *serde))
    check_serde(survey, directory, serde)
    if survey.verdict.damage is not None:
        damage = survey.verdict.damage
        raise LogDamaged(survey.journals[damage.number].path, damage.offset, damage.reason)
    entries = read_entries(survey.snapshot, survey.journals, serde[1])
    transactions = replay(entries, survey.scans, survey.journals, survey.start, survey.verdict.last, serde[1])
    files.step("recovery: replayed")
    make_true(files, survey)
    seconds = time.perf_counter() - begun
    dropped = tuple(describe_cut(survey.journals[cut.number].path, cut) for cut in survey.verdict.cuts)
    report = RecoveryReport(survey.verdict.last, survey.start, transactions, len(entries), seconds, dropped)
    header = survey.snapshot.header if survey.snapshot else None
    return Recovered(survey.manifest, survey.journals, header, entries, survey.verdict.last, report)


def survey_files(files: FileLayer, directory: Path, new: Manifest | None) -> Survey:
    """Passes 1 to 6. With `new` None nothing at all is changed, a directory without a log is an error, and journals that
    are missing are noted instead of raised.
    """
    names = files.names(directory)
    if new is not None:
        # A killed process may have renamed without syncing: nothing may be deleted on the word of such a name.
        files.sync_directory(directory)
        _remove_partials(files, directory, names)
    manifest = _read_manifest(files, directory, names, new)
    survey = Survey(manifest, read_snapshot(files, directory, manifest))
    _open_journals(files, directory, survey, note_missing=new is None)
    if new is not None:
        _remove_unnamed_journals(files, directory, names, survey)
    replay_from = survey.snapshot.header.replay_from if survey.snapshot else 0
    survey.scans = [journal.scan() for number, journal in survey.journals.items() if number >= replay_from]
    survey.verdict = decide(survey.scans, survey.start)
    return survey


def _remove_partials(files: FileLayer, directory: Path, names: Sequence[str]) -> None:
    for name in names:
        if name in (SNAPSHOT_NAME + PARTIAL_SUFFIX, MANIFEST_NAME + PARTIAL_SUFFIX):
            files.unlink(directory / name)


def _read_manifest(files: FileLayer, directory: Path, names: Sequence[str], new: Manifest | None) -> Manifest:
    path = directory / MANIFEST_NAME
    if MANIFEST_NAME in names:
        return decode_manifest(path, read_whole(files, path))
    if SNAPSHOT_NAME in names or any(name.startswith(JOURNAL_PREFIX) for name in names):
        raise FileMissing(path, 0, "the manifest is missing beside the files of a log")
    if new is None:
        raise FileMissing(path, 0, "there is no log here")
    write_manifest(files, directory, new)
    return new


def write_manifest(files: FileLayer, directory: Path, manifest: Manifest) -> None:
    """Replaces the manifest, durably."""
    path = directory / MANIFEST_NAME
    write_partial(files, path, [encode_manifest(manifest)])
    publish_partial(files, path)


def read_snapshot(files: FileLayer, directory: Path, manifest: Manifest) -> SnapshotReader | None:
    """Opens the snapshot and checks that it is the one the manifest means, or a newer one; None when none was ever
    made.
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
    if snapshot.header.identity != manifest.identity:
        raise ForeignLog(f"{path} belongs to another log", action="put the files of one log together")
    if snapshot.header.replay_from < manifest.snapshot:
        raise LogDamaged(path, 0, "the snapshot is older than the one that the manifest names")
    return snapshot


class _Handle:
    """A descriptor that is closed with the last one who reads through it."""

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
            journal = Journal.open(files, directory, number, partition)
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
                journal.path, 0, f"the file says that it is journal {header.number} of partition {header.partition}"
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


def read_entries(snapshot: SnapshotReader | None, journals: dict[int, Journal], version: int) -> dict[Hashable, Entry]:
    """The state in the snapshot; empty when there is none."""
    return dict(snapshot.entries(journals.get, version)) if snapshot is not None else {}


def replay(
    entries: dict[Hashable, Entry],
    scans: Sequence[Scan],
    journals: dict[int, Journal],
    start: int,
    last: int,
    version: int,
) -> int:
    """Applies transactions start + 1 … last to `entries`, in order; returns their number."""
    runs: list[tuple[Journal, Iterable[Frame]]]
    if len(scans) == 1:
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
    scans: Sequence[Scan], journals: dict[int, Journal], start: int, last: int
) -> Iterable[tuple[Journal, Frame]]:
    ordered: list[tuple[Journal, Frame] | None] = [None] * (last - start)
    for scan in scans:
        journal = journals[scan.number]
        for frame in scan.frames:
            if start < frame[0] <= last:
                ordered[frame[0] - start - 1] = (journal, frame)
    for item in ordered:
        assert item is not None, "the prefix has no holes"
        yield item


def _replay_run(entries: dict[Hashable, Entry], journal: Journal, frames: Iterable[Frame], version: int) -> None:
    assert journal.header is not None
    written = journal.header.serde_version
    current = written == version
    unpack, head_bytes = HEAD.unpack_from, HEAD.size
    for frame in frames:
        body = frame[6]
        if frame[2] == 1 and current:
            # One small pair a transaction is the commonest frame by far.
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


def make_true(files: FileLayer, survey: Survey) -> None:
    """Pass 8. A crash between two cuts is harmless: the first missing transaction stays missing, so the next recovery
    decides the same.
    """
    verdict = survey.verdict
    for cut in verdict.cuts:
        survey.journals[cut.number].cut(cut.offset)
        files.step("recovery: journal cut")
    for scan in survey.scans:
        first = bisect_right(scan.frames, verdict.durable, key=itemgetter(0))
        beyond = bisect_right(scan.frames, verdict.last, key=itemgetter(0))
        if first < beyond:
            survey.journals[scan.number].rewrite(scan.frames[first].offset, scan.frames[beyond - 1].end)
        survey.journals[scan.number].sync()
    files.step("recovery: journals synced")


def describe_cut(path: Path, cut: Cut) -> str:
    """One line for people."""
    what = f"{len(cut.transactions)} transactions" if cut.transactions else "an unfinished write"
    if cut.transactions:
        what += f" ({min(cut.transactions)} to {max(cut.transactions)})"
    return f"{path.name} at offset {cut.offset}: {what}, because {cut.reason}"


def rebuild(
    files: FileLayer, directory: Path, manifest: Manifest, journals: dict[int, Journal], limit: int, version: int
) -> dict[Hashable, Entry]:
    """The state after transaction `limit`, from the files of an open log; raises `LogDamaged` when they no longer hold
    it.
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
