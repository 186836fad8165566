"""Raw readings (line protocol, JSON, CSV, Parquet, Arrow) parsed as whole columns."""

from connectors.formats.arrow_tables import normalise
from connectors.formats.parse import parse, parse_buffer, parse_messages
from connectors.formats.parsed import (
    FORMATS,
    LINE_COLUMN,
    MESSAGE_COLUMN,
    ColumnMissing,
    ColumnTypeError,
    Format,
    FormatError,
    FormatOptions,
    OptionsError,
    Parsed,
    Rejected,
    TimeRangeError,
)
from connectors.formats.reading import Block, UnreadableFile, iterate_file

__all__ = [
    "FORMATS",
    "LINE_COLUMN",
    "MESSAGE_COLUMN",
    "Block",
    "ColumnMissing",
    "ColumnTypeError",
    "Format",
    "FormatError",
    "FormatOptions",
    "OptionsError",
    "Parsed",
    "Rejected",
    "TimeRangeError",
    "UnreadableFile",
    "iterate_file",
    "normalise",
    "parse",
    "parse_buffer",
    "parse_messages",
]
