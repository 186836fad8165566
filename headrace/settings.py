"""Settings: `headrace.toml` in the current directory < environment `HEADRACE__SECTION__KEY` < flags.

Each room declares its own settings; here they become one tree. librdkafka's settings are the section `kafka`,
under the names that librdkafka gives them. A name that is not known is an error: a misspelt setting would
otherwise be silently without effect.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from headrace.consumers.node.settings import ServerSettings
from headrace.consumers.sync.send_settings import SendSettings
from headrace.schemas.addresses import USER_IN_ADDRESS, has_user
from headrace.schemas.errors import HeadraceError
from headrace.schemas.settings import MEGABYTES_MAX, THREADS_MAX, SettingsModel, user_settings

FILE_NAME = "headrace.toml"
PREFIX = "HEADRACE__"
KAFKA = "kafka"
FLAG = "flag"
MASK = "********"
_SECRET = re.compile(r"password|secret|token|jaas|^ssl_key$|key\.pem$|oauthbearer\.config$")
BOOLEANS = MappingProxyType({"true": True, "false": False, "yes": True, "no": False})
"""How a text, in any case, is a setting that is on or off."""
_ADDRESSES = ("cluster.bootstrap", "node.url", "node.http", "node.advertise", "node.flight")
_WHOLE_NUMBER = re.compile(r"\s*[+-]?\d+(_\d+)*\s*", re.ASCII)


class SettingsInvalid(HeadraceError):
    """A setting that does not exist or cannot have its value; names the setting and its origin."""

    exit_code = 2


class SettingMissing(SettingsInvalid):
    """A setting that has no default and is needed now."""


def _lower_case(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


LogLevel = Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower_case)]


class IngestSettings(SettingsModel):
    """What `headrace ingest run` may use; under spark-submit its own options decide."""

    threads: int = Field(default=2, ge=1, le=THREADS_MAX, description="threads of Spark, each with one Python process")
    driver_memory_mb: int = Field(default=1_024, ge=512, le=MEGABYTES_MAX, description="memory of Spark's Java process")
    rejected_share_max: float = Field(
        default=0.5, ge=0, le=1, description="ingest stops when a greater share of 1,000 lines or more is refused"
    )
    registry_user: str = Field(default="", description="user of the schema registry, if it wants one")
    registry_password: str = Field(default="", description="the password of that user")


class LogSettings(SettingsModel):
    """What a command logs on stderr."""

    level: LogLevel = Field(
        default="warning", description="debug, info, warning or error; unless it is set, a node says info"
    )


class Shown(NamedTuple):
    """A setting as it is shown: secrets are masked."""

    name: str
    value: Any
    origin: str
    meaning: str


class Settings(BaseSettings, ServerSettings):
    """All settings of one process, made by `load_settings`.

    `kafka` has what was set, not librdkafka's defaults.
    """

    model_config = SettingsConfigDict(frozen=True, strict=True, extra="forbid")

    ingest: IngestSettings = IngestSettings()
    send: SendSettings = SendSettings()
    log: LogSettings = LogSettings()
    _origins: Mapping[str, str] = PrivateAttr(default_factory=dict)

    def __init__(self, sources: Sequence[PydanticBaseSettingsSource] = ()) -> None:
        # Only these sources: those of pydantic-settings ignore unknown variables and cannot decode names of
        # librdkafka. Without sources all values are the defaults, whatever the environment has.
        super().__init__(_build_sources=(tuple(sources), {}))

    def value(self, name: str) -> Any:
        """The value of a setting such as `store.seal_rows`.

        Raises SettingsInvalid for one that does not exist.
        """
        section, _, key = name.partition(".")
        if section == KAFKA:
            return self.kafka.get(key)
        _check_known(name, "the program")
        return getattr(getattr(self, section), key)

    def origin(self, name: str) -> str:
        """Where the value of a setting comes from: `default`, the file, the environment variable, or `flag`."""
        return self._origins.get(name, "default")

    def require(self, name: str, flag: str = "") -> Any:
        """The value of a setting that must have been given; `flag` is its option on the command line.

        Raises SettingMissing.
        """
        value = self.value(name)
        if value in ("", (), None):
            ways = [*([flag] if flag else []), environment_name(name), f"{name} in {FILE_NAME}"]
            raise SettingMissing(f"{name} is not set", action=f"give {', '.join(ways[:-1])} or {ways[-1]}")
        return value

    def shown(self) -> list[Shown]:
        """Every setting, in order, as it may be shown to anyone."""
        rows = [
            Shown(name, _masked(name, self.value(name)), self.origin(name), field.description or "")
            for name, field in _known().items()
        ]
        for key, value in sorted(self.kafka.items()):
            name = f"{KAFKA}.{key}"
            rows.append(Shown(name, _masked(key, value), self.origin(name), "librdkafka's"))
        return rows


class Reading(NamedTuple):
    """One setting as one source gives it."""

    name: str
    value: object
    origin: str


class _Source(PydanticBaseSettingsSource):
    """The settings of one source as the nested values that pydantic checks."""

    def __init__(self, readings: Iterable[Reading]) -> None:
        super().__init__(Settings)
        self.readings = {reading.name: reading for reading in readings}

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """One section."""
        del field
        return self()[field_name], field_name, False

    def __call__(self) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        for name, value, origin in self.readings.values():
            section, _, key = name.partition(".")
            tree.setdefault(section, {})[key] = (
                _kafka_text(name, value, origin) if section == KAFKA else _typed(value, _known()[name].annotation)
            )
        return tree


def load_settings(
    flags: Mapping[str, object] = MappingProxyType({}),
    *,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Settings:
    """The settings of this process. Raises SettingsInvalid.

    `flags` maps names such as `cluster.bootstrap` (and `kafka.linger.ms`, or `kafka` to a mapping) to values;
    None means not given. The environment and the directory of `headrace.toml` are the process's own unless
    they are handed in.
    """
    sources = (
        _Source(_of_flags(flags)),
        _Source(_of_environment(os.environ if environment is None else environment)),
        _Source(_of_file((directory or Path()) / FILE_NAME)),
    )
    # The first source wins in pydantic-settings, and the last one in a dict.
    readings = {name: reading for source in reversed(sources) for name, reading in source.readings.items()}
    _check_addresses(readings)
    try:
        settings = Settings(sources)
    except ValidationError as error:
        # The first one only: one line names what to change, and the next run names the next.
        raise SettingsInvalid(_refusal(error.errors()[0], readings)) from None
    settings._origins = {name: reading.origin for name, reading in readings.items()}
    return settings


def is_secret(name: str) -> bool:
    """Whether the value of a setting must not be shown."""
    return _SECRET.search(name) is not None


def _masked(name: str, value: Any) -> Any:
    return MASK if value and is_secret(name) else value


def environment_name(name: str) -> str:
    """The environment variable of a setting: `store.seal_rows` → `HEADRACE__STORE__SEAL_ROWS`."""
    section, _, key = name.partition(".")
    if section == KAFKA:
        key = key.replace("_", "__").replace(".", "_")
    return f"{PREFIX}{section}__{key}".upper()


def _bare(variable: str) -> str:
    return variable.upper().replace("_", "")


@cache
def _known() -> dict[str, FieldInfo]:
    """Every setting but librdkafka's, by name."""
    return {
        f"{section}.{name}": field
        for section, holder in Settings.model_fields.items()
        if isinstance(holder.annotation, type) and issubclass(holder.annotation, SettingsModel)
        for name, field in user_settings(holder.annotation).items()
    }


# Not left to pydantic, which would take the names of internal limits, and suggests no near names.
def _check_known(name: str, origin: str) -> None:
    section, _, key = name.partition(".")
    known = _known()
    if (section == KAFKA and key) or name in known:
        return
    near = difflib.get_close_matches(name, known, n=3)
    action = f"did you mean {' or '.join(near)}?" if near else "`headrace config show` lists the settings"
    raise SettingsInvalid(f"there is no setting {name!r} (from {origin})", action=action)


def _check_addresses(readings: Mapping[str, Reading]) -> None:
    # Here and not where they are used: `config show` and errors about other settings print them.
    for name, value, origin in readings.values():
        if name in _ADDRESSES and has_user(str(value)):
            ways = f"{KAFKA}.sasl.username and {KAFKA}.sasl.password" if name == "cluster.bootstrap" else ""
            raise SettingsInvalid(
                f"{name} (from {origin}) {USER_IN_ADDRESS}",
                action=f"set {ways}" if ways else "nodes take none: leave it out",
            )


# Sources.


def _of_flags(flags: Mapping[str, object]) -> Iterator[Reading]:
    for name, value in _flattened(flags):
        if value is not None:
            _check_known(name, FLAG)
            yield Reading(name, value, FLAG)


def _of_environment(environment: Mapping[str, str]) -> Iterator[Reading]:
    """In a librdkafka name `_` is a dot and `__` an underscore."""
    meant = {_bare(environment_name(name)): name for name in _known()}
    for variable, text in sorted(environment.items()):
        if not variable.startswith(PREFIX):
            # One underscore too few would leave the setting as it is, and nothing would show that.
            if variable.upper().startswith("HEADRACE_") and (name := meant.get(_bare(variable))) is not None:
                raise SettingsInvalid(
                    f"the variable {variable} is no setting", action=f"did you mean {environment_name(name)}?"
                )
            continue
        # Lower case: the names of variables are upper case by custom, those of settings and of librdkafka
        # never are.
        section, _, key = variable.removeprefix(PREFIX).lower().partition("__")
        if section == KAFKA:
            key = key.replace("__", "\0").replace("_", ".").replace("\0", "_")
        name = f"{section}.{key}" if key else section
        _check_known(name, variable)
        yield Reading(name, text, variable)


def _of_file(path: Path) -> Iterator[Reading]:
    try:
        # Editors of Windows begin a file with a byte order mark, which TOML does not know.
        text = path.read_text("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            # Somebody wants settings here: without them the command would work at another cluster.
            raise SettingsInvalid(f"{path} is a link to {os.readlink(path)}, which does not exist") from None
        return
    except OSError as error:
        raise SettingsInvalid(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsInvalid(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
    try:
        content = tomllib.loads(text)
    # TOMLDecodeError is one; the other is a number of more digits than Python reads.
    except ValueError as error:
        raise SettingsInvalid(f"{path} is not TOML: {error}") from error
    for name, value in _flattened(content):
        _check_known(name, str(path))
        yield Reading(name, value, FILE_NAME)


def _flattened(content: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Nested tables as dotted names, so that `[kafka]` takes `linger.ms = 5` with and without quotes."""
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


# Values and refusals.


def _typed(value: object, kind: Any) -> object:
    """The value of a text for a setting of a kind; validation refuses what does not fit."""
    if isinstance(value, Path):
        return str(value)
    # TOML has lists where the models have tuples, which cannot be changed behind their back.
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, str):
        return value
    if kind is bool:
        return BOOLEANS.get(value.strip().lower(), value)
    if kind is float or (kind is int and _WHOLE_NUMBER.fullmatch(value)):
        try:
            return kind(value)
        # Also a whole number of more digits than Python reads.
        except ValueError:
            return value
    if kind == tuple[str, ...]:
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _kafka_text(name: str, value: object, origin: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise SettingsInvalid(f"{name} (from {origin}) is not a text, a number or a boolean")


_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "bool_type": "true or false (as a text also yes or no)",
        "int_type": "a whole number",
        "float_type": "a number",
        "string_type": "a text",
        "tuple_type": "a list of names",
    }
)


def _refusal(error: ErrorDetails, readings: Mapping[str, Reading]) -> str:
    """pydantic's first error as one line that names the setting, its value and where it comes from."""
    section, key, *place = map(str, error["loc"])
    reading = readings[f"{section}.{key}"]
    given, kind, context = (
        f"{reading.name} = {_masked(reading.name, reading.value)!r} (from {reading.origin})",
        error["type"],
        error.get("ctx", {}),
    )
    if place:
        return f"{given} is not {_KINDS['tuple_type']}"
    # No bound holds it: without this the first one would be the reason.
    if isinstance(error["input"], float) and math.isnan(error["input"]):
        return f"{given} is not {_KINDS['float_type']}"
    if kind in _KINDS:
        return f"{given} is not {_KINDS[kind]}"
    if kind == "greater_than_equal":
        return f"{given} is less than {_figure(context['ge'])}"
    if kind == "less_than_equal":
        return f"{given} is more than {_figure(context['le'])}"
    if kind == "literal_error":
        return f"{given} is none of {', '.join(get_args(_known()[reading.name].annotation))}"
    return f"{given}: {error['msg']}"


def _figure(bound: float) -> str:
    return f"{int(bound):,}" if bound == int(bound) else f"{bound:g}"
