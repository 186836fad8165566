"""From settings to a cluster that exists."""

from __future__ import annotations

import _thread
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator

from headrace._lifetime import ClientClosed
from headrace.connectors.deadline import Deadline
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.kafka_admin import REQUEST_TIMEOUT_S
from headrace.connectors.log.port import CHECK_CONNECTION, ClientSettingsRefused, LogUnavailable
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.routing import MembershipRouting, open_routing
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.replication.heartbeat import StatusWatch
from headrace.producers.cluster import Cluster
from headrace.settings import Settings, SettingsInvalid

CONNECT_TIMEOUT_S = 30.0
FIRST_ANSWER_LEAST_S = 1.0
"""A connection over TLS takes a part of it."""


def open_cluster(
    settings: Settings, *, timeout_s: float = CONNECT_TIMEOUT_S, on_wait: Callable[[str], None] = lambda _: None
) -> Cluster:
    """What writers and readers of a cluster share; ended by `close_cluster`.

    Waits up to `timeout_s` for a Kafka that does not answer, and calls `on_wait` meanwhile. Raises
    LogUnavailable, NoCluster, SettingsInvalid.
    """
    topics = Topics(settings.cluster.name)
    # A failed connect would leave the threads and sockets of librdkafka behind in the caller's process.
    with contextlib.ExitStack() as undo, _librdkafka_refusals():
        # librdkafka waits 10 s for a broker that is not there.
        first_answer_s = min(REQUEST_TIMEOUT_S, max(FIRST_ANSWER_LEAST_S, timeout_s))
        log = KafkaLog(settings.cluster.bootstrap, settings.kafka, first_answer_s)
        undo.callback(log.close)
        routing = _wait_for_routing(log, topics, Deadline(timeout_s), on_wait)
        undo.callback(routing.close)
        tables = SchemaLog(log, topics)
        undo.callback(tables.close)
        tables.refresh()
        cluster = Cluster(log, topics, routing, tables, StatusWatch(log, topics), log.appender())
        routing.prepare = cluster.appender.prepare
        undo.pop_all()
    return cluster


class ClusterConnection:
    """A connection that is made at its first use, once, and closed with its last reference at the latest.

    Safe for any thread.
    """

    def __init__(self, connect: Callable[[], Cluster]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._cluster: Cluster | None = None
        self._closed = False

    @property
    def is_open(self) -> bool:
        """Whether it was made and not closed."""
        return self._cluster is not None

    @property
    def cluster(self) -> Cluster:
        """The cluster, connected to if it was not. Raises ClientClosed, and as `open_cluster`."""
        return self.open()

    def open(self) -> Cluster:
        """Connect now. Raises ClientClosed, and as `open_cluster`."""
        with self._lock:
            if self._closed:
                raise ClientClosed("the client is closed", action="connect again")
            if self._cluster is None:
                self._cluster = self._connect()
                # Its threads hold each other: those of a client that was dropped would run as long as the process.
                self._dropped = weakref.finalize(self, _close_later, self._cluster, os.getpid())
                self._dropped.atexit = False
            return self._cluster

    def close(self) -> None:
        """Close what is open."""
        with self._lock:
            cluster, self._cluster, self._closed = self._cluster, None, True
        if cluster is not None:
            self._dropped.detach()
            close_cluster(cluster)


class NoLogs:
    """See `headrace._nodes.StatusConnection`: the nodes of a client that reaches its cluster through one of them."""

    is_open = False

    @property
    def cluster(self) -> Cluster:
        """Raises ClientClosed: a client whose node is named looks for none in Kafka."""
        raise ClientClosed("the client has no connection to Kafka", action="connect by bootstrap")


def close_cluster(cluster: Cluster) -> None:
    """Close everything; records that were appended and not flushed get a moment to be sent."""
    # The last one is closed first: the appender still flushes while the log exists. One failure does not skip
    # the rest.
    with contextlib.ExitStack() as stack:
        for part in (cluster.log, cluster.routing, cluster.tables, cluster.watch, cluster.appender):
            stack.callback(part.close)


def _close_later(cluster: Cluster, process: int) -> None:
    """Close a cluster in a thread of its own; not in a process that was forked from the one that opened it."""
    # The collector runs in any thread, also in one that closing waits for, and while locks of `threading` are held.
    if os.getpid() == process:
        _thread.start_new_thread(close_cluster, (cluster,))


def _wait_for_routing(
    log: KafkaLog, topics: Topics, deadline: Deadline, on_wait: Callable[[str], None]
) -> MembershipRouting:
    try:
        return open_routing(
            log, topics, deadline, lambda error: on_wait(f"waiting for Kafka at {log.bootstrap}: {error.message}")
        )
    except LogUnavailable as error:
        about = f"Kafka at {log.bootstrap} "
        if error.message.startswith(about):
            raise
        raise LogUnavailable(
            f"{about}does not answer: {error.message}", action=CHECK_CONNECTION, retriable=True
        ) from error


@contextlib.contextmanager
def _librdkafka_refusals() -> Iterator[None]:
    """Turn an unknown property of librdkafka, or a value it refuses, into SettingsInvalid."""
    try:
        yield
    except ClientSettingsRefused as error:
        raise SettingsInvalid(error.message, action=error.action) from error
