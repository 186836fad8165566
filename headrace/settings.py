"""Settings: `headrace.toml` in the current directory < environment `HEADRACE__SECTION__KEY` < flags.

Every setting stands here once, with its default, its bounds and what it means. librdkafka's settings are the section `kafka`, under the names
that librdkafka gives them. A name that is not known is an error: a misspelt setting would otherwise be silently without effect.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, get_type_hints

from schemas.errors import HeadraceError

FILE_NAME = "headrace.toml"
PREFIX = "HEADRACE__"
KAFKA = "kafka"
MASK = "********"
_SECRET = re.compile(r"password|secret|token|jaas|^ssl_key$|key\.pem$|oauthbearer\.config$")
LOG_LEVELS = ("debug", "info", "warning", "error")
_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})


class SettingsInvalid(HeadraceError):
    """A setting that does not exist, or a value that it cannot have; names the setting and where it comes from."""

    exit_code = 2


class SettingMissing(SettingsInvalid):
    """A setting that has no default and is needed now."""


def _setting(
    default: Any,
    meaning: str,
    minimum: int | None = None,
    maximum: int | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    bounds = {"minimum": minimum, "maximum": maximum, "choices": choices}
    return field(default=default, metadata={"meaning": meaning, **bounds})


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Which cluster, and where its Kafka is."""

    name: str = _setting("headrace", "name of the cluster, the prefix of its topics")
    bootstrap: str = _setting("127.0.0.1:9092", "Kafka's bootstrap servers, host:port separated by commas")
    slots: int = _setting(10_000, "slots of a new cluster; fixed at its birth", 1)


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """One node, and how to reach one."""

    id: str = _setting("", "name of this node")
    nodes: tuple[str, ...] = _setting((), "names of all nodes of a new cluster, this one among them")
    replication: int = _setting(0, "nodes that hold each row; 0 = all of them", 0)
    http: str = _setting("127.0.0.1:0", "address of this node's HTTP surface; port 0 takes a free one")
    data_dir: str = _setting("", "directory of this node's data")
    startup_timeout_s: float = _setting(60.0, "how long a starting node waits for Kafka", 0)
    url: str = _setting("", "URL of the node to ask, such as http://127.0.0.1:8080; empty = any live one")


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """When a node seals, and what it may use for it."""

    seal_rows: int = _setting(2_000_000, "a group seals when it holds this many unsealed rows", 1)
    seal_bytes: int = _setting(268_435_456, "or this many bytes of unsealed messages", 1)
    seal_age_ms: int = _setting(300_000, "or unsealed rows this old", 1)
    apply_queue_bytes: int = _setting(67_108_864, "messages that may lie between journal and memtable", 1)
    encode_threads: int = _setting(2, "threads of the node that encode the files of seals", 1)
    compression_level: int = _setting(1, "zstd level of sealed files; higher is smaller and slower", 1, 22)
    log_keep_records: int = _setting(0, "records of a group's log that trimming leaves; 0 = never trim", 0)
    recovery_bytes_per_second: int = _setting(0, "most bytes that a recovery copies from another node; 0 = no limit", 0)
    recoveries_max: int = _setting(2, "groups that are copied from other nodes at the same time", 1)
    scrub_interval_s: float = _setting(
        86_400.0, "how long after a look at all files for changed bytes the next one begins", 1
    )
    scrub_bytes_per_second: int = _setting(67_108_864, "most bytes of files that are looked at; 0 = no limit", 0)


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """What the queries of a node may use together."""

    memory_limit_mb: int = _setting(1_000, "memory of all running queries", 16)
    threads: int = _setting(2, "threads of all running queries", 1)
    timeout_ms: int = _setting(60_000, "the most time that a query may take", 1)
    queries_max: int = _setting(8, "queries that run at the same time; more are refused, to be asked again", 1)
    spill_directory: str = _setting("", "where queries that outgrow their memory may write; empty = they fail instead")
    spill_mb_max: int = _setting(4_000, "the most that they may write there together", 1)


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """What `headrace ingest run` may use; under spark-submit its own options decide."""

    threads: int = _setting(2, "threads of Spark, each with one Python process", 1)
    driver_memory_mb: int = _setting(1_024, "memory of Spark's Java process", 512)


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """How writers behave."""

    quorum: int = _setting(1, "0 = not awaited, 1 = in the log, k = durable at k members", 0)
    quorum_timeout_ms: int = _setting(2_000, "how long to wait for a quorum of 2 or more", 1)
    compression: str = _setting(
        "zstd", "of the rows in a message: zstd, lz4 or none; zstd is smallest", choices=("zstd", "lz4", "none")
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What a command says of itself on stderr."""

    level: str = _setting(
        "warning", "debug, info, warning or error; unless it is set, a node says info", choices=LOG_LEVELS
    )


_SECTIONS: Mapping[str, type] = MappingProxyType(
    {
        "cluster": ClusterSettings,
        "node": NodeSettings,
        "store": StoreSettings,
        "query": QuerySettings,
        "write": WriteSettings,
        "ingest": IngestSettings,
        "log": LogSettings,
    }
)


class Shown(NamedTuple):
    """A setting as it is shown: secrets are masked."""

    name: str
    value: Any
    origin: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one process. `kafka` maps librdkafka's names to texts; it has what was set, not librdkafka's defaults."""

    cluster: ClusterSettings = ClusterSettings()
    node: NodeSettings = NodeSettings()
    store: StoreSettings = StoreSettings()
    query: QuerySettings = QuerySettings()
    write: WriteSettings = WriteSettings()
    ingest: IngestSettings = IngestSettings()
    log: LogSettings = LogSettings()
    kafka: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict, repr=False)

    def value(self, name: str) -> Any:
        """The value of a setting such as `store.seal_rows`. Raises SettingsInvalid for one that does not exist."""
        section, _, key = name.partition(".")
        if section == KAFKA:
            return self.kafka.get(key)
        _check_known(name, "the program")
        return getattr(getattr(self, section), key)

    def origin(self, name: str) -> str:
        """Where the value of a setting comes from: `default`, the file, the environment variable, or `flag`."""
        return self.origins.get(name, "default")

    def require(self, name: str, flag: str = "") -> Any:
        """The value of a setting that must have been given; `flag` is how the command line calls it. Raises SettingMissing."""
        value = self.value(name)
        if value in ("", (), None):
            ways = [*([flag] if flag else []), environment_name(name), f"{name} in {FILE_NAME}"]
            raise SettingMissing(f"{name} is not set", action=f"give {', '.join(ways[:-1])} or {ways[-1]}")
        return value

    def shown(self) -> list[Shown]:
        """Every setting, in order, as it may be shown to anyone."""
        rows = [
            Shown(name, self.value(name), self.origin(name), item.metadata["meaning"])
            for name, item in _known().items()
        ]
        for key, value in sorted(self.kafka.items()):
            name = f"{KAFKA}.{key}"
            rows.append(Shown(name, MASK if is_secret(key) else value, self.origin(name), "librdkafka's"))
        return rows


def load_settings(
    flags: Mapping[str, object] = MappingProxyType({}),
    *,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Settings:
    """The settings of this process. Raises SettingsInvalid.

    `flags` maps names such as `cluster.bootstrap` (and `kafka.linger.ms`, or `kafka` to a mapping) to values; None means not given. The
    environment and the directory of `headrace.toml` are the process's own unless they are handed in.
    """
    found: dict[str, tuple[object, str]] = {}
    for name, value in _of_file((directory or Path()) / FILE_NAME):
        found[name] = value, FILE_NAME
    for variable, name, text in _of_environment(os.environ if environment is None else environment):
        _check_known(name, variable)
        found[name] = text, variable
    for name, value in _flattened(flags):
        if value is not None:
            _check_known(name, "flag")
            found[name] = value, "flag"
    return _settings(found)


def is_secret(name: str) -> bool:
    """Whether the value of a librdkafka setting must not be shown."""
    return _SECRET.search(name) is not None


def environment_name(name: str) -> str:
    """The environment variable of a setting: `store.seal_rows` → `HEADRACE__STORE__SEAL_ROWS`."""
    section, _, key = name.partition(".")
    if section == KAFKA:
        key = key.replace("_", "__").replace(".", "_")
    return f"{PREFIX}{section}__{key}".upper()


def _settings(found: Mapping[str, tuple[object, str]]) -> Settings:
    values: dict[str, dict[str, Any]] = {name: {} for name in (*_SECTIONS, KAFKA)}
    for name, (value, origin) in found.items():
        section, _, key = name.partition(".")
        if section == KAFKA:
            values[KAFKA][key] = _kafka_text(name, value, origin)
        else:
            values[section][key] = _parsed(name, value, origin)
    sections = {name: made(**values[name]) for name, made in _SECTIONS.items()}
    origins = {name: origin for name, (_, origin) in found.items()}
    return Settings(**sections, kafka=MappingProxyType(values[KAFKA]), origins=MappingProxyType(origins))


@cache
def _known() -> dict[str, Any]:
    return {f"{section}.{item.name}": item for section, made in _SECTIONS.items() for item in fields(made)}


def _check_known(name: str, origin: str) -> None:
    section, _, key = name.partition(".")
    known = _known()
    if (section == KAFKA and key) or name in known:
        return
    near = difflib.get_close_matches(name, known, n=3)
    action = f"did you mean {' or '.join(near)}?" if near else "`headrace config show` lists the settings"
    raise SettingsInvalid(f"there is no setting {name!r} (from {origin})", action=action)


def _of_file(path: Path) -> Iterator[tuple[str, object]]:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return
    except UnicodeDecodeError as error:
        raise SettingsInvalid(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsInvalid(f"{path} is not TOML: {error}") from error
    for name, value in _flattened(content):
        _check_known(name, str(path))
        yield name, value


def _flattened(content: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Nested tables as dotted names, so that `[kafka]` takes `linger.ms = 5` with and without quotes."""
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _of_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """(variable, setting, text). In a librdkafka name `_` stands for a dot and `__` for an underscore."""
    for variable, text in sorted(environment.items()):
        if not variable.startswith(PREFIX):
            continue
        section, _, key = variable.removeprefix(PREFIX).lower().partition("__")
        if section == KAFKA:
            key = key.replace("__", "\0").replace("_", ".").replace("\0", "_")
        yield variable, f"{section}.{key}" if key else section, text


def _parsed(name: str, value: object, origin: str) -> Any:
    section, _, key = name.partition(".")
    kind = get_type_hints(_SECTIONS[section])[key]
    converted = _PARSERS[kind](value)
    if converted is None:
        raise SettingsInvalid(f"{name} = {value!r} (from {origin}) is not {_NAMES[kind]}")
    bounds = _known()[name].metadata
    given = f"{name} = {value!r} (from {origin})"
    if bounds["minimum"] is not None and not converted >= bounds["minimum"]:
        raise SettingsInvalid(f"{given} is less than {bounds['minimum']}")
    if bounds["maximum"] is not None and not converted <= bounds["maximum"]:
        raise SettingsInvalid(f"{given} is more than {bounds['maximum']}")
    if not bounds["choices"]:
        return converted
    if converted.lower() not in bounds["choices"]:
        raise SettingsInvalid(f"{given} is none of {', '.join(bounds['choices'])}")
    return converted.lower()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else str(value) if isinstance(value, Path) else None


def _integer(value: object) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(_\d+)*", value.strip(), re.ASCII):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _decimal(value: object) -> float | None:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _boolean(value: object) -> bool | None:
    if isinstance(value, str):
        return True if value.lower() in _TRUE else False if value.lower() in _FALSE else None
    return value if isinstance(value, bool) else None


def _names(value: object) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
        return tuple(value)
    return None


_PARSERS: Mapping[Any, Any] = {str: _text, int: _integer, float: _decimal, bool: _boolean, tuple[str, ...]: _names}
_NAMES: Mapping[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple[str, ...]: "a list of names",
}


def _kafka_text(name: str, value: object, origin: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise SettingsInvalid(f"{name} (from {origin}) is not a text, a number or a boolean")
