"""The options that the jobs for `spark-submit` share: text in, checked values out.

They are named as those of `headrace`. Secrets come from a file and from the environment: Spark's web page shows the
command line of its driver.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from headrace.connectors.formats.interface import (
    MESSAGE_FORMATS,
    NS_PER_UNIT,
    SCHEMA_FORMATS,
    FormatOptions,
    OptionsError,
    SchemaPlace,
)
from headrace.connectors.formats.mapping_file import read_mapping_file
from headrace.connectors.formats.schema_store import check_place
from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import TimeResolution

PREFIX = "HEADRACE__INGEST__REGISTRY_"
"""Of the variables with user and password of the registry: those of the settings of `headrace`."""


class JobOptionInvalid(HeadraceError):
    """An option of a job that does not exist, is missing, or has a value that it cannot have."""

    exit_code = 2


class JobParser(argparse.ArgumentParser):
    """A parser that names near options, and shortens none: a misspelt one must not become another."""

    def __init__(self, description: str) -> None:
        super().__init__(description=description, allow_abbrev=False)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The options. Raises JobOptionInvalid; `--help` ends the process."""
        given, unknown = self.parse_known_args(arguments)
        if unknown:
            name, known = unknown[0].partition("=")[0], list(self._option_string_actions)
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"the options are {', '.join(known)}"
            raise JobOptionInvalid(f"there is no option {name}", action=hint)
        return given

    def error(self, message: str) -> NoReturn:
        """What argparse calls for a value or an option that is missing or wrong."""
        raise JobOptionInvalid(message, action="--help shows all options")


def add_connection(options: argparse.ArgumentParser) -> None:
    """The options about cluster and Kafka."""
    options.add_argument("--cluster", required=True)
    options.add_argument("--bootstrap", required=True)
    options.add_argument("-X", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    options.add_argument("--kafka-config", metavar="FILE", help="KEY=VALUE lines, as -X: for passwords")


def add_reading(options: argparse.ArgumentParser, *, table_required: bool = False) -> None:
    """The options that say how raw bytes become rows."""
    options.add_argument("--table", required=table_required)
    options.add_argument("--tags", default="", help="comma-separated")
    options.add_argument("--tag", action="append", default=[], metavar="KEY=VALUE")
    options.add_argument("--time-column", default="time")
    options.add_argument("--time-unit", choices=tuple(NS_PER_UNIT), default="ns")
    options.add_argument("--time-format")
    options.add_argument("--time-resolution", choices=[str(each) for each in TimeResolution], default="us")
    options.add_argument("--any-time", action="store_true")


def add_messages(options: argparse.ArgumentParser) -> None:
    """The options that only messages of topics have."""
    options.add_argument("--format", choices=MESSAGE_FORMATS, required=True)
    options.add_argument("--columns", default="", help="comma-separated")
    options.add_argument("--mapping", help="a TOML file; it replaces the other options about the table")
    options.add_argument("--schema-dir")
    options.add_argument("--registry")
    options.add_argument("--table-column")


def reading_options(given: argparse.Namespace) -> FormatOptions:
    """The options of a format. Raises JobOptionInvalid."""
    try:
        return FormatOptions(
            table=given.table,
            table_column=getattr(given, "table_column", None),
            tags=names(given.tags),
            static_tags=pairs("--tag", given.tag),
            time_column=given.time_column,
            time_unit=given.time_unit,
            time_format=given.time_format,
            columns=names(getattr(given, "columns", "")),
            delimiter=getattr(given, "delimiter", ","),
        )
    except OptionsError as error:
        raise JobOptionInvalid(error.message, action=error.action) from error


def message_options(
    given: argparse.Namespace, environment: Mapping[str, str] = os.environ
) -> tuple[str, FormatOptions]:
    """(database, options) of the messages of a topic, from a mapping if there is one. Raises JobOptionInvalid."""
    database, options = given.database, reading_options(given)
    if given.mapping is not None:
        named, mapped = _mapped(given.mapping, given.topic, options)
        if database is not None and named not in (None, database):
            raise JobOptionInvalid(f"--database {database} is {named} in the mapping", action="give one of them")
        database, options = database or named, mapped
    if not database:
        raise JobOptionInvalid("no database is named", action="give --database, or name it in the mapping")
    return database, replace(options, schemas=_schemas(given, environment))


def _mapped(file: str, topic: str, given: FormatOptions) -> tuple[str | None, FormatOptions]:
    try:
        found = read_mapping_file(Path(file), topic, given)
    except OptionsError as error:
        raise JobOptionInvalid(error.message, action=error.action) from error
    return found.database, found.options


def _schemas(given: argparse.Namespace, environment: Mapping[str, str]) -> SchemaPlace:
    if given.format not in SCHEMA_FORMATS:
        for option, value in (("--schema-dir", given.schema_dir), ("--registry", given.registry)):
            if value is not None:
                raise JobOptionInvalid(f"{option} is not for --format {given.format}")
        return SchemaPlace()
    user, password = (environment.get(f"{PREFIX}{name}", "") for name in ("USER", "PASSWORD"))
    place = SchemaPlace(given.schema_dir, given.registry, user, password)
    try:
        check_place(place, numbered=given.format == "confluent-avro")
    except OptionsError as error:
        raise JobOptionInvalid(error.message, action=error.action) from error
    return place


def kafka_settings(given: argparse.Namespace) -> tuple[tuple[str, str], ...]:
    """librdkafka's settings of the file and of `-X`, which overrides it. Raises JobOptionInvalid."""
    lines: list[str] = []
    if given.kafka_config is not None:
        try:
            text = Path(given.kafka_config).read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise JobOptionInvalid(f"--kafka-config {given.kafka_config} cannot be read: {error}") from error
        lines = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
    found = dict(pairs(f"a line of {given.kafka_config}", lines, shown=False))
    return tuple(sorted((found | dict(pairs("-X", given.settings, shown=False))).items()))


def names(text: str) -> tuple[str, ...]:
    """The names of a list with commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def pairs(option: str, texts: Iterable[str], *, shown: bool = True) -> tuple[tuple[str, str], ...]:
    """`KEY=VALUE` as pairs; what may be a secret is not `shown` in an error. Raises JobOptionInvalid."""
    found = []
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise JobOptionInvalid(f"{option}{f' {text}' if shown else ''} is not KEY=VALUE")
        found.append((key.strip(), value.strip()))
    return tuple(found)


def notify(message: str) -> None:
    """A line for people."""
    sys.stderr.write(f"{message}\n")


def report(error: HeadraceError) -> int:
    """Write an error to stderr; the exit code of the job."""
    notify(f"error: {error.message}")
    if error.action:
        notify(f"what to do: {error.action}")
    return int(getattr(error, "exit_code", 1))
