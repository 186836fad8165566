"""A mapping in a file, beside the options of a command or job that would have the same without one."""

from __future__ import annotations

from pathlib import Path

from headrace.connectors.formats.interface import FormatOptions, OptionsError
from headrace.connectors.formats.mapping import TopicMapping, read_mapping

MAPPED = {
    "--table": "table",
    "--table-column": "table_column",
    "--tags": "tags",
    "--tag": "static_tags",
    "--time-column": "time_column",
    "--time-unit": "time_unit",
    "--time-format": "time_format",
    "--columns": "columns",
}
"""What a mapping has, by the option that has it otherwise."""


def read_mapping_file(file: Path, topic: str, given: FormatOptions) -> TopicMapping:
    """The part of a mapping for one topic; `given` are the other options. Raises OptionsError."""
    plain = FormatOptions()
    for option, name in MAPPED.items():
        if getattr(given, name) != getattr(plain, name):
            raise OptionsError(f"{option} and --mapping exclude each other", action=f"the mapping has it as {name}")
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionsError(f"the mapping {file} cannot be read: {error}") from error
    try:
        return read_mapping(text, topic)
    except OptionsError as error:
        raise OptionsError(f"{file}: {error.message}", action=error.action) from error
