"""Records with one long array whose items are encoded once each, however often the record is.

Avro writes a record as its fields one after another, and an array as a count, its items and a zero. So the frame is the
fields up to the array, the items as they were encoded before, and the fields from the array on, which is empty there.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import fastavro

from headrace.schemas.framing import Codec, codec, schema_of, zigzag_length

_NAMED = ("record", "enum", "fixed")


class SplicedCodec:
    """Encodes what `Codec` encodes to the same bytes. Safe to share between threads."""

    def __init__(self, name: str, field: str, array: str) -> None:
        """`array` is a field of the record in `field`, which is the other branch of a union with null."""
        self._codec: Codec = codec(name)
        schema = schema_of(name)
        fields, place = schema["fields"], _place(schema["fields"], field)
        _, branch = fields[place]["type"]
        inner, at = branch["fields"], _place(branch["fields"], array)
        head = {**fields[place], "type": ["null", {**branch, "fields": inner[:at]}]}
        self._field, self._array, self._branch = field, array, f"{schema['namespace']}.{branch['name']}"
        self._head = fastavro.parse_schema({**schema, "fields": [*fields[:place], head]})
        defined: dict[str, Any] = {}
        _collect(schema, defined)
        self._tail = fastavro.parse_schema(
            _whole({**schema, "fields": [*inner[at:], *fields[place + 1 :]]}, defined, set())
        )
        self._item = fastavro.parse_schema(
            _whole({"namespace": schema["namespace"], **inner[at]["type"]["items"]}, defined, set())
        )

    def item(self, record: dict[str, Any]) -> bytes:
        """One item of the array."""
        return _written(self._item, record)

    def encode(self, record: dict[str, Any], items: Sequence[bytes]) -> bytes:
        """A record, which has no array, as a single-object frame in which the array has these items."""
        inner = record[self._field]
        head = _written(self._head, {**record, self._field: (self._branch, inner)})
        tail = _written(self._tail, {**record, **inner, self._array: []})
        count = zigzag_length(len(items)) if items else b""
        return b"".join((self._codec.prefix, head, count, *items, tail))


def _place(fields: Sequence[dict[str, Any]], name: str) -> int:
    return next(place for place, each in enumerate(fields) if each["name"] == name)


def _written(schema: Any, record: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, record)
    return out.getvalue()


def _is_named(node: dict[str, Any]) -> bool:
    return node.get("type") in _NAMED


def _collect(node: Any, into: dict[str, Any]) -> None:
    """The definitions of all named types in a schema."""
    if isinstance(node, list):
        for each in node:
            _collect(each, into)
    elif isinstance(node, dict):
        if _is_named(node):
            into[node["name"]] = node
        for each in (node.get("type"), node.get("items"), node.get("values"), *node.get("fields", ())):
            _collect(each, into)


def _whole(node: Any, defined: dict[str, Any], seen: set[str]) -> Any:
    """A part of a schema with the definition of each named type where it is named first."""
    if isinstance(node, list):
        return [_whole(each, defined, seen) for each in node]
    if isinstance(node, str):
        return node if node in seen or node not in defined else _whole(defined[node], defined, seen)
    if not isinstance(node, dict):
        return node
    if _is_named(node):
        seen.add(node["name"])
    parts = {key: _whole(node[key], defined, seen) for key in ("type", "items", "values") if key in node}
    if "fields" in node:
        parts["fields"] = [_whole(each, defined, seen) for each in node["fields"]]
    return {**node, **parts}
