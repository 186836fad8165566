"""Files and streams parsed in blocks, so that memory is bounded and progress is known."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.connectors.formats.arrow_tables import parse_table
from headrace.connectors.formats.csv_lines import Header, csv_records, header_of
from headrace.connectors.formats.interface import (
    LINE_COLUMN,
    Format,
    FormatError,
    FormatOptions,
    ParseResult,
    check_format,
)
from headrace.connectors.formats.json_documents import ByteSource, ElementSource, element_source
from headrace.connectors.formats.line_protocol import line_records
from headrace.connectors.formats.lines import Lines, lines_of_buffer
from headrace.connectors.formats.parquet_columns import parquet_batches, refused_columns
from headrace.connectors.formats.parser import BYTE_ORDER_MARK, parse_text
from headrace.schemas.tables import FieldType, widened

BLOCK_BYTES = 16 << 20
# A file without newlines is not of a text format: reading it to its end would only fill the memory.
LINE_BYTES_MAX = 256 << 20
STANDARD_INPUT = "-"
_GZIP_MAGIC = b"\x1f\x8b"


class UnreadableFile(FormatError):
    """The file cannot be opened or read to its end, or is not of the format it should be."""


@dataclass(frozen=True, slots=True)
class Block:
    """The readings of a part of a file.

    Line numbers in `parsed` count from 0 at the start of the file; in Parquet they are row numbers.
    `first_line` is the first line of the part, `bytes_read` the bytes of the file (as stored) read up to its
    end. The first block of a Parquet file has `refused_columns`: those that are left out, and why.
    """

    parsed: ParseResult
    first_line: int
    bytes_read: int
    refused_columns: Mapping[str, str] = field(default_factory=dict)


def iterate_file(
    source: str | Path | BinaryIO,
    format: str,
    options: FormatOptions,
    *,
    block_bytes: int = BLOCK_BYTES,
    default_time_ns: int | None = None,
    keep_lines: bool = False,
) -> Iterator[Block]:
    """Read a file (`-` is standard input; gzip is recognised) in blocks of lines, about `block_bytes` each.

    The first type of a field decides for the whole file, as in one block, and so does the first line with a name for
    its role (see `column_names`), unless `options.declared` and `declared_tags` have another; these mappings are read
    again for every block. Raises UnreadableFile, and the errors of the parser of the format.
    """
    known = check_format(format)
    try:
        with _open(source) as raw:
            if known == "parquet":
                yield from _parquet_blocks(raw, options, keep_lines=keep_lines)
            else:
                text: ByteSource = _TextSource(raw)
                text = element_source(text) if known == "json" else text
                blocks = _text_blocks(text, known, options, block_bytes, default_time_ns, keep_lines=keep_lines)
                yield from _file_lines(text, blocks) if isinstance(text, ElementSource) else blocks
    except (OSError, EOFError, zlib.error, pa.ArrowException, UnicodeDecodeError) as error:
        name = getattr(source, "name", source)
        name = "the input" if isinstance(name, int) else name
        # Parquet's own reasons end with a line break, or have some.
        reason = " ".join(str(error).splitlines()).strip()
        raise UnreadableFile(
            f"cannot read {name}: {reason}", action="check the path and the format of the file"
        ) from error


def _open(source: str | Path | BinaryIO) -> BinaryIO:
    if isinstance(source, str | Path):
        # The caller closes both; closing standard input would break whoever reads it next in this process.
        return open(0, "rb", closefd=False) if str(source) == STANDARD_INPUT else open(source, "rb")
    return cast("BinaryIO", _CallerStream(source))


class _CallerStream:
    """A stream of the caller, which the context manager leaves open."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def __enter__(self) -> BinaryIO:
        return self._stream

    def __exit__(self, *_: object) -> None:
        return None


class _TextSource:
    """The uncompressed bytes of a stream, and the number of stored bytes read for them."""

    def __init__(self, raw: BinaryIO) -> None:
        self._counted = _CountingStream(raw)
        buffered = io.BufferedReader(self._counted, 1 << 20)
        packed = buffered.peek(2)[:2] == _GZIP_MAGIC
        self._stream = cast("BinaryIO", gzip.GzipFile(fileobj=buffered) if packed else buffered)

    @property
    def bytes_read(self) -> int:
        """Stored bytes read so far."""
        return self._counted.count

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end."""
        return self._stream.read(size)


class _CountingStream(io.RawIOBase):
    """A raw stream that counts the bytes read from it."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self.count = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill `buffer` with the next bytes."""
        data = self._raw.read(len(buffer))
        buffer[: len(data)] = data
        self.count += len(data)
        return len(data)


@dataclass(slots=True)
class _SeenColumns:
    """The tags of a file so far, and the types of its fields; declared ones have priority."""

    options: FormatOptions
    seen: dict[str, dict[str, FieldType]] = field(default_factory=dict)
    tags: dict[str, dict[str, None]] = field(default_factory=dict)

    def current(self) -> FormatOptions:
        """The options for the next block."""
        tables = {*self.seen, *self.options.declared}
        declared = {table: {**self.seen.get(table, {}), **self.options.declared_types(table)} for table in tables}
        tables = {*self.tags, *self.options.declared_tags}
        tags = {table: {**self.tags.get(table, {}), **self._declared_tags(table)} for table in tables}
        return replace(self.options, declared=declared, declared_tags=tags)

    def _declared_tags(self, table: str) -> dict[str, None]:
        return dict.fromkeys(self.options.declared_tags.get(table, ()))

    def update(self, tables: Mapping[str, pa.Table]) -> None:
        """Add the columns of one block."""
        for name, table in tables.items():
            known, tags = self.seen.setdefault(name, {}), self.tags.setdefault(name, {})
            for column in table.schema:
                kind = FieldType.of_arrow(column.type)
                if pa.types.is_dictionary(column.type):
                    tags[column.name] = None
                if kind is not None and not column.name.startswith("__") and column.name != "time":
                    known[column.name] = widened(known.get(column.name, kind), kind) or kind


def _text_blocks(
    source: ByteSource,
    format: Format,
    options: FormatOptions,
    block_bytes: int,
    default_time_ns: int | None,
    *,
    keep_lines: bool,
) -> Iterator[Block]:
    seen = _SeenColumns(options)
    header: Header | None = None
    first_line, remainder, ended = 0, b"", False
    # The first block must hold a whole byte order mark.
    size = max(block_bytes, len(BYTE_ORDER_MARK))
    while not ended:
        fresh = source.read(size)
        ended = len(fresh) < size
        if not first_line and not remainder:
            fresh = fresh.removeprefix(BYTE_ORDER_MARK)
        data = remainder + fresh
        end = len(data) if ended else data.rfind(b"\n") + 1
        if not end and len(data) > LINE_BYTES_MAX:
            raise UnreadableFile(
                f"line {first_line + 1} is longer than {LINE_BYTES_MAX} bytes", action="check the format of the file"
            )
        lines = lines_of_buffer(memoryview(data)[:end])
        if format == "csv" and header is None:
            header, after = header_of(lines, options)
            if header is None and not ended:
                remainder = data
                continue
        else:
            after = 0
        if not ended:
            incomplete = _incomplete_from(lines, format, header)
            end = end if incomplete == lines.count else int(lines.starts[incomplete])
            lines = lines if incomplete == lines.count else lines_of_buffer(memoryview(data)[:end])
        remainder = data[end:]
        if lines.count:
            parsed = parse_text(
                format, lines, seen.current(), default_time_ns, header=header, first=after, keep_lines=keep_lines
            )
            seen.update(parsed.tables)
            yield Block(_renumber(parsed, first_line), first_line, source.bytes_read)
        first_line += lines.count


def _file_lines(source: ElementSource, blocks: Iterator[Block]) -> Iterator[Block]:
    """Blocks of elements with the lines of the file, and at the end what an unclosed array means."""
    elements = 0
    for block in blocks:
        parsed = source.file_lines(block.parsed, block.first_line)
        elements = block.first_line + block.parsed.lines
        yield replace(block, parsed=parsed)
    end = source.unclosed()
    if end is not None:
        yield Block(end, elements, source.bytes_read)


def _incomplete_from(lines: Lines, format: Format, header: Header | None) -> int:
    """The first line of a record that this block does not complete, or the number of lines."""
    # A reading of JSON is always one line of a file.
    if format == "influx":
        return line_records(lines).incomplete_from
    return csv_records(lines, header).incomplete_from if header is not None else lines.count


def _renumber(parsed: ParseResult, first_line: int) -> ParseResult:
    """The same rows with line numbers from the start of the file."""
    if not first_line:
        return parsed
    rejected = _renumber_column(parsed.rejected, "line", first_line)
    tables = {name: _renumber_column(table, LINE_COLUMN, first_line) for name, table in parsed.tables.items()}
    return ParseResult(tables, rejected, parsed.lines)


def _renumber_column(table: pa.Table, name: str, by: int) -> pa.Table:
    index = table.schema.get_field_index(name)
    return table if index < 0 else table.set_column(index, name, pc.add(table.column(index), pa.scalar(by, pa.int64())))


def _parquet_blocks(raw: BinaryIO, options: FormatOptions, *, keep_lines: bool) -> Iterator[Block]:
    # Parquet has its index at the end: a pipe is read whole.
    stream = raw if raw.seekable() else io.BytesIO(raw.read())
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    first_row = 0
    with pq.ParquetFile(stream) as file:
        total = file.metadata.num_rows
        refused = refused_columns(stream, file, options)
        for table in parquet_batches(file, refused):
            parsed = parse_table(table, options, keep_lines=keep_lines)
            done = first_row + table.num_rows
            stored = size if done >= total else int(size * done / total)
            yield Block(_renumber(parsed, first_row), first_row, stored, {} if first_row else refused)
            first_row = done
