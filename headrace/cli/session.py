"""What commands that talk to a cluster need: its log, its topics, its slot table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.cli.output import parse_settings

if TYPE_CHECKING:
    from connectors.log.port import Log
    from connectors.log.topics import Topics
    from consumers.membership.operations import Operations
    from consumers.membership.slots import SlotTable


@dataclass(frozen=True, slots=True)
class ClusterSession:
    """A cluster that exists, and the log it lives in."""

    log: Log
    topics: Topics
    slot_table: SlotTable

    @contextmanager
    def operations(self) -> Iterator[Operations]:
        """Commands against the running cluster."""
        from consumers.membership.operations import Operations

        operations = Operations(self.log, self.topics, self.slot_table)
        try:
            yield operations
        finally:
            operations.close()


@contextmanager
def cluster_session(cluster: str | None, bootstrap: str | None, settings: list[str] | None) -> Iterator[ClusterSession]:
    """Connect to a cluster by flags, environment and file. Raises NoCluster, LogUnavailable, SettingsInvalid."""
    from connectors.log.kafka import KafkaLog
    from connectors.log.topics import Topics
    from consumers.membership.cluster import read_slot_table
    from headrace.settings import load_settings

    loaded = load_settings({"cluster.name": cluster, "cluster.bootstrap": bootstrap, "kafka": parse_settings(settings)})
    topics = Topics(loaded.cluster.name)
    log = KafkaLog(loaded.cluster.bootstrap, loaded.kafka)
    try:
        yield ClusterSession(log, topics, read_slot_table(log, topics))
    finally:
        log.close()
