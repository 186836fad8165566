"""Puts one node together: the logs it follows, its groups and their stores, its heartbeat, and the server.

Start-up is bottom up and shut-down top down. A node needs nothing but its data directory and its log, which
is Kafka's or in that directory: what the directory lacks comes from the log, or from another member's files.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from headrace.connectors.clock import SYSTEM_CLOCK
from headrace.connectors.ends import end_all
from headrace.connectors.files import DirectoryLock, create_directories
from headrace.connectors.log.port import Log
from headrace.connectors.log.topics import Topics
from headrace.connectors.processor import background_threads
from headrace.consumers.integrity.divergence_monitor import DivergenceMonitor
from headrace.consumers.integrity.scrubber import Scrubber
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.cluster_topics import ClusterTopics, TopicCopies
from headrace.consumers.membership.placement import joining_reason, leaving_reason
from headrace.consumers.membership.schema_history import HISTORY_FILE
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.migration.copies_ahead import CopiesAhead
from headrace.consumers.node.cluster_join import groups_at_start, join, read_membership_log
from headrace.consumers.node.data_directory import DataDirectoryUnusable, Identity
from headrace.consumers.node.exile import NodeExiled
from headrace.consumers.node.flight_surface import FlightSurface
from headrace.consumers.node.group_statuses import GroupStatuses
from headrace.consumers.node.http_address import HttpAddress
from headrace.consumers.node.kafka_wait import KafkaWait
from headrace.consumers.node.leading import leader_tasks
from headrace.consumers.node.local_groups import LocalGroups
from headrace.consumers.node.log_monitor import LogMonitor
from headrace.consumers.node.log_positions import LogPositions
from headrace.consumers.node.metadata import metadata_group
from headrace.consumers.node.node_log import check_log_kind, node_log
from headrace.consumers.node.node_writer import NodeWriter
from headrace.consumers.node.other_store import NodeRuns, check_alone
from headrace.consumers.node.placing import placement_task
from headrace.consumers.node.readiness import Readiness, Standing
from headrace.consumers.node.reading import cluster_source
from headrace.consumers.node.recovery_environment import NodeRecoveryEnvironment
from headrace.consumers.node.requests import GroupRequests
from headrace.consumers.node.serving_tasks import NodeTasks
from headrace.consumers.node.settings import ServerSettings
from headrace.consumers.node.slot_pulls import SlotMigration
from headrace.consumers.node.status_report import node_figures, node_status
from headrace.consumers.node.sync_source import edge_store, snapshot_expiry
from headrace.consumers.query.engine import QueryEngine
from headrace.consumers.query.group_scanner import GroupScanner
from headrace.consumers.query.local_source import LocalSource
from headrace.consumers.query.remote_rows import RemoteRows
from headrace.consumers.query.spill_directory import with_spill_directory
from headrace.consumers.recovery.file_copy import Snapshot
from headrace.consumers.recovery.supervisor import RecoverySupervisor
from headrace.consumers.replication.heartbeat import Heartbeat
from headrace.consumers.replication.leader_tasks import new_incarnation
from headrace.consumers.replication.log_consumer import LogConsumer
from headrace.consumers.replication.row_selection import RowSelection
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.consumers.serve.app import create_app
from headrace.consumers.serve.node_api import NodeFigures, NodeStatus
from headrace.consumers.serve.server import Server, reserve_address
from headrace.consumers.serve.snapshots import SnapshotRegistry
from headrace.consumers.serve.software import installed_version
from headrace.consumers.store.store_directory import SEGMENTS_DIRECTORY
from headrace.schemas.errors import HeadraceError
from headrace.schemas.records import Role


class Node:
    """One node, started by `start` and stopped by `stop`.

    All public names may be used by any thread once `start` has returned.
    """

    def __init__(self, settings: ServerSettings, log: Log | None = None, selection: RowSelection | None = None) -> None:
        self.settings, self._selection = settings, selection
        self.incarnation = new_incarnation()
        self.topics = Topics(settings.cluster.name)
        self.log: Log = log or node_log(settings)
        copies = TopicCopies(settings.cluster.topic_replication_factor, settings.cluster.topic_min_insync_replicas)
        self.cluster_topics = ClusterTopics(self.log, copies)
        self.http_address = ""
        self._address = HttpAddress.of(settings.node)
        self._reserved: socket.socket | None = None
        self.flight = FlightSurface(settings.node.flight, self._address)
        self.software = installed_version()
        self.started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._server: Server | None = None
        self.started = False
        # Needed before the parts that its statuses describe; it sends nothing before `start`.
        self.heartbeat = Heartbeat(
            self.log, self.topics.status, settings.node.id, self.incarnation, lambda: self.statuses.statuses()
        )
        self._consumer_group = f"headrace-{settings.cluster.name}-{settings.node.id}"
        self._opened = ExitStack()
        self._stopping = threading.Event()
        # Why the process is to end: the node was removed from its cluster and nothing is left for it to do, or it
        # runs elsewhere.
        self.exile: HeadraceError | None = None
        self.on_exile: Callable[[], None] = lambda: None

    # Start-up, bottom up.

    def start(self, on_progress: Callable[[str], None], *, observer: bool = False) -> None:
        """Open the data directory, join the cluster, apply the journal and begin to consume.

        Raises typed errors. An observer only follows its logs, and does nothing for others.
        """
        self._observer = observer
        if not observer:
            # First of all: an address in use must not leave a data directory and topics behind.
            self._reserved = reserve_address(self._address.host, self._address.port)
            self.flight.reserve()
        try:
            self._open(on_progress)
        except OSError as error:
            raise DataDirectoryUnusable.because(self.settings.node.data_directory, error) from error
        self._build_parts()
        self.started = True
        self._start_threads()

    def _open(self, on_progress: Callable[[str], None]) -> None:
        settings = self.settings
        directory = create_directories(settings.node.data_directory)
        lock = DirectoryLock(directory, purpose="data directory")
        self._opened.callback(lock.release)
        self.identity = Identity.load(directory, settings.cluster.name, settings.node.id)
        check_log_kind(settings.node, self.identity)
        kafka = KafkaWait(settings.cluster.bootstrap, settings.node.startup_timeout_s, self._stopping, on_progress)
        born, has_data = self.identity.born >= 0, bool(self.identity.topics)
        self.slot_table = kafka.await_answer(
            lambda: join(self.log, self.cluster_topics, settings, self._stopping, born, kafka.was_away)
        )
        self._follower = kafka.await_answer(lambda: read_membership_log(self.log, settings, self.identity))
        self._opened.callback(self._follower.close)
        if not (has_data or self._observer):
            kafka.await_answer(lambda: check_alone(self.log, self.topics.status, self.name, self._stopping))
        state = self._follower.state
        self.slot_table = state.table or self.slot_table
        self.schema_log = SchemaLog(self.log, self.topics, directory / HISTORY_FILE)
        self._opened.callback(self.schema_log.close)
        kafka.await_answer(lambda: self.schema_log.refresh(settings.node.startup_timeout_s))
        self._local = LocalGroups(
            directory,
            self.identity,
            kafka.await_answer(lambda: groups_at_start(self.log, self.topics, state, self.name)),
            self.topics,
            self.schema_log,
            self.heartbeat,
            settings.store,
            self._selection,
        )
        self._opened.callback(self._local.close)
        kafka.await_answer(lambda: self._local.check_topics(self.log))
        # Written before any data, so that no crash leaves data whose owner is unknown.
        self.identity.save(directory)
        self.snapshots = SnapshotRegistry(directory)
        self._local.open(on_progress)
        self.groups, self.journal = self._local.groups, self._local.journal

    def _build_parts(self) -> None:
        """Make every part that has threads, bottom up; none of them runs yet."""
        settings, log, groups = self.settings, self.log, self.groups
        self.log_consumer = LogConsumer(
            log, self._consumer_group, groups, self._local.cursors, self.journal, settings.store, self
        )
        self.log_consumer.restore(self.identity.topics, self._local.receipts)
        self._build_statuses()
        self.metadata = metadata_group(
            log, self.topics, settings, self.identity, self._follower, self.heartbeat, self.statuses
        )
        self.log_monitor = LogMonitor(
            log,
            self.schema_log,
            groups,
            self.identity,
            self.log_consumer,
            self.readiness,
            self.cluster_topics,
        )
        self.copies_ahead = CopiesAhead()
        self.leader_tasks = leader_tasks(
            log,
            self.topics,
            groups,
            settings.store,
            self.statuses,
            self.heartbeat,
            self.schema_log,
            self.metadata,
            self.copies_ahead,
        )
        orders = NodeRecoveryEnvironment(self._local, self.log_consumer, self.positions, self.heartbeat, self._stopping)
        copies = background_threads(settings.store.recoveries_max, "recovery-copy", settings.store.background_nice)
        self.supervisor = RecoverySupervisor(log, orders, settings.store, copies, SYSTEM_CLOCK)
        self.divergence_monitor = DivergenceMonitor(log, orders, self.positions, self.supervisor, SYSTEM_CLOCK)
        self.scrubber = Scrubber(groups, settings.store, self.supervisor, SYSTEM_CLOCK)
        self.placement = placement_task(self, self._local, self._follower)
        self.placement.on_table = self._use_table
        self.placement.on_exile = lambda: self._exile(NodeExiled.of(self.cluster, self.name, self.directory))
        self.heartbeat.on_elder = lambda http: self._exile(NodeRuns.of(self.name, http))
        self.requests = GroupRequests(self)
        self.edge = edge_store(self, self._local.centres)
        self._snapshot_expiry = snapshot_expiry(self)
        self._build_queries()

    def _build_statuses(self) -> None:
        groups, state = self.groups, self._follower.state
        standing = Standing(joining=joining_reason(state, self.name), leaving=leaving_reason(state, self.name))
        self.positions = LogPositions(groups, self.log_consumer, self._local.ends)
        parts = (self.log_consumer, self.heartbeat, self.positions, self.identity.topics)
        self.readiness = Readiness(groups, self.log, *parts, standing)
        self.statuses = GroupStatuses(self.identity, groups, self.log_consumer, self.heartbeat, self.readiness)

    def _build_queries(self) -> None:
        settings = self.settings.query
        local = LocalSource(self.groups, self.schema_log.catalogue, self.readiness)
        remote = RemoteRows(self.name, self.slot_table, self.heartbeat, settings.remote_mb_max * 1_000_000)
        self.source = cluster_source(local, remote, self.log, self.topics, self._follower)
        # The directory of all groups: DuckDB is locked to it, and groups come while it runs.
        segments = create_directories(self.directory / SEGMENTS_DIRECTORY)
        settings = with_spill_directory(settings, self.directory)
        self.engine = QueryEngine(self.source, [segments], settings, on_unreadable=self.scrubber.scrub_now)
        self.migration = SlotMigration(self)
        self.readiness.tasks = NodeTasks(self.leader_tasks, self.metadata, self.placement, self.migration.puller)
        local.pulled = self.migration.puller
        self._follower.subscribe(self._follow)
        self.scanner = GroupScanner(self.name, local, self.schema_log, self.engine)
        self.writes = NodeWriter(self.log, self.topics, self.settings.write)

    def _start_threads(self) -> None:
        for group in self.groups.values():
            group.start()
        self.log_consumer.start()
        if not self._observer:
            first = (self.heartbeat, self.metadata, self.leader_tasks, self.placement, self.supervisor)
            for part in (*first, self.divergence_monitor, self.scrubber, self.migration):
                part.start()
        self.log_monitor.start()
        self._snapshot_expiry.start()

    def serve(self) -> None:
        """Serve HTTP and Arrow Flight on the addresses of the settings. Raises AddressInUse."""
        self.flight.start(self.engine)
        address, reserved = self._address, self._reserved
        assert reserved is not None, "an observer does not serve"
        app = create_app(self, loopback=address.loopback, names=address.names)
        self._server = Server(app, address.host, address.port, reserved=reserved)
        self._server.start()
        self.http_address = self.statuses.http_address = address.advertised_url(reserved.getsockname()[1])
        self.heartbeat.send_now()

    # Shut-down, top down.

    def stop(self) -> None:
        """Stop every thread and release the directory, also after a failed start; the next one applies the journal.

        Every part is stopped, also behind one that fails. Raises the first error.
        """
        self._stopping.set()
        end_all(self._ends())

    def _ends(self) -> Iterator[Callable[[], object]]:
        if self._server is not None:
            yield self._server.stop
        elif self._reserved is not None:
            yield self._reserved.close
        yield self.flight.stop
        if self.started:
            waiting = (self.placement, self.divergence_monitor, self.log_monitor, self.metadata)
            yield from (each.request_stop for each in waiting)
            yield self.placement.stop
            # While the log is still followed: a quorum needs the status of this node.
            yield from (answering.close for answering in (self.writes, self.engine, self.source))
            # Without Kafka each of these waits for it, and they do it at the same time.
            yield self.leader_tasks.request_stop
            yield partial(self.log_consumer.stop, 0.0)
            if self.heartbeat.fenced:
                yield partial(self.heartbeat.stop, 0.0)
            yield from (each.stop for each in (self.scrubber, self.migration, self.divergence_monitor, self.supervisor))
            # The heartbeat outlives the groups: others see the last durable offsets, which may complete a quorum.
            yield from (following.stop for following in (self.leader_tasks, self.metadata, self.log_consumer))
            yield from [group.request_stop for group in self.groups.values()]
            yield from [group.stop for group in self.groups.values()]
            yield from (last.stop for last in (self.heartbeat, self._snapshot_expiry, self.log_monitor))
        yield self._opened.close
        yield self.log.close

    # What the membership log decides, see PlacementTask.

    def _follow(self, _state: MembershipState) -> None:
        """Nobody waits for the next turn of a thread when the log has decided something."""
        self.placement.wake()
        self.migration.puller.wake()

    def _use_table(self, table: SlotTable) -> None:
        """Route queries by a newer slot table."""
        self.slot_table = table
        self.source.use_table(table)

    def _exile(self, why: HeadraceError) -> None:
        self.exile = self.exile or why
        self.on_exile()

    # Requests, see GroupRequests.

    def seal(self, group_name: str) -> dict[str, Any]:
        """Seal a group that this node leads, and wait until the seal is read back.

        Raises NotLeader, SealUnconfirmed.
        """
        return self.requests.seal(group_name)

    def files(self, database: str, table: str) -> dict[str, Any]:
        """The segments of a table."""
        return self.requests.files(database, table)

    def accept_gap(self, group_name: str, resume_offset: int | None) -> dict[str, Any]:
        """Accept that the log of a group lost records for good. Raises GapRefused."""
        return self.requests.accept_gap(group_name, resume_offset)

    def make_snapshot(self, group_name: str) -> Snapshot:
        """The files of a group that is in sync here, for another member. Raises SnapshotRefused."""
        return self.requests.make_snapshot(group_name)

    # Events of the consuming thread, see LogConsumerListener.

    def on_durable(self) -> None:
        """Records became durable: a writer may wait for the status that confirms them."""
        self.heartbeat.send_now()

    # State of the node, for reports and health.

    @property
    def cluster(self) -> str:
        """Name of the cluster."""
        return self.settings.cluster.name

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.settings.node.id

    @property
    def limits(self) -> ReplicationLimits:
        """Its limits."""
        return self.settings.store

    def role(self, topic: str) -> Role:
        """Role in the group of a forward topic."""
        return self.leader_tasks.decision(topic).role

    def topic_warnings(self) -> list[str]:
        """What is wrong with the cluster's topics in Kafka, for an operator."""
        return self.log_monitor.warnings()

    def reason(self, topic: str) -> str:
        """What keeps a group from being in sync here, empty when nothing does."""
        return self.readiness.reason(topic)

    def ready(self) -> tuple[bool, list[str]]:
        """Whether every group here serves, and the reasons why not."""
        return self.readiness.ready()

    @property
    def directory(self) -> Path:
        """The data directory."""
        return self.settings.node.data_directory

    @property
    def warnings(self) -> list[str]:
        """What happened at the start that an operator should know, and that it works in spite of."""
        return self._local.warnings

    def startup_done(self) -> bool:
        """Whether the data is open and the logs are followed."""
        return self.started

    def live(self) -> bool:
        """Whether the consuming thread runs; nothing but a restart starts it again."""
        return not self.started or self.log_consumer.alive

    def status(self) -> NodeStatus:
        """The status document: what an operator needs to know first."""
        return node_status(self)

    def figures(self) -> NodeFigures:
        """Figures that the metrics show beyond the status."""
        return node_figures(self)
