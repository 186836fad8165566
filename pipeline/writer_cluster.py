"""A process's connection to a cluster for writing, opened at its first use and kept: workers run many tasks."""

from __future__ import annotations

import contextlib

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.kafka import KafkaLog
from headrace.consumers.membership.routing import open_routing
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.replication.heartbeat import StatusWatch
from headrace.pipeline.source_options import Target
from headrace.producers.cluster import Cluster

CONNECT_TIMEOUT_S = 30.0

_open: dict[tuple[str, str, tuple[tuple[str, str], ...]], Cluster] = {}


def writer_cluster(target: Target) -> Cluster:
    """The connection of this process. Raises LogUnavailable, NoCluster, ClientSettingsRefused."""
    key = (target.bootstrap, target.cluster, target.kafka)
    if key not in _open:
        # Not at import: Spark forks its workers from a process that may have imported this module.
        _open[key] = _connect(target)
    return _open[key]


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
