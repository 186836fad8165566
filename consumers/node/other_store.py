"""Refuses to start a new data directory under the id of a node that runs; names a copy of one."""

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

    @classmethod
    def of(cls, node: str, http: str) -> NodeRuns:
        """The error of a process that has found one at that address, which may be unknown."""
        return cls(
            f"node {node} runs already{f' at {http}' if http else ''}, with another data directory",
            action="stop one of the two; a further node needs an id and an empty data directory of its own",
        )


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
                raise NodeRuns.of(node, found[0].http if found else "")
            if reader.caught_up and not found:
                return
            reader.follow(POLL_S)
    finally:
        reader.close()
