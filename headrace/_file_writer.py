"""Writes a file of readings block by block: good lines go to the log, bad ones to a callback."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace._access import ClusterAccess, RowWriter
from headrace._file_rules import BlockRules, FileRules, nan_values
from headrace._replaced_rows import ReplacedRows
from headrace._spooled_input import spooled
from headrace.connectors.formats.file_blocks import STANDARD_INPUT, Block, iterate_file
from headrace.connectors.formats.interface import LINE_COLUMN, FormatOptions, RejectedLine
from headrace.connectors.formats.time_rules import as_timestamps
from headrace.producers.declared import DeclaredTags, DeclaredTypes
from headrace.producers.router import PAYLOAD_BYTES_MAX, RowTooLarge
from headrace.producers.writer import WriterSettings


@dataclass(frozen=True, slots=True)
class FileProgress:
    """How far a file has been written; `bytes_read` counts bytes of the file as stored.

    `replaced` is known at the end: rows that replaced others which this write wrote before; at least so many
    unless `replaced_exact`, where the temporary disk was full. `nan` counts values.
    `refused_columns` are those of a Parquet file that are left out, and why. `offsets` is known at the end: the
    newest acknowledged offset in each log, by its topic.
    """

    rows: int = 0
    points: int = 0
    rejected: int = 0
    bytes_read: int = 0
    nan: int = 0
    replaced: int = 0
    replaced_exact: bool = True
    refused_columns: Mapping[str, str] = field(default_factory=dict)
    offsets: Mapping[str, int] = field(default_factory=dict)


class FileWriter:
    """Writes one file into one database. `progress` may be read at any time, also after a failure."""

    def __init__(
        self,
        cluster: ClusterAccess,
        database: str,
        settings: WriterSettings,
        on_rejected: Callable[[RejectedLine], None],
        show_rejected: int,
        rules: FileRules | None = None,
    ) -> None:
        """`on_rejected` gets the first `show_rejected` lines that are not taken, numbered from 0."""
        self.progress = FileProgress()
        self._cluster = cluster
        self._database = database
        self._settings = settings
        self._on_rejected = on_rejected
        self._show_rejected = show_rejected
        self._rules = rules or FileRules()
        self._replaced = ReplacedRows()
        self._writers: dict[str, RowWriter] = {}
        self._open_writers = ExitStack()

    def _offsets(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for writer in self._writers.values():
            for topic, offset in writer.newest().items():
                found[topic] = max(offset, found.get(topic, -1))
        return found

    def write(self, source: str | BinaryIO, format: str, options: FormatOptions) -> Iterator[FileProgress]:
        """Write everything, and yield the progress after each block; at the end everything is in the log.

        Raises FormatError where no line could be read, TypeClash where a block does not fit its table, and
        what a Writer raises. Before anything is written: TimesImplausible, RowsRepeat, and for a stream that
        must be checked InputTooLong.
        """
        catalogue = self._cluster.tables.catalogue
        # Views and not copies: a table that an early block creates is declared for the blocks behind it.
        types = DeclaredTypes(catalogue, self._database)
        options = replace(options, declared=types, declared_tags=DeclaredTags(catalogue, self._database))
        # Line protocol marks the tags of each line, and a line without them is meant so.
        untagged = format != "influx" and not options.tags and not self._rules.no_tags
        with ExitStack() as opened:
            if untagged and self._may_repeat(options):
                if not isinstance(source, str) or source == STANDARD_INPUT:
                    source = opened.enter_context(spooled(source))
                self._check_repeats(source, format, options)
            yield from self._write_blocks(source, format, options)

    def _write_blocks(self, source: str | BinaryIO, format: str, options: FormatOptions) -> Iterator[FileProgress]:
        rules = self._block_rules(options)
        with self._open_writers:
            for block in iterate_file(source, format, options, keep_lines=True):
                tables, rejected = self._split(block, rules)
                rejected += self._write_tables(tables)
                self._reject(pa.concat_tables(rejected).sort_by("line"))
                refused = {**self.progress.refused_columns, **block.refused_columns}
                self.progress = replace(self.progress, bytes_read=block.bytes_read, refused_columns=refused)
                yield self.progress
        replaced = self._replaced.finish()
        self.progress = replace(
            self.progress, replaced=replaced, replaced_exact=self._replaced.exact, offsets=self._offsets()
        )

    def _block_rules(self, options: FormatOptions) -> BlockRules:
        catalogue = self._cluster.tables.catalogue
        return BlockRules(catalogue, self._database, self._settings, self._rules, options.ns_per_unit)

    def _may_repeat(self, options: FormatOptions) -> bool:
        """Whether a table without tags may be made."""
        return options.table is None or self._block_rules(options).is_new(options.table)

    def _check_repeats(self, source: str | BinaryIO, format: str, options: FormatOptions) -> None:
        """Read everything before any of it is written: rows that repeat a time may be far from each other."""
        rules = self._block_rules(options)
        for block in iterate_file(source, format, options, keep_lines=True):
            rules.check_repeats(self._split(block, rules)[0])
        rules.finish_repeats()
        if not isinstance(source, str):
            source.seek(0)

    def _split(self, block: Block, rules: BlockRules) -> tuple[dict[str, pa.Table], list[pa.Table]]:
        """(rows of a block by table, refused lines)."""
        rules.check_units(block.parsed.tables)
        tables, rejected = {}, [block.parsed.rejected]
        for name, rows in block.parsed.tables.items():
            kept, refused = rules.split(name, rows)
            rejected.append(refused)
            # A table of which every row is refused is not made.
            if kept.num_rows or not rows.num_rows:
                tables[name] = kept
        return tables, rejected

    def _write_tables(self, tables: Mapping[str, pa.Table]) -> list[pa.Table]:
        """Write the rows of one block; those that fit no message, as rejected lines."""
        for name, rows in tables.items():
            # The schema changes of a block come before its rows: a TypeClash in one table stops the block
            # while none of its rows is written.
            self._write_rows(name, rows.slice(0, 0))
        return [self._write_fitting(name, rows) for name, rows in tables.items()]

    def _write_fitting(self, table: str, rows: pa.Table) -> pa.Table:
        try:
            self._write_rows(table, rows)
        except RowTooLarge as error:
            # A row that no message can hold is a bad line of the file, and no reason to refuse the others.
            large = _text_bytes(rows) > PAYLOAD_BYTES_MAX
            if not large.any():
                raise
            self._write_rows(table, rows.filter(pa.array(~large)))
            numbers = rows.column(LINE_COLUMN).filter(pa.array(large))
            return _rejected(numbers, error.message)
        return _rejected(pa.array([], pa.int64()), "")

    def _write_rows(self, table: str, rows: pa.Table) -> None:
        if table not in self._writers:
            made = self._cluster.writer(self._database, table, self._settings)
            self._writers[table] = self._open_writers.enter_context(made)
        rows = rows.drop_columns([LINE_COLUMN])
        tags = [column.name for column in rows.schema if pa.types.is_dictionary(column.type)]
        try:
            self._writers[table].write(as_timestamps(rows), tags)
            self._replaced.add(table, rows, tags)
            self.progress = replace(self.progress, nan=self.progress.nan + nan_values(rows))
        finally:
            # Also behind a failure: the message to people says how many rows are in the log already.
            written = [writer.written for writer in self._writers.values()]
            sent, points = sum(each.rows for each in written), sum(each.points for each in written)
            self.progress = replace(self.progress, rows=sent, points=points)

    def _reject(self, lines: pa.Table) -> None:
        shown = max(0, self._show_rejected - self.progress.rejected)
        for row in lines.slice(0, shown).to_pylist():
            self._on_rejected(RejectedLine(row["line"], row["reason"]))
        self.progress = replace(self.progress, rejected=self.progress.rejected + lines.num_rows)


def _rejected(lines: pa.Array | pa.ChunkedArray, reason: str) -> pa.Table:
    return pa.table({"line": lines, "reason": pa.repeat(pa.scalar(reason), len(lines))})


def _text_bytes(rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Bytes of text in each row."""
    total = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        if pa.types.is_string(column.type):
            total += np.asarray(pc.fill_null(pc.binary_length(column), 0))
    return total
