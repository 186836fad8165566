"""Answers of nodes as Arrow, for the tasks of a batch source: whole, and from another node if one fails.

A task holds an answer until it is complete. A node that is lost midway has then given nothing to Spark, and the whole
question goes to another one: no row comes twice. Spark repeats a task that failed in the same way, from its start, and
drops what the failed attempt gave.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from headrace.connectors.deadline import Deadline
from headrace.connectors.http import AnswerCut, NodeRefused, NodeUnreachable, request_node
from headrace.schemas.errors import HeadraceError

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 600.0
"""Each wait for bytes: longer than a node lets a query take, so that its error arrives."""
FIND_S = 30.0
"""So long all nodes are asked again and again when none answers: one that died is replaced in this time."""
BUSY_S = 600.0
"""So long a question waits while every node runs as many queries as it may."""
PAUSE_S, PAUSE_MAX_S = 0.1, 2.0
_BUSY = frozenset({"TooManyQueries", "TooManyScans"})


class NodesSilent(HeadraceError):
    """No node answered a question; the message has the reason of the last one."""


class NodeRefusal(HeadraceError):
    """A node refused a question that every other node would refuse too."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes that may be asked, by URL. Plain values, which Spark pickles to its workers."""

    urls: tuple[str, ...]
    token: str = field(default="", repr=False)

    def rows(self, sql: str, after: Mapping[str, int], turn: int = 0) -> list[pa.RecordBatch]:
        """All rows of an answer that contains these offsets; `turn` spreads questions over the nodes.

        Raises NodesSilent, NodeRefusal.
        """
        document = {"sql": sql, "format": "arrow", **({"after": dict(after)} if after else {})}
        batches: list[pa.RecordBatch] = self._asked(lambda url: _rows(url, document, self.token), turn)
        return batches

    def document(self, path: str) -> Any:
        """The JSON document at a path of the first node that gives it. Raises NodesSilent, NodeRefusal."""
        return self._asked(lambda url: _document(url + path, self.token), 0)

    def documents(self, path: str) -> list[Any]:
        """That of every node that gives it."""
        found = []
        for url in self.urls:
            try:
                found.append(_document(url + path, self.token))
            except (NodeRefused, NodeUnreachable, AnswerCut):
                continue
        return found

    def _asked(self, ask: Any, turn: int) -> Any:
        silent, busy, pause_s = Deadline(FIND_S), Deadline(BUSY_S), PAUSE_S
        order = [self.urls[(turn + number) % len(self.urls)] for number in range(len(self.urls))]
        while True:
            reasons: list[HeadraceError] = []
            for url in order:
                try:
                    return ask(url)
                except (NodeRefused, NodeUnreachable, AnswerCut) as error:
                    # An error in the question is the same at every node; those of one node say nothing of others.
                    if not _may_pass(error):
                        raise NodeRefusal(f"a node refused the query: {error.message}", action=error.action) from error
                    reasons.append(error)
            if any(_is_busy(error) for error in reasons):
                silent = Deadline(FIND_S)
            if silent.passed() or busy.passed():
                raise NodesSilent(
                    f"none of {len(order)} nodes answered: {reasons[-1].message}",
                    action="check that the nodes run and serve; headrace status shows it",
                    retriable=True,
                ) from reasons[-1]
            # Tasks that were refused together must not come back together.
            time.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, PAUSE_MAX_S)


def files_path(database: str, table: str) -> str:
    """The path of the list of a table's files."""
    return f"/api/v1/files?database={quote(database)}&table={quote(table)}"


def online_urls(cluster: Mapping[str, Any]) -> tuple[str, ...]:
    """The nodes that a node shows as online, by URL."""
    return tuple(each["http"].rstrip("/") for each in cluster.get("nodes", ()) if each.get("online") and each["http"])


def _may_pass(error: HeadraceError) -> bool:
    """Whether the same question may be answered later, or elsewhere."""
    document = error.document if isinstance(error, NodeRefused) else {}
    return bool(document.get("retriable", error.retriable))


def _is_busy(error: HeadraceError) -> bool:
    return isinstance(error, NodeRefused) and error.document.get("kind") in _BUSY


def _rows(url: str, document: Mapping[str, Any], token: str) -> list[pa.RecordBatch]:
    with _answer(f"{url}/api/v1/query", document, token) as answer:
        content = pa.py_buffer(b"".join(answer.chunks()))
    with pa.ipc.open_stream(content) as reader:
        return list(reader)


def _document(url: str, token: str) -> Any:
    with _answer(url, None, token) as answer:
        return answer.json()


@contextmanager
def _answer(url: str, document: Mapping[str, Any] | None, token: str) -> Iterator[Any]:
    method = "GET" if document is None else "POST"
    answer = request_node(
        url,
        method=method,
        document=document,
        timeout_s=ANSWER_TIMEOUT_S,
        connect_timeout_s=CONNECT_TIMEOUT_S,
        token=token,
    )
    with answer:
        yield answer


def spread(urls: Sequence[str], first: str) -> tuple[str, ...]:
    """URLs without repeats, `first` before the others if it is given."""
    return tuple(dict.fromkeys([*([first] if first else []), *urls]))
