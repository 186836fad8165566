"""Repair: what a damaged log still holds, and, when told to, giving up the rest.

Nothing is mended: what is kept is the state after the longest prefix that can be read, without the large values that
cannot. It is written as a new snapshot, so a crash in the middle leaves the log as it was, or repaired.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path

from connectors.files import FileLayer
from consumers.wal.errors import LogDamaged
from consumers.wal.journal import Journal, journal_name
from consumers.wal.manifest import Manifest
from consumers.wal.recovery import Survey, describe_cut, read_entries, replay, survey_files, write_manifest
from consumers.wal.replace import publish_partial, write_partial
from consumers.wal.snapshot import SNAPSHOT_NAME, SnapshotHeader, encode_snapshot
from consumers.wal.values import Entry, ValueReference

WHOLE = "whole"
TORN = "torn"
DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What was found: `state` is whole, torn (the next recovery cuts the unfinished end by itself) or damaged.

    `last_transaction` is the end of what can be kept, `newest_transaction` the highest that was seen or said to be
    durable. `would_drop` has a line for each thing that goes; `dropped` says that it is gone.
    """

    state: str
    last_transaction: int
    newest_transaction: int
    records: int
    damage: str
    would_drop: tuple[str, ...]
    dropped: bool


class _Missing(Journal):
    """Stands for a journal that does not exist: its values cannot be read."""

    def __init__(self, directory: Path, number: int) -> None:
        self.path = directory / f"journal {number}"
        self.number = number

    def read_value(self, offset: int, length: int, crc: int) -> bytes:  # noqa: ARG002
        raise LogDamaged(self.path, offset, "the file is missing")

    def __del__(self) -> None:
        """There is nothing to close."""


def repair(directory: Path, *, drop: bool = False, files: FileLayer | None = None) -> RepairReport:
    """Examines a log that nobody has open, without its serde; with `drop` gives up what cannot be kept.

    Raises `DirectoryHeld`, `FileMissing` when there is no log, and `LogDamaged` when manifest or snapshot are damaged:
    then no prefix can be told, and only a copy helps.
    """
    layer = files or FileLayer()
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
    missing = {number: _Missing(directory, number) for number in survey.missing}
    journals: dict[int, Journal] = {**survey.journals, **missing}
    version = survey.manifest.serde_version
    entries = read_entries(survey.snapshot, journals, version)
    replay(entries, survey.scans, survey.journals, survey.start, survey.verdict.last, version)
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
    verdict = survey.verdict
    cuts = [describe_cut(survey.journals[cut.number].path, cut) for cut in verdict.cuts]
    partitions = dict(survey.manifest.journals)
    missing = [f"{journal_name(number, partitions[number])} is missing" for number in survey.missing]
    claims = [scan.frames[-1].transaction for scan in survey.scans if scan.frames]
    claims += [transaction for scan in survey.scans for _, transaction, _ in scan.beyond]
    newest = max([verdict.last, verdict.durable, *claims])
    damage = []
    if verdict.damage is not None:
        damage.append(
            f"{survey.journals[verdict.damage.number].path} at offset {verdict.damage.offset}: {verdict.damage.reason}"
        )
    damage += missing + unreadable
    lost = [f"transactions {verdict.last + 1} to {newest}"] if damage and newest > verdict.last else []
    state = DAMAGED if damage else TORN if cuts else WHOLE
    return RepairReport(
        state,
        verdict.last,
        newest,
        records,
        "; ".join(damage),
        tuple(lost + cuts + missing + unreadable),
        drop and state == DAMAGED,
    )


def _write_kept(files: FileLayer, directory: Path, survey: Survey, entries: dict[Hashable, Entry], newest: int) -> None:
    manifest = survey.manifest
    replay_from = max([1, *(number + 1 for number, _ in manifest.journals)])
    if survey.snapshot is not None:
        replay_from = max(replay_from, survey.snapshot.header.replay_from)
    serde = (manifest.serde_name, manifest.serde_version)
    header = SnapshotHeader(manifest.identity, newest, replay_from, len(entries), *serde)
    referenced: set[Journal] = set()
    path = directory / SNAPSHOT_NAME
    write_partial(files, path, encode_snapshot(header, entries, referenced))
    publish_partial(files, path)
    named = tuple(
        (number, partition) for number, partition in manifest.journals if survey.journals.get(number) in referenced
    )
    write_manifest(files, directory, Manifest(manifest.identity, *serde, replay_from, named))
    for journal in survey.journals.values():
        if journal not in referenced:
            files.unlink(journal.path)
