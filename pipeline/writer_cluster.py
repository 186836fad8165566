"""A process's connection to a cluster for writing, opened at its first use and kept: workers run many tasks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.kafka import KafkaLog
from headrace.consumers.membership.routing import open_routing
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.replication.heartbeat import StatusWatch
from headrace.pipeline.source_options import Target
from headrace.producers.cluster import Cluster
from headrace.schemas.errors import HeadraceError

CONNECT_TIMEOUT_S = 30.0

_open: dict[tuple[str, str, tuple[tuple[str, str], ...]], Cluster] = {}


@contextlib.contextmanager
def writer_cluster(target: Target) -> Iterator[Cluster]:
    """The connection of this process, for one task. Raises LogUnavailable, NoCluster, ClientSettingsRefused."""
    key = (target.bootstrap, target.cluster, target.kafka)
    if key not in _open:
        # Not at import: Spark forks its workers from a process that may have imported this module.
        _open[key] = _connect(target)
    try:
        yield _open[key]
    except BaseException:
        # The next task has another one: that of a cluster that was made again since, under the same name, finds its
        # logs gone for good.
        _close(_open.pop(key))
        raise


def _close(cluster: Cluster) -> None:
    # The error of the task is the one to see.
    with contextlib.suppress(HeadraceError), contextlib.ExitStack() as stack:
        for part in (cluster.log, cluster.routing, cluster.tables, cluster.watch, cluster.appender):
            stack.callback(part.close)


def _connect(target: Target) -> Cluster:
    with contextlib.ExitStack() as undo:
        log = KafkaLog(target.bootstrap, dict(target.kafka))
        undo.callback(log.close)
        routing = open_routing(log, target.topics, Deadline(CONNECT_TIMEOUT_S))
        undo.callback(routing.close)
        tables = SchemaLog(log, target.topics)
        undo.callback(tables.close)
        tables.refresh()
        cluster = Cluster(log, target.topics, routing, tables, StatusWatch(log, target.topics), log.appender())
        routing.prepare = cluster.appender.prepare
        undo.pop_all()
    return cluster
