"""The options of `format("headrace")`, from Spark's texts to checked values.

Spark hands every option over as a text, its name in lower case. A name that is unknown is an error: a misspelt one
would otherwise be silently without effect.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from headrace.connectors.log.topics import Topics
from headrace.schemas.addresses import USER_IN_ADDRESS, has_user
from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import ROW_TIME_MAX_NS, ROW_TIME_MIN_NS, TimeResolution

CLUSTER_DEFAULT = "headrace"
KAFKA_PREFIX = "kafka."
COMMON = ("cluster", "bootstrap", "table", "token")
READ = ("columns", "start", "end", "node", "time", "pushFilters")
STREAM = ("startingOffsets", "maxRecordsPerBatch", "minPartitions", "ignoreDeletes", "metadata", "columns", "time")
WRITE = ("tags", "quorum")
# Spark adds these to the options of a query that writes.
_SPARK_OWN = ("checkpointlocation", "queryname", "outputmode", "path")
# No limit by default: with a limit `availableNow` ends after one batch, for Spark asks only once where the end is.
RECORDS_PER_BATCH = 2**62
_NEAR_MAX = 3
_ISO = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)"
    r"(?:(?P<seconds>[T ]\d\d:\d\d(?::\d\d)?)(?:\.(?P<digits>\d{1,9}))?(?P<zone>Z|[+-]\d\d:?\d\d)?)?",
    re.ASCII,
)
_WHOLE_NUMBER = re.compile(r"[+-]?\d{1,19}", re.ASCII)


class OptionInvalid(HeadraceError):
    """An option of `format("headrace")` that does not exist, is missing, or has a value that it cannot have."""


@dataclass(frozen=True, slots=True)
class Target:
    """A table of a cluster, and how to reach the cluster. Plain values, which Spark pickles to its workers.

    `kafka` are settings of librdkafka, as (name, value). `bootstrap` is empty where only nodes are asked.
    """

    database: str
    table: str
    cluster: str = CLUSTER_DEFAULT
    bootstrap: str = ""
    # Secrets are in no `repr`: it ends up in plans, logs and error messages.
    kafka: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    token: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        """`database.table`."""
        return f"{self.database}.{self.table}"

    @property
    def topics(self) -> Topics:
        """The topics of the cluster."""
        return Topics(self.cluster)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a batch source reads: columns (none = all), times in [start_ns, end_ns); `time_as_long`: ns, not timestamps.

    `pushes_filters`: nodes evaluate filters of a query, see `batch_source`.
    """

    target: Target
    columns: tuple[str, ...] = ()
    start_ns: int | None = None
    end_ns: int | None = None
    node: str = ""
    time_as_long: bool = False
    pushes_filters: bool = False


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What a stream source follows. `metadata` adds the columns `_group` and `_offset`.

    `tasks_min`: the fewest tasks of a batch that has as many records.
    """

    target: Target
    columns: tuple[str, ...] = ()
    time_as_long: bool = False
    from_latest: bool = False
    records_per_batch_max: int = RECORDS_PER_BATCH
    ignore_deletes: bool = False
    metadata: bool = False
    tasks_min: int = 1


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How a sink writes: the columns that are tags, the members that must confirm each batch, and the resolution of a
    table that it makes.

    `makes_table`: the table was not there when the write was planned, and no tags are named.
    """

    target: Target
    tags: tuple[str, ...] = ()
    quorum: int = 1
    resolution: TimeResolution = TimeResolution.US
    makes_table: bool = False


def schema_options(options: Mapping[str, str]) -> tuple[Target, str, tuple[str, ...], bool, bool]:
    """(target, node, columns, time as long, metadata): what decides the columns of a source.

    Spark asks for them before it tells whether the source is a batch or a stream.
    """
    given = _checked(options, {*READ, *STREAM})
    # What is wrong with a stream alone is an error of `load` as well, and not of its first batch.
    _stream_limits(given)
    node = _node(given)
    return (
        _target(given, needs_kafka=not node),
        node,
        _names(given, "columns"),
        _time_as_long(given),
        _flag(given, "metadata"),
    )


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a batch source. Raises OptionInvalid."""
    given = _checked(options, READ)
    node = _node(given)
    start_ns, end_ns = _time_ns(given, "start"), _time_ns(given, "end")
    if start_ns is not None and end_ns is not None and start_ns >= end_ns:
        raise OptionInvalid(
            f"option start ({given['start']}) is not before end ({given['end']})",
            action="times are start <= time < end",
        )
    return ReadOptions(
        _target(given, needs_kafka=not node),
        _names(given, "columns"),
        start_ns,
        end_ns,
        node,
        _time_as_long(given),
        _flag(given, "pushFilters"),
    )


def stream_options(options: Mapping[str, str]) -> StreamOptions:
    """The options of a stream source. Raises OptionInvalid."""
    given = _checked(options, STREAM)
    from_latest, records_max, tasks_min, ignore_deletes = _stream_limits(given)
    return StreamOptions(
        _target(given, needs_kafka=True),
        _names(given, "columns"),
        _time_as_long(given),
        from_latest,
        records_max,
        ignore_deletes,
        _flag(given, "metadata"),
        tasks_min,
    )


def _stream_limits(given: Mapping[str, str]) -> tuple[bool, int, int, bool]:
    """(from the latest offsets, most records of a batch, fewest tasks, ignore deletes)."""
    return (
        _one_of(given, "startingOffsets", ("earliest", "latest")) == "latest",
        _number(given, "maxRecordsPerBatch", RECORDS_PER_BATCH, least=1),
        _number(given, "minPartitions", 1, least=1),
        _flag(given, "ignoreDeletes"),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options of a sink. Raises OptionInvalid."""
    given = _checked({name: value for name, value in options.items() if name.lower() not in _SPARK_OWN}, WRITE)
    return WriteOptions(_target(given, needs_kafka=True), _names(given, "tags"), _number(given, "quorum", 1, least=0))


def near(name: str, known: Iterable[str]) -> str:
    """`did you mean …?`, else the names that there are."""
    names = list(known)
    lower = {each.lower(): each for each in names}
    found = difflib.get_close_matches(name.lower(), lower, n=_NEAR_MAX)
    return f"did you mean {' or '.join(lower[each] for each in found)}?" if found else f"there are {', '.join(names)}"


def _checked(options: Mapping[str, str], own: Iterable[str]) -> dict[str, str]:
    """Options under the names of this page; those of librdkafka with their prefix. Raises OptionInvalid."""
    known = {name.lower(): name for name in (*COMMON, *sorted(own))}
    given: dict[str, str] = {}
    for name, value in options.items():
        lower = name.lower()
        if lower.startswith(KAFKA_PREFIX):
            given[lower] = value
        elif lower in known:
            given[known[lower]] = value
        else:
            hint = near(lower, [*known.values(), f"{KAFKA_PREFIX}<name of librdkafka>"])
            raise OptionInvalid(f"there is no option {name!r} here", action=hint)
    return given


def _target(given: Mapping[str, str], *, needs_kafka: bool) -> Target:
    database, dot, table = given.get("table", "").partition(".")
    if not (database and dot and table):
        raise OptionInvalid(
            f"option table is {given.get('table', '')!r}", action='give it as "database.table", like plant.pumps'
        )
    if needs_kafka and not given.get("bootstrap"):
        raise OptionInvalid("option bootstrap is missing", action="give Kafka's address, like 127.0.0.1:9092")
    kafka = {name.removeprefix(KAFKA_PREFIX): value for name, value in given.items() if name.startswith(KAFKA_PREFIX)}
    return Target(
        database,
        table,
        given.get("cluster") or CLUSTER_DEFAULT,
        given.get("bootstrap", ""),
        tuple(sorted(kafka.items())),
        given.get("token", ""),
    )


def _node(given: Mapping[str, str]) -> str:
    from headrace.connectors.http import base_url

    address = given.get("node", "")
    # First, so that no message repeats the password.
    if has_user(address):
        raise OptionInvalid(f"option node {USER_IN_ADDRESS}", action="nodes take none: leave it out")
    try:
        return base_url(address) if address else ""
    except ValueError:
        raise OptionInvalid(
            f"option node is {address!r}, which is not the address of a node", action="write it like 127.0.0.1:8080"
        ) from None


def _names(given: Mapping[str, str], option: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in given.get(option, "").split(",") if name.strip())
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise OptionInvalid(f"option {option} names {sorted(twice)[0]!r} twice", action="name each column once")
    return names


def _time_as_long(given: Mapping[str, str]) -> bool:
    return _one_of(given, "time", ("timestamp", "long")) == "long"


def _one_of(given: Mapping[str, str], option: str, values: tuple[str, ...]) -> str:
    value = given.get(option, values[0]).strip().lower()
    if value not in values:
        raise OptionInvalid(f"option {option} is {given[option]!r}", action=f"use one of {', '.join(values)}")
    return value


def _flag(given: Mapping[str, str], option: str) -> bool:
    return _one_of(given, option, ("false", "true")) == "true"


def _number(given: Mapping[str, str], option: str, default: int, *, least: int) -> int:
    text = given.get(option, str(default)).strip()
    if not _WHOLE_NUMBER.fullmatch(text) or int(text) < least:
        raise OptionInvalid(f"option {option} is {text!r}", action=f"give a whole number from {least} on")
    return int(text)


def _time_ns(given: Mapping[str, str], option: str) -> int | None:
    text = given.get(option, "").strip()
    if not text:
        return None
    time_ns = int(text) if _WHOLE_NUMBER.fullmatch(text) else _iso_ns(text)
    if time_ns is None or not ROW_TIME_MIN_NS <= time_ns <= ROW_TIME_MAX_NS:
        raise OptionInvalid(
            f"option {option} is {text!r}, which is no time from 1677 to 2262",
            action="use ISO 8601 like 2026-01-01T00:00:00Z (UTC without a zone), or nanoseconds since 1970",
        )
    return time_ns


def _iso_ns(text: str) -> int | None:
    """An ISO 8601 time with up to nine digits of a second, in ns since 1970 UTC."""
    parts = _ISO.fullmatch(text)
    if parts is None:
        return None
    seconds, zone = parts["seconds"] or "T00:00:00", parts["zone"] or "+00:00"
    try:
        moment = datetime.fromisoformat(f"{parts['date']}{seconds}{zone}")
    except ValueError:
        return None
    elapsed = moment - datetime.fromisoformat("1970-01-01T00:00:00+00:00")
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000_000 + int((parts["digits"] or "").ljust(9, "0"))
