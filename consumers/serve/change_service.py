"""Routes for members, slots and their changes: a request to the leader of the metadata group, and what it led to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.consumers.membership.balancer import Balancer, ByteBalancer, SlotCountBalancer
from headrace.consumers.membership.change_requests import ChangeUnconfirmed, NotMetadataLeader
from headrace.consumers.membership.changes import Outcome
from headrace.consumers.membership.cluster_report import ClusterReport
from headrace.consumers.membership.requests import ChangeRequest
from headrace.consumers.membership.ring import POSITION_MAX, RingNode
from headrace.consumers.serve.error_documents import document_of, refusal
from headrace.consumers.serve.node_api import NodeApi
from headrace.consumers.serve.query_service import posted_json
from headrace.consumers.serve.request_bodies import RequestInvalid
from headrace.consumers.serve.request_threads import LOG_THREADS, RequestThreads
from headrace.schemas.errors import HeadraceError
from headrace.schemas.membership_records import ChangeKind

ID_CHARACTERS_MAX = 100
KINDS = (*map(str, ChangeKind), "cancel")
KNOWN = ("id", "kind", "node", "position", "by", "change", "rate")


RATE_MAX = 1 << 62
"""Fits into a long of the record."""


class RequestUnknown(HeadraceError):
    """A request that this node has not read in the membership log."""


def change_routes(node: NodeApi) -> list[Route]:
    """`POST /api/v1/cluster/change`, `GET /api/v1/cluster/change[?id=ID]`, and `GET /api/v1/cluster`."""
    threads = RequestThreads("change", LOG_THREADS)

    async def change(request: Request) -> Response:
        given = await posted_json(request)
        return await _answer(threads, lambda: _carried_out(node, given))

    async def outcome(request: Request) -> Response:
        name = request.query_params.get("id")
        return await _answer(threads, lambda: _running(node) if name is None else _outcome(node, name))

    async def cluster(_request: Request) -> Response:
        return await _answer(threads, lambda: _report(node).cluster())

    return [
        Route("/api/v1/cluster", cluster, methods=["GET"]),
        Route("/api/v1/cluster/change", change, methods=["POST"]),
        Route("/api/v1/cluster/change", outcome, methods=["GET"]),
    ]


def _carried_out(node: NodeApi, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a request led to. Raises RequestInvalid, and what `ChangeRequests` raises."""
    if unknown := sorted(set(given) - set(KNOWN)):
        raise RequestInvalid(f"there is no parameter {unknown[0]!r}", action=f"known are {', '.join(KNOWN)}")
    name, kind = _text(given, "id"), _text(given, "kind")
    if not 0 < len(name) <= ID_CHARACTERS_MAX:
        raise RequestInvalid(f"id has 1 to {ID_CHARACTERS_MAX} characters", action="send a new id with each request")
    if kind not in KINDS:
        raise RequestInvalid(f"there is no kind {kind!r}", action=f"use one of {', '.join(KINDS)}")
    if kind == "cancel":
        number = _number(given, "change")
        if number is None:
            raise RequestInvalid("a cancellation names no change", action="GET this path has the number of the change")
        return _document(name, node.metadata.requests.cancel(number))
    rate = _number(given, "rate") or 0
    if rate > RATE_MAX:
        raise RequestInvalid(f"rate is bytes a second, at most {RATE_MAX}", action="leave it out for no limit")
    request = ChangeRequest(name, ChangeKind(kind), _ring_node(ChangeKind(kind), given), rate)
    return _document(name, node.metadata.requests.begin(request, _balancer(node, given)))


def _ring_node(kind: ChangeKind, given: Mapping[str, Any]) -> RingNode | str:
    name, position = _text(given, "node"), _number(given, "position")
    if (kind is ChangeKind.BALANCE) != (not name):
        raise RequestInvalid("node names who joins or leaves", action="send it with add and remove alone")
    if position is None:
        return name
    if kind is not ChangeKind.ADD or position > POSITION_MAX:
        raise RequestInvalid(
            "position is the place of a joining node on the ring", action="send an unsigned number of 64 bits with add"
        )
    return RingNode(name, position)


def _balancer(node: NodeApi, given: Mapping[str, Any]) -> Balancer:
    by = given.get("by", "slots")
    if by == "slots":
        return SlotCountBalancer()
    if by != "bytes":
        raise RequestInvalid(f"there is no measure {by!r}", action="use slots or bytes")
    return ByteBalancer(_report(node).slot_bytes())


def _report(node: NodeApi) -> ClusterReport:
    """What `headrace cluster show` shows, as this node knows it. Raises NotMetadataLeader before it has a table."""
    if node.metadata.state.table is None:
        raise node.metadata.not_leader()
    return node.metadata.report()


def _outcome(node: NodeApi, name: str) -> dict[str, Any]:
    outcome = node.metadata.state.outcome(name)
    if outcome is None:
        raise RequestUnknown(
            f"this node has read no request {name!r} in the membership log",
            action="send it again under the same id: it counts once",
        )
    return _document(name, outcome)


def _running(node: NodeApi) -> dict[str, Any]:
    state, (leader, http) = node.metadata.state, node.metadata.leader()
    running = None
    if state.change is not None:
        change = state.change
        running = {"id": change.request, "change": change.number, "version": change.table.version}
        running |= {"kind": str(change.kind), "node": change.node, "phase": str(change.phase)}
    return {"leader": {"node": leader, "http": http}, "epoch": state.epoch, "running": running}


def _document(name: str, outcome: Outcome) -> dict[str, Any]:
    return {"id": name, "change": outcome.number, "version": outcome.version, "phase": str(outcome.phase)}


def _text(given: Mapping[str, Any], name: str) -> str:
    found = given.get(name, "")
    if not isinstance(found, str):
        raise RequestInvalid(f"{name} is not a text", action="send a string")
    return found


def _number(given: Mapping[str, Any], name: str) -> int | None:
    found = given.get(name)
    # In Python `True` is an int; in JSON it is not a number.
    if found is None or (isinstance(found, int) and not isinstance(found, bool) and found >= 0):
        return found
    raise RequestInvalid(f"{name} is not a whole number")


async def _answer(threads: RequestThreads, call: Callable[[], dict[str, Any]]) -> Response:
    # On a thread: a request waits until the log has decided it.
    try:
        return JSONResponse(await threads.run(call))
    except HeadraceError as error:
        document = document_of(error)
        if isinstance(error, NotMetadataLeader):
            document["leader"] = {"node": error.leader, "http": error.http}
        return refusal(_STATUSES.get(type(error), 409), document)


_STATUSES: Mapping[type, int] = {RequestInvalid: 400, RequestUnknown: 404, ChangeUnconfirmed: 504}
