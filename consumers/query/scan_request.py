"""A scan of one group for a query of another node: the document of the request, checked where it arrives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.consumers.query.fragment_sql import FragmentSql
from headrace.consumers.query.hand_overs import from_list, to_list
from headrace.consumers.query.query_errors import QueryError
from headrace.schemas.group_changes import GroupKey, HandOverPosition
from headrace.schemas.group_names import FIRST_BIRTH, group_name
from headrace.schemas.tables import TIME_COLUMN, FieldType, TableSchema

SCAN_ROUTE = "/api/v1/scan"
TAG_VALUES_MAX = 1_000
"""Values of tags that a request names; with more of them the rows are not narrowed by tags."""
TAG_TYPE = pa.dictionary(pa.int32(), pa.string())


class ScanInvalid(QueryError):
    """A request for a scan that cannot be understood."""


@dataclass(frozen=True, slots=True)
class RemoteScanRequest:
    """The rows of one table in one group, with the conditions of `TableSource.scan`.

    `version` is that of the asker's schema: the answer is of this one or a newer one. `after` is a log offset that
    the answer contains, -1 for none. `timeout_ms` is what is left of the query's time, and `wait_ms` the most of it
    to wait for `after`. `birth` is that of the group, 0 for any. The answer is that of slot table `table_version`,
    0 for any, and has what the group must have `accepted`, by the origin of the hand-over. `fragment` runs over these
    rows where they are. `newest`: the newest row of each series is enough if these columns are not null there.
    `profiled`: the answer has the figures of EXPLAIN ANALYZE.
    """

    group: str
    database: str
    table: str
    version: int
    columns: tuple[str, ...]
    start_ns: int | None
    end_ns: int | None
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    after: int = -1
    timeout_ms: int = 1
    wait_ms: int = 1
    birth: int = 0
    table_version: int = 1
    accepted: Mapping[GroupKey, HandOverPosition] = field(default_factory=dict)
    fragment: FragmentSql | None = None
    newest: tuple[str, ...] | None = None
    profiled: bool = False

    @property
    def name(self) -> str:
        """The name of the group with its birth."""
        return group_name(GroupKey(self.group, self.birth or FIRST_BIRTH))

    def document(self) -> dict[str, Any]:
        """The request as JSON values."""
        tags = self.tags if sum(len(values) for values in self.tags.values()) <= TAG_VALUES_MAX else {}
        return {name: getattr(self, name) for name in _TEXTS + _NUMBERS + _TIMES} | {
            "columns": list(self.columns),
            "tags": {tag: list(values) for tag, values in tags.items()},
            **self._changes(),
            **self._work(),
        }

    def _changes(self) -> dict[str, Any]:
        """What a build knows only in a cluster whose members have changed; others refuse unknown parameters."""
        found: dict[str, Any] = {} if self.birth in (0, FIRST_BIRTH) else {"birth": self.birth}
        if self.table_version != 1:
            found["table_version"] = self.table_version
        return found | ({"accepted": to_list(self.accepted)} if self.accepted else {})

    def _work(self) -> dict[str, Any]:
        """What only a part of the requests has."""
        found: dict[str, Any] = {} if self.fragment is None else {"fragment": self.fragment.document()}
        if self.newest is not None:
            found["newest"] = list(self.newest)
        return found | ({"profiled": True} if self.profiled else {})

    @classmethod
    def parse(cls, document: Any) -> RemoteScanRequest:
        """The inverse of `document`. Raises ScanInvalid, which names what is wrong."""
        if not isinstance(document, dict):
            raise ScanInvalid("the body is not a JSON object")
        if unknown := sorted(set(document) - {*_TEXTS, *_NUMBERS, *_TIMES, *_CHANGES, *_WORK, "columns", "tags"}):
            raise ScanInvalid(f"there is no parameter {unknown[0]!r}")
        for name in _TEXTS:
            if not isinstance(document.get(name), str) or not document[name]:
                raise ScanInvalid(f"{name} is not a name")
        for name in (*_NUMBERS, *_TIMES):
            if not (_is_int64(document.get(name)) or (name in _TIMES and document.get(name) is None)):
                raise ScanInvalid(f"{name} is not a whole number")
        columns, tags = document.get("columns"), document.get("tags")
        if not _are_texts(columns) or not columns:
            raise ScanInvalid("columns is not a list of names")
        if not isinstance(tags, dict) or not all(_are_texts(values) for values in tags.values()):
            raise ScanInvalid("tags does not map names to lists of values")
        given: dict[str, Any] = {name: document.get(name) for name in _TEXTS + _NUMBERS + _TIMES}
        given |= _parsed_changes(document) | _parsed_work(document)
        return cls(**given, columns=tuple(columns), tags={tag: tuple(values) for tag, values in tags.items()})


def _parsed_changes(document: dict[str, Any]) -> dict[str, Any]:
    # An asker of an earlier build names no birth: it means any.
    found = {name: document.get(name, default) for name, default in (("birth", 0), ("table_version", 1))}
    for name, value in found.items():
        if not _is_int64(value) or value < 0:
            raise ScanInvalid(f"{name} is not a whole number")
    try:
        return found | {"accepted": from_list(document.get("accepted", []))}
    except ValueError as error:
        raise ScanInvalid(f"accepted: {error}") from error


def _parsed_work(document: dict[str, Any]) -> dict[str, Any]:
    newest, profiled, fragment = (document.get(name) for name in ("newest", "profiled", "fragment"))
    if newest is not None and not _are_texts(newest):
        raise ScanInvalid("newest is not a list of names")
    if not isinstance(profiled, bool | None):
        raise ScanInvalid("profiled is neither true nor false")
    try:
        parsed = None if fragment is None else FragmentSql.parse(fragment)
    except ValueError as error:
        raise ScanInvalid(f"fragment: {error}") from error
    return {"newest": None if newest is None else tuple(newest), "profiled": bool(profiled), "fragment": parsed}


def wire_schema(schema: TableSchema, columns: tuple[str, ...]) -> pa.Schema:
    """The Arrow schema of an answer: tags as dictionaries, `time` in ns, fields. Raises ScanInvalid."""
    types = dict.fromkeys(schema.tags, TAG_TYPE) | {TIME_COLUMN: pa.timestamp("ns")}
    types |= {name: FieldType(kind).arrow for name, kind in schema.fields}
    if unknown := [name for name in columns if name not in types]:
        raise ScanInvalid(f"table {schema.database}.{schema.table} has no column {unknown[0]!r}")
    return pa.schema([(name, types[name]) for name in columns])


_TEXTS = ("group", "database", "table")
_NUMBERS = ("version", "after", "timeout_ms", "wait_ms")
_TIMES = ("start_ns", "end_ns")
_CHANGES = ("birth", "table_version", "accepted")
_WORK = ("fragment", "newest", "profiled")


def _is_int64(value: object) -> bool:
    # In Python `True` is an int; in JSON it is not a number.
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _are_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)
