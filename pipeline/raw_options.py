"""The options of `format("headrace_raw")`: text in, a request out; and those of a job, as text again.

Names are those of the source's users: without regard to case, `-` and `_`, so that `time-column` is `timeColumn`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.connectors.formats.interface import FormatOptions, SchemaPlace, message_format
from headrace.connectors.formats.mapping import read_mapping
from headrace.pipeline.job import IngestJob
from headrace.pipeline.raw_offsets import EARLIEST, LATEST, Offsets, Start, document_of, offsets_of
from headrace.pipeline.raw_source import NAME
from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import FieldType, TimeResolution

KAFKA_PREFIX = "kafka."
OPTIONS = (
    *("cluster", "bootstrap", "topic", "database", "format"),
    *("table", "tableColumn", "tags", "staticTags", "timeColumn", "timeUnit", "timeFormat"),
    *("mapping", "columns", "sources", "fieldTypes", "schemaDir", "registry"),
    *("registryUser", "registryPassword"),
    *("timeResolution", "anyTime", "compression"),
    *("maxMessagesPerBatch", "startingOffsets", "startingTimestamp", "startingOffsetsByTimestampStrategy"),
    "endingOffsets",
)
"""Beside these any `kafka.<name>` is a setting of librdkafka."""
MAPPED = ("table", "tableColumn", "tags", "staticTags", "timeColumn", "timeUnit", "timeFormat", "columns")
"""What a mapping has, so that it is not given beside one."""
REQUIRED = ("cluster", "bootstrap", "topic", "database", "format")
_RULES = {"earliest": EARLIEST, "latest": LATEST}


class SourceOptionInvalid(HeadraceError):
    """An option that the source does not have, or that has no such value."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class RawRequest:
    """What a query reads: the job, and which messages of its topic."""

    job: IngestJob
    start: Start
    messages_max: int | None = None
    until: Offsets | None = None


def options_of(
    job: IngestJob, *, messages_max: int | None = None, until: Offsets | None = None, starting: str = "earliest"
) -> dict[str, str]:
    """The options with which the source reads what `job` names."""
    how = job.options
    given: dict[str, str | None] = {
        "cluster": job.cluster,
        "bootstrap": job.bootstrap,
        "topic": job.topic,
        "database": job.database,
        "format": job.format,
        "table": how.table,
        "tableColumn": how.table_column,
        "tags": ",".join(how.tags),
        "staticTags": json.dumps(dict(how.static_tags)) if how.static_tags else None,
        "timeColumn": how.time_column,
        "timeUnit": how.time_unit,
        "timeFormat": how.time_format,
        "columns": ",".join(how.columns) or None,
        "sources": json.dumps({name: list(path) for path, name in how.sources}) if how.sources else None,
        "fieldTypes": json.dumps(dict(how.typed)) if how.typed else None,
        "schemaDir": how.schemas.directory,
        "registry": how.schemas.registry,
        "registryUser": how.schemas.user or None,
        "registryPassword": how.schemas.password or None,
        "timeResolution": job.resolution.value,
        "anyTime": str(job.any_time).lower(),
        "compression": job.compression,
        "startingOffsets": starting,
        "maxMessagesPerBatch": None if messages_max is None else str(messages_max),
        "endingOffsets": None if until is None else json.dumps(document_of(job.topic, until)),
    }
    settings = {f"{KAFKA_PREFIX}{name}": value for name, value in job.settings}
    return {name: value for name, value in given.items() if value is not None} | settings


def request_of(options: Mapping[str, str]) -> RawRequest:
    """The request that options describe. Raises SourceOptionInvalid, and FormatError for those of the format."""
    given = _known(options)
    missing = [name for name in REQUIRED if not given.get(name)]
    if missing:
        raise SourceOptionInvalid(
            f"the option {missing[0]} of {NAME} is missing", action=f"it needs {', '.join(REQUIRED)}"
        )
    topic = given["topic"]
    until = given.get("endingOffsets")
    messages_max = given.get("maxMessagesPerBatch")
    return RawRequest(
        _job(given, options),
        _start(given, topic),
        None if messages_max is None else _whole_number("maxMessagesPerBatch", messages_max, least=1),
        None if until is None else offsets_of(_parsed("endingOffsets", until), topic),
    )


def _known(options: Mapping[str, str]) -> dict[str, str]:
    """The options by their own names, without those of Kafka's client. Raises SourceOptionInvalid."""
    names = {_plain(name): name for name in OPTIONS}
    known: dict[str, str] = {}
    for name, value in options.items():
        if name.lower().startswith(KAFKA_PREFIX):
            continue
        if _plain(name) not in names:
            near = difflib.get_close_matches(_plain(name), names, n=3)
            listed = " or ".join(names[each] for each in near)
            raise SourceOptionInvalid(
                f"{NAME} has no option {name!r}",
                action=f"did you mean {listed}?" if near else f"it has {', '.join(OPTIONS)} and {KAFKA_PREFIX}<name>",
            )
        known[names[_plain(name)]] = value
    return known


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _job(given: Mapping[str, str], options: Mapping[str, str]) -> IngestJob:
    # librdkafka's names are lower case throughout, as Spark's options are.
    settings = {
        name[len(KAFKA_PREFIX) :]: value for name, value in options.items() if name.lower().startswith(KAFKA_PREFIX)
    }
    how = _mapped(given) if given.get("mapping") else _format_options(given)
    resolution, any_time = given.get("timeResolution", "us"), given.get("anyTime", "false").lower()
    if resolution not in tuple(TimeResolution):
        raise _invalid("timeResolution", resolution, f"use {' or '.join(TimeResolution)}")
    if any_time not in ("true", "false"):
        raise _invalid("anyTime", any_time, "use true or false")
    return IngestJob(
        given["cluster"],
        given["bootstrap"],
        given["topic"],
        given["database"],
        message_format(given["format"]),
        how,
        tuple(sorted(settings.items())),
        given.get("compression", "zstd"),
        TimeResolution(resolution),
        any_time == "true",
    )


def _format_options(given: Mapping[str, str]) -> FormatOptions:
    return FormatOptions(
        table=given.get("table") or None,
        table_column=given.get("tableColumn") or None,
        tags=_listed(given.get("tags", "")),
        static_tags=_static_tags(given.get("staticTags", "")),
        time_column=given.get("timeColumn", "time"),
        time_unit=given.get("timeUnit", "ns"),  # type: ignore[arg-type]
        time_format=given.get("timeFormat") or None,
        columns=_listed(given.get("columns", "")),
        sources=_sources(given.get("sources", "")),
        typed=_field_types(given.get("fieldTypes", "")),
        schemas=_schemas(given),
    )


def _mapped(given: Mapping[str, str]) -> FormatOptions:
    """The options of a mapping, which has all about the table."""
    for name in MAPPED:
        if given.get(name):
            raise _invalid(name, given[name], "the option mapping has this: give one of them")
    try:
        text = Path(given["mapping"]).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise _invalid("mapping", given["mapping"], f"it is no file that can be read: {error}") from error
    mapping = read_mapping(text, given["topic"])
    if mapping.database not in (None, given["database"]):
        raise _invalid("database", given["database"], f"the mapping has {mapping.database!r}")
    return replace(mapping.options, schemas=_schemas(given))


def _schemas(given: Mapping[str, str]) -> SchemaPlace:
    return SchemaPlace(
        given.get("schemaDir") or None,
        given.get("registry") or None,
        given.get("registryUser", ""),
        given.get("registryPassword", ""),
    )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _sources(text: str) -> tuple[tuple[tuple[str, ...], str], ...]:
    """`{"x": ["values", "x"]}` as paths and names."""
    document = _parsed("sources", text) if text else {}
    if not isinstance(document, dict) or not all(isinstance(path, list) and path for path in document.values()):
        raise _invalid("sources", text, 'give a JSON object of paths, as {"x": ["values", "x"]}')
    return tuple((tuple(map(str, path)), name) for name, path in document.items())


def _field_types(text: str) -> tuple[tuple[str, FieldType], ...]:
    """`{"x": "float64"}` as pairs."""
    document = _parsed("fieldTypes", text) if text else {}
    if not isinstance(document, dict) or not all(kind in tuple(FieldType) for kind in document.values()):
        raise _invalid("fieldTypes", text, f"give a JSON object of types: {', '.join(FieldType)}")
    return tuple((name, FieldType(kind)) for name, kind in document.items())


def _static_tags(text: str) -> tuple[tuple[str, str], ...]:
    """`{"site": "north"}` as pairs."""
    if not text:
        return ()
    document = _parsed("staticTags", text)
    if not isinstance(document, dict) or not all(isinstance(value, str) for value in document.values()):
        raise _invalid("staticTags", text, 'give a JSON object of texts, as {"site": "north"}')
    return tuple(document.items())


def _start(given: Mapping[str, str], topic: str) -> Start:
    timestamp, offsets = given.get("startingTimestamp"), given.get("startingOffsets", "earliest")
    strategy = given.get("startingOffsetsByTimestampStrategy", "error")
    if strategy not in ("error", "latest"):
        raise _invalid("startingOffsetsByTimestampStrategy", strategy, "use error or latest")
    if timestamp is not None:
        timestamp_ms = _whole_number("startingTimestamp", timestamp, least=0)
        return Start(timestamp_ms=timestamp_ms, or_latest=strategy == "latest")
    rule = _RULES.get(offsets.lower())
    if rule is not None:
        return Start(rule)
    return Start(offsets=offsets_of(_parsed("startingOffsets", offsets), topic))


def _whole_number(name: str, text: str, *, least: int) -> int:
    number = int(text) if text.isascii() and text.isdigit() else -1
    if number < least:
        raise _invalid(name, text, f"give a whole number of at least {least}")
    return number


def _parsed(name: str, text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise _invalid(name, text, "it is no JSON") from error


def _invalid(name: str, value: str, action: str) -> SourceOptionInvalid:
    return SourceOptionInvalid(f"the option {name} of {NAME} cannot be {value!r}", action=action)
