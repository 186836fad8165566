"""What ingest would make of the first messages of a topic: the schema of each table, and some rows. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.connectors.formats.interface import FormatOptions
from headrace.connectors.formats.parser import check_options, parse_messages
from headrace.connectors.formats.time_rules import TimeRules
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.kafka_partitions import KafkaPartitions
from headrace.connectors.log.port import TopicMissing
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import NoCluster, read_slot_table
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.pipeline.job import IngestJob
from headrace.pipeline.offset_ranges import RAW_SCHEMA, offset_range_reader
from headrace.pipeline.raw_offsets import OffsetRange
from headrace.pipeline.schema_match import columns_of
from headrace.schemas.tables import Catalogue, TableSchema

MESSAGES_MAX = 1_000
ROWS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class InferredTable:
    """A table as its rows would have it; `known` if the cluster has that table."""

    name: str
    tags: tuple[str, ...]
    fields: tuple[tuple[str, str], ...]
    known: bool
    rows: int
    first: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class DryRun:
    """What the first messages would become; `reasons` are those of refused lines, and how many have each.

    `absent` are tags and fields that the job names and no row has, `untimed` the rows that take the time of their message.
    """

    messages: int
    tables: Sequence[InferredTable] = ()
    rejected: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    absent: Sequence[str] = ()
    untimed: int = 0


def dry_run(job: IngestJob, messages_max: int = MESSAGES_MAX) -> DryRun:
    """Read the first messages of the job's topic and parse them. Raises TopicMissing, LogUnavailable, FormatError."""
    # Wrong options are errors before anything is read, also of a topic without messages.
    check_options(job.format, job.options)
    batches = list(_first_messages(job, messages_max))
    raw = pa.Table.from_batches(batches, schema=RAW_SCHEMA).combine_chunks()
    return inferred(job, raw, _catalogue(job))


def inferred(job: IngestJob, raw: pa.Table, catalogue: Catalogue) -> DryRun:
    """What raw messages would become with the tables that there are."""
    tables = {name: versions[-1] for (owner, name), versions in catalogue.tables.items() if owner == job.database}
    options = replace(
        job.options,
        declared={name: schema.field_types() for name, schema in tables.items()},
        declared_tags={name: schema.tags for name, schema in tables.items()},
    )
    times = raw["timestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    parsed = parse_messages(job.format, raw["value"], times, options)
    reasons: dict[str, int] = {}
    for counted in parsed.rejected["reason"].value_counts().to_pylist():
        reasons[counted["values"]] = counted["counts"]
    found = []
    for name, rows in parsed.tables.items():
        good = np.ones(rows.num_rows, np.bool_)
        for mask, reason in _rules(job, name, tables.get(name)).refusals(rows):
            reasons[reason] = reasons.get(reason, 0) + int(mask.sum())
            good &= ~mask
        kept = rows.filter(pa.array(good))
        columns = columns_of(rows)
        fields = tuple((each, str(kind)) for each, kind in columns.fields)
        first = kept.slice(0, ROWS_SHOWN).to_pylist()
        found.append(InferredTable(name, columns.tags, fields, name in tables, kept.num_rows, first))
    timed = parse_messages(job.format, raw["value"], None, options)
    untimed = parsed.rows - timed.rows
    return DryRun(raw.num_rows, found, sum(reasons.values()), reasons, _absent(options, parsed.tables), untimed)


def _absent(options: FormatOptions, tables: Mapping[str, pa.Table]) -> list[str]:
    """What is named, as misspelt, and no row has; nothing where there are no rows."""
    own = {options.time_column, options.table_column}
    named = dict.fromkeys([*options.tags, *(name for _, name in options.sources if name not in own)])
    seen = {name for rows in tables.values() for name in rows.column_names}
    return [options.source_name(name) for name in named if name not in seen] if tables else []


def _rules(job: IngestJob, table: str, known: TableSchema | None) -> TimeRules:
    resolution = job.resolution if known is None else known.resolution
    return TimeRules(table, resolution, job.any_time, job.options.ns_per_unit)


def _first_messages(job: IngestJob, messages_max: int) -> Iterator[pa.RecordBatch]:
    with closing(KafkaPartitions(job.bootstrap, dict(job.settings))) as partitions:
        try:
            ends = partitions.state(job.topic).ends
        except TopicMissing:
            raise TopicMissing(f"topic {job.topic} does not exist", action="check --topic") from None
        begins = partitions.begins(job.topic, list(ends))
    each = -(-messages_max // max(1, len(ends)))
    reader = offset_range_reader(job)
    try:
        for partition, end in sorted(ends.items()):
            begin = begins[partition]
            if end > begin:
                yield from reader.read(OffsetRange(job.topic, partition, begin, min(end, begin + each)))
    finally:
        reader.close()


def _catalogue(job: IngestJob) -> Catalogue:
    """The tables of the cluster; none where it does not exist yet."""
    topics = Topics(job.cluster)
    with closing(KafkaLog(job.bootstrap, dict(job.settings))) as log:
        try:
            read_slot_table(log, topics)
        except NoCluster:
            return Catalogue()
        with closing(SchemaLog(log, topics)) as tables:
            tables.refresh()
            return tables.catalogue
