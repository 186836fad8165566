"""Nested JSON as flat JSON: the values that paths name, under the names that they get.

A compiled loop copies the values as they are written, and the parser of JSON lines reads what it writes. So numbers keep
their digits and reasons are the same. What the loop does not read (escaped keys, broken JSON) goes one by one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats.avro_rows import Payloads
from headrace.connectors.formats.interface import REJECTED_MESSAGES, InvalidLine
from headrace.connectors.formats.json_path_kernel import COLON, OPEN_OBJECT, Tree, flatten, room_of_nesting
from headrace.connectors.formats.json_scanner import JsonMembers, Number, json_documents
from headrace.connectors.formats.lines import WORD_BYTES
from headrace.connectors.formats.paths import Path, text_of

Sources = Sequence[tuple[Path, str]]


def flat_messages(values: pa.Array, sources: Sources) -> tuple[pa.Array, pa.Table]:
    """(the messages with one flat object a line, the rejected lines). A rejected line is blank."""
    payloads = Payloads.of(values)
    root = _tree(sources)
    tree = _arrays(root)
    data = payloads.data[:-WORD_BYTES]
    longest = max(len(json.dumps(name)) for _, name in sources)
    # Each value that is copied follows a colon, and each object has its opening brace.
    room = len(data) + _count(payloads, COLON) * (longest + 2) + 3 * _count(payloads, OPEN_OBJECT) + WORD_BYTES
    out, bounds = np.empty(room, np.uint8), np.zeros(len(payloads) + 1, np.int64)
    bad = np.zeros(len(payloads), np.uint8)
    flatten(payloads.data, payloads.starts, payloads.ends, tree, out, bounds, bad, room_of_nesting())
    written = int(bounds[-1])
    flat = pa.Array.from_buffers(
        pa.large_binary(), len(payloads), [None, pa.py_buffer(bounds), pa.py_buffer(out[:written])]
    )
    numbers = np.flatnonzero(bad).tolist()
    if not numbers:
        return flat, REJECTED_MESSAGES.empty_table()
    rejected: list[tuple[int, int, str]] = []
    texts = []
    for message in numbers:
        content = data[payloads.starts[message] : payloads.ends[message]].tobytes()
        texts.append("\n".join(_flat_lines(message, content, root, rejected)).encode())
    flat = pc.replace_with_mask(flat, pa.array(bad.astype(np.bool_)), pa.array(texts, pa.large_binary()))
    rows = [dict(zip(REJECTED_MESSAGES.names, each, strict=True)) for each in rejected]
    return flat, pa.Table.from_pylist(rows, schema=REJECTED_MESSAGES)


def _count(payloads: Payloads, mark: int) -> int:
    return int(np.count_nonzero(payloads.data == mark))


@dataclass(slots=True)
class _Node:
    """A part of the paths: the name of its value, or what follows."""

    path: Path = ()
    name: str | None = None
    inner: dict[str, _Node] = field(default_factory=dict)


def _tree(sources: Sources) -> _Node:
    root = _Node()
    for path, name in sources:
        node = root
        for depth, part in enumerate(path):
            node = node.inner.setdefault(part, _Node(path[: depth + 1]))
        node.name = name
    return root


def _arrays(root: _Node) -> Tree:
    nodes = [root]
    firsts, targets, keys, bounds = [0], [], b"", [0]
    names, name_bounds = b"", [0]
    for node in nodes:
        for key, inner in node.inner.items():
            nodes.append(inner)
            targets.append(len(nodes) - 1)
            keys += key.encode()
            bounds.append(len(keys))
        firsts.append(len(targets))
        names += b"" if node.name is None else f"{json.dumps(node.name)}:".encode()
        name_bounds.append(len(names))
    integers = [np.array(each, np.int64) for each in (firsts, targets, bounds, name_bounds)]
    texts = [np.frombuffer(each or b"\0", np.uint8) for each in (keys, names)]
    return Tree(integers[0], integers[1], texts[0], integers[2], texts[1], integers[3])


def _flat_lines(message: int, content: bytes, root: _Node, rejected: list[tuple[int, int, str]]) -> list[str]:
    """The flat objects of one message that the loop did not read, one behind the other: of the whole, or of its lines."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        rejected.append((message, 0, "the message is not UTF-8"))
        return []
    flat: list[str] = []
    try:
        documents = json_documents(text)
    except InvalidLine as error:
        if "\n" not in text.strip():
            rejected.append((message, 0, str(error)))
            return []
        documents = [each for line in text.split("\n") for each in _of_line(line)]
    for document in documents:
        several = isinstance(document, list) and not isinstance(document, JsonMembers)
        for each in document if several else [document]:  # type: ignore[attr-defined]
            try:
                flat.append(_flat_object(each, root))
            except InvalidLine as error:
                rejected.append((message, len(flat), str(error)))
                flat.append("")
    return flat


def _of_line(line: str) -> list[object]:
    if not line.strip():
        return [None]
    try:
        return json_documents(line)
    except InvalidLine as error:
        return [error]


def _flat_object(document: object, root: _Node) -> str:
    """One object as a flat one; a blank line is blank. Raises InvalidLine."""
    if document is None:
        return ""
    if isinstance(document, InvalidLine):
        raise document
    if not isinstance(document, JsonMembers):
        raise InvalidLine("a reading must be a JSON object")
    return "{" + ",".join(_members(document, root)) + "}"


def _members(document: JsonMembers, node: _Node) -> Iterator[str]:
    for name, value in document:
        inner = node.inner.get(name)
        if inner is None:
            continue
        if inner.name is None:
            if isinstance(value, JsonMembers):
                yield from _members(value, inner)
            elif value is not None:
                raise InvalidLine(f"member {text_of(inner.path)!r} is {_kind(value)}: a path leads into it")
            continue
        if isinstance(value, list):
            raise InvalidLine(f"member {text_of(inner.path)!r} is {_kind(value)}: name a value in it")
        text = str(value) if isinstance(value, Number) else json.dumps(value)
        yield f"{json.dumps(inner.name)}:{text}"


def _kind(value: object) -> str:
    if isinstance(value, JsonMembers):
        return "an object"
    return "an array" if isinstance(value, list) else "no object"
