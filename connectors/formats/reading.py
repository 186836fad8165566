"""Files and streams in blocks, so that memory stays bounded and progress can be shown."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from connectors.formats.arrow_tables import parquet_batches, parsed_table
from connectors.formats.csv_lines import Header, csv_records, header_of, parse_csv
from connectors.formats.json_lines import parse_json_lines
from connectors.formats.line_protocol import line_records, parse_line_protocol
from connectors.formats.lines import Lines, lines_of_buffer
from connectors.formats.parse import BYTE_ORDER_MARK
from connectors.formats.parsed import LINE_COLUMN, Format, FormatError, FormatOptions, Parsed, check_format
from schemas.tables import FieldType, widened

BLOCK_BYTES = 16 << 20
LINE_BYTES_MAX = 256 << 20
STANDARD_INPUT = "-"
_GZIP_MAGIC = b"\x1f\x8b"


class UnreadableFile(FormatError):
    """The file cannot be opened or read to its end, or is not of the format it should be."""


@dataclass(frozen=True, slots=True)
class Block:
    """The readings of a part of a file. Line numbers in `parsed` count from the start of the file, from 0; in Parquet they are row numbers.

    `first_line` is the first line of the part, `bytes_read` how much of the file (as stored) has been read up to its end.
    """

    parsed: Parsed
    first_line: int
    bytes_read: int


def iterate_file(
    source: str | Path | BinaryIO,
    format: str,
    options: FormatOptions,
    *,
    block_bytes: int = BLOCK_BYTES,
    default_time_ns: int | None = None,
    keep_lines: bool = False,
) -> Iterator[Block]:
    """Read a file (`-` is standard input; gzip is recognised) in blocks of whole lines of about `block_bytes`.

    The first type a field had decides for the whole file, as if it were one block, unless `options.declared` says otherwise; that mapping is
    looked at again for every block. Raises UnreadableFile, and what the parsers of the format raise.
    """
    known = check_format(format)
    try:
        with _opened(source) as raw:
            if known == "parquet":
                yield from _parquet_blocks(raw, options, keep_lines=keep_lines)
            else:
                yield from _text_blocks(
                    _Source(raw), known, options, block_bytes, default_time_ns, keep_lines=keep_lines
                )
    except (OSError, EOFError, pa.ArrowInvalid) as error:
        name = getattr(source, "name", source)
        raise UnreadableFile(
            f"cannot read {name}: {error}", action="check the path and the format of the file"
        ) from error


def _opened(source: str | Path | BinaryIO) -> BinaryIO:
    if isinstance(source, str | Path):
        # Both are closed by the caller; standard input is not ours to close.
        return open(0, "rb", closefd=False) if str(source) == STANDARD_INPUT else open(source, "rb")
    return cast("BinaryIO", _Borrowed(source))


class _Borrowed:
    """A stream of the caller, which leaving the context does not close."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def __enter__(self) -> BinaryIO:
        return self._stream

    def __exit__(self, *_: object) -> None:
        return None


class _Source:
    """Uncompressed bytes of a stream, and how many stored bytes they took."""

    def __init__(self, raw: BinaryIO) -> None:
        self._counted = _Counted(raw)
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


class _Counted(io.RawIOBase):
    """A raw stream that counts what goes through it."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self.count = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill `buffer` with what comes next."""
        data = self._raw.read(len(buffer))
        buffer[: len(data)] = data
        self.count += len(data)
        return len(data)


@dataclass(slots=True)
class _Types:
    """The types that the fields of a file have had so far, below those the options declare."""

    options: FormatOptions
    seen: dict[str, dict[str, FieldType]]

    def current(self) -> FormatOptions:
        """The options for the next block."""
        tables = {*self.seen, *self.options.declared}
        declared = {table: {**self.seen.get(table, {}), **self.options.declared_types(table)} for table in tables}
        return replace(self.options, declared=declared)

    def learn(self, tables: Mapping[str, pa.Table]) -> None:
        """Take in the types of one block."""
        for name, table in tables.items():
            known = self.seen.setdefault(name, {})
            for column in table.schema:
                kind = FieldType.of_arrow(column.type)
                if kind is not None and not column.name.startswith("__") and column.name != "time":
                    known[column.name] = widened(known.get(column.name, kind), kind) or kind


def _text_blocks(
    source: _Source,
    format: Format,
    options: FormatOptions,
    block_bytes: int,
    default_time_ns: int | None,
    *,
    keep_lines: bool,
) -> Iterator[Block]:
    types = _Types(options, {})
    header: Header | None = None
    first_line, carried, ended = 0, b"", False
    size = max(block_bytes, len(BYTE_ORDER_MARK))
    while not ended:
        fresh = source.read(size)
        ended = len(fresh) < size
        if not first_line and not carried:
            fresh = fresh.removeprefix(BYTE_ORDER_MARK)
        data = carried + fresh
        end = len(data) if ended else data.rfind(b"\n") + 1
        if not end and len(data) > LINE_BYTES_MAX:
            raise UnreadableFile(
                f"line {first_line + 1} is longer than {LINE_BYTES_MAX} bytes", action="check the format of the file"
            )
        lines = lines_of_buffer(memoryview(data)[:end])
        if format == "csv" and header is None:
            header, after = header_of(lines, options)
            if header is None and not ended:
                carried = data
                continue
        else:
            after = 0
        if not ended:
            held = _open_from(lines, format, header)
            end = end if held == lines.count else int(lines.starts[held])
            lines = lines if held == lines.count else lines_of_buffer(memoryview(data)[:end])
        carried = data[end:]
        if lines.count:
            parsed = _parse(lines, format, types.current(), header, after, default_time_ns, keep_lines=keep_lines)
            types.learn(parsed.tables)
            yield Block(_shifted(parsed, first_line), first_line, source.bytes_read)
        first_line += lines.count


def _open_from(lines: Lines, format: Format, header: Header | None) -> int:
    """The first line of a record that is not complete in this block; those of one line always are."""
    if format == "influx":
        return line_records(lines).open_from
    return csv_records(lines, header).open_from if header is not None else lines.count


def _parse(
    lines: Lines,
    format: Format,
    options: FormatOptions,
    header: Header | None,
    after: int,
    default_time_ns: int | None,
    *,
    keep_lines: bool,
) -> Parsed:
    if format == "influx":
        return parse_line_protocol(lines, options, default_time_ns, keep_lines=keep_lines)
    if format == "json":
        return parse_json_lines(lines, options, default_time_ns, keep_lines=keep_lines)
    return parse_csv(lines, options, default_time_ns, header=header, first=after, keep_lines=keep_lines)


def _shifted(parsed: Parsed, first_line: int) -> Parsed:
    """The same rows with line numbers that count from the start of the file."""
    if not first_line:
        return parsed
    rejected = _shifted_column(parsed.rejected, "line", first_line)
    tables = {name: _shifted_column(table, LINE_COLUMN, first_line) for name, table in parsed.tables.items()}
    return Parsed(tables, rejected, parsed.lines)


def _shifted_column(table: pa.Table, name: str, by: int) -> pa.Table:
    place = table.schema.get_field_index(name)
    return table if place < 0 else table.set_column(place, name, pc.add(table.column(place), pa.scalar(by, pa.int64())))


def _parquet_blocks(raw: BinaryIO, options: FormatOptions, *, keep_lines: bool) -> Iterator[Block]:
    stream = raw if raw.seekable() else io.BytesIO(raw.read())
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    first_row = 0
    with pq.ParquetFile(stream) as file:
        total = file.metadata.num_rows
        for table in parquet_batches(file):
            parsed = parsed_table(table, options, keep_lines=keep_lines)
            done = first_row + table.num_rows
            yield Block(_shifted(parsed, first_row), first_row, size if done >= total else int(size * done / total))
            first_row = done
