"""Repair: reports what a damaged log still holds and, on request, drops the rest.

The result is the state after the longest readable prefix, without unreadable large values. It is written as a
new snapshot, so a crash during the repair leaves the log as before or repaired.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path

from headrace.connectors.files import FileLayer
from headrace.consumers.wal.journal_file import JournalFile, journal_name
from headrace.consumers.wal.manifest import Manifest
from headrace.consumers.wal.replace import publish_partial, write_partial
from headrace.consumers.wal.snapshot_file import SNAPSHOT_NAME, SnapshotHeader, encode_snapshot
from headrace.consumers.wal.value_references import Entry, ValueReference
from headrace.consumers.wal.wal_errors import LogDamaged
from headrace.consumers.wal.wal_recovery import (
    Survey,
    describe_truncation,
    read_entries,
    replay,
    survey_files,
    write_manifest,
)

WHOLE = "whole"
TORN = "torn"
DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The findings: `state` is whole, torn (the next recovery truncates the unfinished end) or damaged.

    `last_transaction` is the end of the readable prefix, `newest_transaction` the highest that was found or
    stated as durable. `would_drop` has a line for each loss; `dropped` is true once it has happened.
    """

    state: str
    last_transaction: int
    newest_transaction: int
    records: int
    damage: str
    would_drop: tuple[str, ...]
    dropped: bool


class _MissingJournal(JournalFile):
    """The substitute of a journal that does not exist: its values cannot be read."""

    def __init__(self, directory: Path, number: int) -> None:
        self.path = directory / f"journal {number}"
        self.number = number

    def read_value(self, offset: int, length: int, crc: int) -> bytes:  # noqa: ARG002
        raise LogDamaged(self.path, offset, "the file is missing")

    def __del__(self) -> None:
        """Does nothing: there is no descriptor."""


def repair(directory: Path, *, drop: bool = False, files: FileLayer | None = None) -> RepairReport:
    """Examines a log that no process has open, without its serde; with `drop` removes what cannot be kept.

    Raises `DirectoryHeld`, `FileMissing` when there is no log, and `LogDamaged` when manifest or snapshot are
    damaged: then no prefix can be determined, and only a copy helps.
    """
    layer = files or FileLayer()
    # Before the lock, which would create a lock file in any directory that a typing mistake names.
    if "manifest" not in layer.names(directory):
        survey_files(layer, directory, None)
    ownership = layer.lock(directory, "the write-ahead log in")
    try:
        survey = survey_files(layer, directory, None)
        entries, unreadable = _readable_entries(survey, directory)
        report = _report(survey, len(entries), unreadable, drop)
        if report.dropped:
            _write_kept(layer, directory, survey, entries, report.newest_transaction)
        return report
    finally:
        ownership.release()


def _readable_entries(survey: Survey, directory: Path) -> tuple[dict[Hashable, Entry], list[str]]:
    missing = {number: _MissingJournal(directory, number) for number in survey.missing}
    journals: dict[int, JournalFile] = {**survey.journals, **missing}
    version = survey.manifest.serde_version
    entries = read_entries(survey.snapshot, journals, version)
    replay(entries, survey.scans, survey.journals, survey.start, survey.decision.last, version)
    unreadable = []
    for key, entry in list(entries.items()):
        if isinstance(entry, ValueReference):
            try:
                entry.read()
            except LogDamaged as damage:
                unreadable.append(f"the record with key {key!r}: {damage.message}")
                del entries[key]
    return entries, unreadable


def _report(survey: Survey, records: int, unreadable: list[str], drop: bool) -> RepairReport:
    decision = survey.decision
    torn = [describe_truncation(survey.journals[each.number].path, each) for each in decision.truncations]
    partitions = dict(survey.manifest.journals)
    missing = [f"{journal_name(number, partitions[number])} is missing" for number in survey.missing]
    found = [scan.frames[-1].transaction for scan in survey.scans if scan.frames]
    found += [transaction for scan in survey.scans for _, transaction, _ in scan.later_headers]
    newest = max([decision.last, decision.durable, *found])
    damage = []
    if decision.damage is not None:
        damage.append(
            f"{survey.journals[decision.damage.number].path} at offset {decision.damage.offset}: {decision.damage.reason}"
        )
    damage += missing + unreadable
    lost = [f"transactions {decision.last + 1} to {newest}"] if damage and newest > decision.last else []
    state = DAMAGED if damage else TORN if torn else WHOLE
    return RepairReport(
        state,
        decision.last,
        newest,
        records,
        "; ".join(damage),
        tuple(lost + torn + missing + unreadable),
        # A torn log needs no repair: the next recovery truncates it, and reports what it removes.
        drop and state == DAMAGED,
    )


def _write_kept(files: FileLayer, directory: Path, survey: Survey, entries: dict[Hashable, Entry], newest: int) -> None:
    # Past every journal, and with the highest transaction ever seen: a frame that survives in a file must
    # neither be replayed after this snapshot nor share its number with a later update.
    manifest = survey.manifest
    replay_from = max([1, *(number + 1 for number, _ in manifest.journals)])
    if survey.snapshot is not None:
        replay_from = max(replay_from, survey.snapshot.header.replay_from)
    serde = (manifest.serde_name, manifest.serde_version)
    header = SnapshotHeader(manifest.identity, newest, replay_from, len(entries), *serde)
    referenced: set[JournalFile] = set()
    path = directory / SNAPSHOT_NAME
    write_partial(files, path, encode_snapshot(header, entries, referenced))
    publish_partial(files, path)
    named = tuple(
        (number, partition) for number, partition in manifest.journals if survey.journals.get(number) in referenced
    )
    write_manifest(files, directory, Manifest(manifest.identity, *serde, replay_from, named))
    # Behind the manifest that names them no more: a crash in between leaves files that recovery removes.
    for journal in survey.journals.values():
        if journal not in referenced:
            files.unlink(journal.path)
