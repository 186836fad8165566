"""Mappings: TOML files that name, for topics, the table, the tags, the time and the fields of their messages."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from headrace.connectors.formats.interface import FormatOptions, InvalidLine, OptionsError, TimeUnit, check_column
from headrace.connectors.formats.paths import Path, near_names, path_of
from headrace.schemas.tables import TIME_COLUMN, FieldType

TABLE_NAME = "__table"
"""The name that the value of `table_path` gets; no field can have it."""
TOPIC_KEYS = ("database", "table", "table_path", "tags", "static_tags", "time", "fields", "columns")
TIME_KEYS = ("path", "unit", "format")
FIELD_KEYS = ("path", "type")


class MappingInvalid(OptionsError):
    """A mapping that cannot be used. The message names the key."""


@dataclass(frozen=True, slots=True)
class TopicMapping:
    """What a mapping has about one topic."""

    database: str | None
    options: FormatOptions


def read_mapping(text: str, topic: str) -> TopicMapping:
    """The part of a mapping for one topic. Raises MappingInvalid."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MappingInvalid(f"the mapping is not TOML: {error}") from None
    _check_keys(document, ("topics",), "the mapping")
    topics = _typed(document.get("topics", {}), dict, "topics", "a table")
    # All parts: a wrong key is found when the file is written, not when its topic is first read.
    parts = {name: _topic(_typed(part, dict, f"topics.{name}", "a table"), name) for name, part in topics.items()}
    if topic not in parts:
        raise MappingInvalid(f"the mapping has no topic {topic!r}", action=near_names(topic, list(parts)))
    return parts[topic]


def _topic(part: Mapping[str, Any], topic: str) -> TopicMapping:
    where = f"topic {topic!r}"
    _check_keys(part, TOPIC_KEYS, where)
    time = _typed(part.get("time", {}), dict, f"time of {where}", "a table")
    _check_keys(time, TIME_KEYS, f"the time of {where}")
    tags = _named_paths(part.get("tags", {}), f"tags of {where}", "tag")
    fields, types = _fields(part.get("fields", {}), where)
    _check_roles(part, tags, fields, where)
    sources = [(path, name) for name, path in (*tags.items(), *fields.items())]
    table_path, time_path = _text(part, "table_path", where), _text(time, "path", where)
    if time_path is not None:
        sources.append((_path(time_path, where), TIME_COLUMN))
    if table_path is not None:
        sources.append((_path(table_path, where), TABLE_NAME))
    if not fields:
        _check_plain(sources, where)
    _check_paths([path for path, _ in sources], where)
    static = _typed(part.get("static_tags", {}), dict, f"static_tags of {where}", "a table")
    columns = _typed(part.get("columns", []), list, f"columns of {where}", "a list of names")
    try:
        options = FormatOptions(
            table=_text(part, "table", where),
            tags=tuple(tags),
            static_tags=tuple(
                (name, _typed(value, str, f"{name} of {where}", "a text")) for name, value in static.items()
            ),
            time_column=TIME_COLUMN if fields else time_path or TIME_COLUMN,
            time_unit=_unit(_text(time, "unit", where) or "ns", where),
            time_format=_text(time, "format", where),
            table_column=None if table_path is None else TABLE_NAME if fields else table_path,
            columns=tuple(_typed(name, str, f"columns of {where}", "a list of names") for name in columns),
            sources=tuple(sources) if fields else (),
            typed=tuple(types.items()),
        )
    except MappingInvalid:
        raise
    except OptionsError as error:
        raise MappingInvalid(f"{where}: {error.message}", action=error.action) from None
    return TopicMapping(_text(part, "database", where), options)


def _fields(part: Any, where: str) -> tuple[dict[str, Path], dict[str, FieldType]]:
    """(paths of the fields, types of those that have one)."""
    paths: dict[str, Path] = {}
    types: dict[str, FieldType] = {}
    for name, given in _typed(part, dict, f"fields of {where}", "a table").items():
        _check_name("field", name, where)
        if isinstance(given, str):
            paths[name] = _path(given, where)
            continue
        given = _typed(given, dict, f"field {name!r} of {where}", "a path, or a table of path and type")
        _check_keys(given, FIELD_KEYS, f"field {name!r} of {where}")
        path, kind = _text(given, "path", where), _text(given, "type", where)
        paths[name] = (name,) if path is None else _path(path, where)
        if kind is not None:
            if kind not in tuple(FieldType):
                near = near_names(kind, [*FieldType])
                raise MappingInvalid(f"the type of field {name!r} of {where} cannot be {kind!r}", action=near)
            types[name] = FieldType(kind)
    return paths, types


def _check_roles(part: Mapping[str, Any], tags: Mapping[str, Path], fields: Mapping[str, Path], where: str) -> None:
    """Raises MappingInvalid for a name with two meanings: of two columns one would be lost."""
    static = part.get("static_tags", {})
    for name in fields:
        if name in tags or (isinstance(static, dict) and name in static):
            raise MappingInvalid(f"{where} names {name!r} as a tag and as a field", action="rename one of them")
    spellings: dict[str, str] = {}
    for name in (*tags, *(static if isinstance(static, dict) else ()), *fields):
        if (other := spellings.setdefault(name.lower(), name)) != name:
            raise MappingInvalid(
                f"{where} names {other!r} and {name!r}, which differ only in case", action="rename one"
            )


def _named_paths(part: Any, what: str, kind: str) -> dict[str, Path]:
    """`{name = "path"}`, or a list of names that are paths too."""
    if isinstance(part, list):
        part = {_typed(name, str, what, "names"): name for name in part}
    for name in _typed(part, dict, what, "a list of names, or a table of names and paths"):
        _check_name(kind, name, what)
    return {name: _path(_typed(path, str, what, "paths"), what) for name, path in part.items()}


def _check_plain(sources: Iterable[tuple[Path, str]], where: str) -> None:
    """Without fields all members are read, under their own names."""
    for path, name in sources:
        if len(path) > 1 or (name not in (TIME_COLUMN, TABLE_NAME) and path != (name,)):
            raise MappingInvalid(f"{where} names paths and no fields", action="name its fields too")


def _check_paths(paths: list[Path], where: str) -> None:
    for path in paths:
        if paths.count(path) > 1:
            raise MappingInvalid(f"{where} names the path {'.'.join(path)} twice")
        for other in paths:
            if len(other) > len(path) and other[: len(path)] == path:
                raise MappingInvalid(f"{where} names {'.'.join(path)}, and {'.'.join(other)} inside of it")


def _check_keys(part: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in part:
        if key not in known:
            raise MappingInvalid(f"{where} has no key {key!r}", action=near_names(key, known))


def _check_name(kind: str, name: str, where: str) -> None:
    try:
        check_column(kind, name)
    except InvalidLine as error:
        raise MappingInvalid(f"{where}: {error}") from None


def _typed(value: Any, kind: Callable[..., Any], what: str, wanted: str) -> Any:
    if not isinstance(value, kind):  # type: ignore[arg-type]
        raise MappingInvalid(f"{what} is not {wanted}")
    return value


def _text(part: Mapping[str, Any], key: str, where: str) -> str | None:
    value = part.get(key)
    if value is not None and (not isinstance(value, str) or not value):
        raise MappingInvalid(f"{key} of {where} is not a text")
    return value


def _path(text: str, where: str) -> Path:
    try:
        return path_of(text)
    except OptionsError as error:
        raise MappingInvalid(f"{where}: {error.message}", action=error.action) from None


def _unit(text: str, where: str) -> TimeUnit:
    for unit in get_args(TimeUnit):
        if unit == text:
            return unit  # type: ignore[no-any-return]
    raise MappingInvalid(f"the unit of the time of {where} cannot be {text!r}", action="use ns, us, ms, s, m or h")
