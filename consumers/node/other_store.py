"""Refuses to start a new data directory under the id of a node that runs."""

from __future__ import annotations

import threading

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.port import Log
from headrace.consumers.replication.failure_detector import OFFLINE_MS
from headrace.consumers.replication.heartbeat import StatusReader
from headrace.schemas.errors import HeadraceError

POLL_S = 0.1


class NodeRuns(HeadraceError):
    """Another process sends statuses under this node's id."""


def check_alone(log: Log, topic: str, node: str, stopping: threading.Event) -> None:
    """Return once no other process is alive as `node`, which has sent no status itself yet. Raises NodeRuns.

    The schedule: two directories under one id claim leadership from each other for ever, and a quorum counts whichever
    was seen last. A node whose directory was deleted has sent its last status a moment ago, so one counts that comes
    while this waits.
    """
    reader, deadline = StatusReader(log, topic), Deadline(OFFLINE_MS / 1_000)
    try:
        while not stopping.is_set() and not deadline.passed():
            found = [each for each in reader.detector.presences() if each.node == node]
            if node in reader.senders:
                where = f" at {found[0].http}" if found and found[0].http else ""
                raise NodeRuns(
                    f"node {node} runs already{where}, with another data directory",
                    action="give this one an id of its own, or stop the other one first",
                )
            if reader.caught_up and not found:
                return
            reader.follow(POLL_S)
    finally:
        reader.close()
