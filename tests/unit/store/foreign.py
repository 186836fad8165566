"""Sealed files of other logs, as a transfer stages them, and the records that load them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from headrace.consumers.store import SeriesFile, Slots, Store, StoreSettings, staged_names
from headrace.consumers.store.row_order import sort_table
from headrace.consumers.store.segment import EncodedSegment, encode_segment
from headrace.consumers.store.segment_files import SegmentName
from headrace.schemas.messages import CarriedDelete, Leadership, Load
from headrace.schemas.series import slot_of
from headrace.schemas.tables import TableSchema
from tests.unit.store.builders import CPU, DATABASE, Row, row_batch

LEADER = Leadership(1, "n1", "i")
SLOTS = 10_000


def foreign_files(
    rows: Sequence[Row], ranks: tuple[int, int, int], schema: TableSchema = CPU, settings: StoreSettings | None = None
) -> list[EncodedSegment]:
    """The files that another group sealed of these rows, one a slice and bucket; `ranks` are era, first and last version."""
    given = sort_table([row_batch(schema, rows)], DATABASE, schema)
    names = (SegmentName("plant", schema.table, part.slice_number, part.bucket, *ranks) for part in given.parts)
    return [
        encode_segment("n9", name, schema, given.rows_of(part), ranks[2], settings or StoreSettings())
        for name, part in zip(names, given.parts, strict=True)
    ]


def load_of(file: EncodedSegment, held_since: int, deletes: tuple[CarriedDelete, ...] = ()) -> Load:
    """The record that loads a file."""
    entry = file.entry
    return Load(
        LEADER, "c.forward.n9.1", held_since, *entry.location, entry.era, entry.first_version, entry.last_version,
        entry.generation, bytes.fromhex(entry.content_digest), entry.rows, entry.min_time_ns, entry.max_time_ns,
        entry.size_bytes, entry.schema_version, deletes,
    )  # fmt: skip


def stage(store: Store, file: EncodedSegment) -> tuple[Path, Path]:
    """What a finished transfer leaves in the staging directory."""
    store.staging_directory.mkdir(parents=True, exist_ok=True)
    return stage_in(store.staging_directory, file)


def stage_in(directory: Path, file: EncodedSegment) -> tuple[Path, Path]:
    """A file under its content digest, and its series."""
    segment, series = (directory / name for name in staged_names(file.entry.content_digest))
    segment.write_bytes(file.data.to_pybytes())
    series.write_bytes(SeriesFile.of(file.entry, file.runs.to_bytes()).to_bytes())
    return segment, series


def stage_export(store: Store, directory: Path) -> None:
    """The files of an export in the staging directory of another store."""
    store.staging_directory.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        if not (target := store.staging_directory / path.name).exists():
            os.link(path, target)


def slots_of_slices(*slices: int) -> Slots:
    """The slots of some slices of the database, in all of its buckets."""
    every = ((number, bucket) for number in slices for bucket in range(DATABASE.buckets))
    return Slots(frozenset(slot_of("plant", bucket, number, SLOTS) for number, bucket in every), SLOTS)
