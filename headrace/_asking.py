"""One query of a client, to one node after another until one answers."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from headrace._answers import QueryResult
from headrace._nodes import NodeDirectory
from headrace.connectors.deadline import Deadline
from headrace.connectors.http import AnswerCut, NodeRefused, NodeUnreachable
from headrace.consumers.query.query_errors import NotCaughtUp, QueryError, QueryTimeout
from headrace.node_client import NodeClient
from headrace.schemas.errors import HeadraceError

FIND_TIMEOUT_S = 10.0
RETRY_S = 0.2
ANSWER_TIMEOUT_S = 600.0
"""The most that a node without a time limit may be silent while it lives: it ends queries by a limit of its own."""
GRACE_S = 2.0
"""The node ends a query at its time limit. The client waits longer, to get the error of that."""
_OF_ONE_NODE = (QueryError, NodeRefused, NodeUnreachable, AnswerCut)


class NoNode(HeadraceError):
    """No node of the cluster answers."""

    @classmethod
    def of(cls, cluster: str, unread: str = "") -> NoNode:
        """The error of a client that knows no live node of a cluster. `unread`: whose statuses it cannot read."""
        return cls(
            f"no live node of cluster {cluster!r} is known{unread and f'; {unread}'}",
            action="start its nodes, or give the URL of a node",
            retriable=True,
        )


NO_ANSWER = (*_OF_ONE_NODE, NoNode)
"""What `ask` raises: of errors of nodes, and not of what the client wrote before."""


@dataclass(frozen=True, slots=True)
class Question:
    """A query as nodes take it; `default_ms` is the time limit that a node has without `timeout_ms`."""

    sql: str
    parameters: Mapping[str, Any]
    after: Mapping[str, int]
    timeout_ms: int | None
    stale_s: float | None
    default_ms: int


def ask(nodes: NodeDirectory, question: Question, node: str | None, cluster: str) -> QueryResult:
    """The answer of any live node, or of that at the URL `node`.

    Raises the QueryError of a node, NodeUnreachable, NodeRefused, AnswerCut, and NoNode. QueryTimeout once the
    question's time is over.
    """
    limit = Deadline((question.timeout_ms or question.default_ms) / 1_000)
    finding = Deadline(FIND_TIMEOUT_S if question.timeout_ms is None else min(FIND_TIMEOUT_S, limit.timeout_s))
    while True:
        failure: HeadraceError | None = None
        for url, stale_s in _ways([node] if node else nodes.urls(finding), question.stale_s):
            try:
                answer = _answer(nodes, url, question, limit, stale_s)
            except _OF_ONE_NODE as error:
                # Errors in the SQL are the same everywhere; those of one node say nothing about the others.
                if not error.retriable or isinstance(error, QueryTimeout):
                    raise
                failure = error
                nodes.note_failure(url)
                _check_time(question, limit, error)
                continue
            if not node:
                nodes.note_answer(url)
            return answer
        if finding.passed():
            raise failure or NoNode.of(cluster, nodes.unread_fault())
        time.sleep(min(RETRY_S, finding.left_s()))


def _ways(urls: Iterable[str], stale_s: float | None) -> list[tuple[str, float | None]]:
    """Whom to ask, and for which age of the answer."""
    # A node that serves is better than any that does not: the older answers are asked for behind all of them.
    urls = list(urls)
    return [(url, 0.0 if stale_s else stale_s) for url in urls] + [(url, stale_s) for url in urls if stale_s]


def _check_time(question: Question, limit: Deadline, error: HeadraceError) -> None:
    """Raises the error of a query whose time is over: other nodes are asked only within it."""
    if not limit.passed():
        return
    if question.timeout_ms is None:
        # Only the node knows its own limit. That it did not catch up within it is the end; one that died is not.
        if isinstance(error, NotCaughtUp):
            raise error
        return
    if isinstance(error, NodeUnreachable):
        raise QueryTimeout(
            f"the query did not finish within {question.timeout_ms} ms: {error.message}",
            action=QueryTimeout.after(question.timeout_ms).action if error.is_late else error.action,
            retriable=True,
        ) from error
    raise error


def _answer(nodes: NodeDirectory, url: str, question: Question, limit: Deadline, stale_s: float | None) -> QueryResult:
    """The answer of one node, in the time that is left. Raises QueryError, NodeRefused, NodeUnreachable, AnswerCut."""
    timeout_ms, wait_s = None, ANSWER_TIMEOUT_S
    if question.timeout_ms is not None:
        timeout_ms, wait_s = max(1, math.ceil(limit.left_s() * 1_000)), limit.left_s() + GRACE_S
    as_of: list[datetime] = []
    client = NodeClient(url, answer_timeout_s=wait_s, newest_status=nodes.newest_status)
    chunks = client.query(
        question.sql,
        format="arrow",
        after=question.after,
        timeout_ms=timeout_ms,
        parameters=question.parameters,
        stale_s=stale_s,
        on_as_of=as_of.append,
    )
    with pa.ipc.open_stream(pa.py_buffer(b"".join(chunks))) as reader:
        return QueryResult(reader.read_all(), next(iter(as_of), None))
