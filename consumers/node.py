"""Puts one node together: the logs it follows, its journal, its groups and their stores, what it says, and what it serves.

Start-up goes bottom up and shut-down the other way. A node needs nothing but its data directory and Kafka: what the directory lacks comes from
the log.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import structlog

from connectors.files import DirectoryLock, create_directories
from connectors.log.deadline import Deadline
from connectors.log.kafka import KafkaLog
from connectors.log.port import Log, LogUnavailable
from connectors.log.topics import Topics
from consumers.membership.cluster import join_cluster
from consumers.membership.slots import SLOTS_DEFAULT, SlotTable
from consumers.membership.tables import TableLog
from consumers.mending import Mending
from consumers.query.engine import QueryEngine, QuerySettings
from consumers.query.local import LocalSource
from consumers.replication.broadcast import Broadcast
from consumers.replication.duties import Duties, NotLeader, RolePolicy, SealPolicy, new_incarnation
from consumers.replication.gap import GapRefused, choices, gap_document, parse_gap
from consumers.replication.group import Group
from consumers.replication.identity import DataDirectoryForeign, DataDirectoryUnusable, Identity
from consumers.replication.journal import Journal, JournalEntry
from consumers.replication.limits import ReplicationLimits
from consumers.replication.progress import Progress
from consumers.replication.runner import Cursor, Runner
from consumers.replication.scrub import Scrubber
from consumers.replication.transfer import Snapshot, finish_swaps
from consumers.replication.trimming import Trimming
from consumers.serve.admin import admin_routes
from consumers.serve.app import create_app
from consumers.serve.report import metrics_text, status_report
from consumers.serve.server import Server
from consumers.serve.snapshots import SnapshotRefused, SnapshotShelf, snapshot_routes
from consumers.standing import Standing
from consumers.store import Store, StoreDamaged, StoreSettings, encoding_threads
from consumers.watching import Watching
from schemas.errors import HeadraceError, StateUnknown
from schemas.records import Create, Role

SEAL_TIMEOUT_S = 30.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_log = structlog.get_logger(__name__)


class ReplicationUnsupported(HeadraceError):
    """A replication that this version does not offer yet."""


class SealUnconfirmed(StateUnknown):
    """A seal that was appended and not read back in time."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What one node is started with. `kafka` holds librdkafka settings, verbatim."""

    cluster: str
    node: str
    nodes: tuple[str, ...]
    replication: int
    bootstrap: str
    data_directory: Path
    http: str = ""
    slots: int = SLOTS_DEFAULT
    startup_timeout_s: float = 60.0
    seal: SealPolicy = field(default_factory=SealPolicy)
    roles: RolePolicy = field(default_factory=RolePolicy)
    store: StoreSettings = field(default_factory=StoreSettings)
    limits: ReplicationLimits = field(default_factory=ReplicationLimits)
    query: QuerySettings = field(default_factory=QuerySettings)
    kafka: Mapping[str, str] = field(default_factory=dict)


class Node:
    """One node, started by `start` and ended by `stop`. Everything public may be used by any thread once `start` has returned."""

    def __init__(self, settings: NodeSettings, log: Log | None = None) -> None:
        self.settings = settings
        self.incarnation = new_incarnation()
        self.topics = Topics(settings.cluster)
        self.log: Log = log or KafkaLog(settings.bootstrap, settings.kafka)
        self.http_address = ""
        self.software = installed_version()
        self.started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._server: Server | None = None
        self.started = False
        self.broadcast = Broadcast(
            self.log, self.topics.status, settings.node, self.incarnation, lambda: self.standing.statuses()
        )
        self._consumer = f"headrace-{settings.cluster}-{settings.node}"
        self._opened = ExitStack()
        self._stopping = threading.Event()
        self._ends: dict[str, int] = {}
        self._replaced: dict[str, str] = {}

    # Start-up, bottom up.

    def start(self, on_progress: Callable[[str], None], *, speaking: bool = True) -> None:
        """Open the data directory, join the cluster, apply what the journal holds and begin to consume. Raises typed errors.

        A node that is not `speaking` only follows its logs: it broadcasts nothing and leads nothing.
        """
        try:
            self._open(on_progress)
        except OSError as error:
            raise DataDirectoryUnusable(
                f"data directory {self.settings.data_directory} cannot be used: {error.strerror or error}",
                action="free space, mend the disk or the permissions, then start the node again",
            ) from error
        self._start_threads(speaking)

    def _open(self, on_progress: Callable[[str], None]) -> None:
        settings = self.settings
        directory = create_directories(settings.data_directory)
        lock = DirectoryLock(directory, purpose="data directory")
        self._opened.callback(lock.release)
        self.identity = Identity.load(directory, settings.cluster, settings.node)
        self.slot_table = self._join(on_progress)
        self.tables = TableLog(self.log, self.topics)
        self._opened.callback(self.tables.close)
        self.tables.refresh(settings.startup_timeout_s)
        self._check_topics()
        self.identity.save(directory)
        self.shelf = SnapshotShelf(directory)
        finish_swaps(directory)
        self._open_groups(directory, on_progress)

    def _join(self, on_progress: Callable[[str], None]) -> SlotTable:
        """Join the cluster, waiting for a broker that is not there yet."""
        settings, deadline = self.settings, Deadline(self.settings.startup_timeout_s)
        if settings.replication != len(settings.nodes):
            raise ReplicationUnsupported(
                f"replication {settings.replication} with {len(settings.nodes)} nodes is not offered yet",
                action="for now every node holds every row: use a replication equal to the number of nodes",
            )
        if settings.node not in settings.nodes:
            raise DataDirectoryForeign(
                f"node {settings.node!r} is not among --nodes {','.join(settings.nodes)}", action="name it there"
            )
        create = Create(settings.nodes, settings.replication, settings.slots)
        while True:
            try:
                return join_cluster(self.log, self.topics, create)
            except LogUnavailable as error:
                on_progress(f"waiting for Kafka at {settings.bootstrap}: {error.message}")
                if deadline.passed() or self._stopping.is_set():
                    raise LogUnavailable(
                        f"Kafka at {settings.bootstrap} did not answer within {settings.startup_timeout_s:g} s",
                        action="check the address and the broker, then start the node again",
                        retriable=True,
                    ) from error
                self._stopping.wait(1.0)

    def _check_topics(self) -> None:
        for group in self.slot_table.groups_of(self.settings.node):
            topic = self.topics.forward(group)
            state = self.log.describe(topic)
            known = self.identity.topics.setdefault(topic, state.topic_id)
            if known != state.topic_id:
                self._replaced[topic] = (
                    f"topic {topic} was made again since this node stored its data (id {known} is now {state.topic_id}); "
                    f"{choices(group)}"
                )
            self._ends[topic] = state.end

    def _open_groups(self, directory: Path, on_progress: Callable[[str], None]) -> None:
        settings = self.settings
        names = self.slot_table.groups_of(settings.node)
        self.journal = Journal(directory / "journal", names)
        self._opened.callback(self.journal.close)
        self._encoders = encoding_threads(settings.store)
        self._opened.callback(self._encoders.shutdown)
        self.groups: dict[str, Group] = {}
        cursors: dict[str, Cursor] = {}
        for name in names:
            topic = self.topics.forward(name)
            group = self.groups[topic] = self._open_group(name)
            cursors[topic] = self._recover(group, on_progress)
            if topic in self._replaced:
                group.lose(self._replaced[topic])
        self.journal.release_recovered()
        limits = settings.limits
        self.runner = Runner(
            self.log, self._consumer, self.groups, cursors, self.journal, limits, self._durable, self._trimmed
        )
        self.standing = Standing(
            self.identity,
            self.incarnation,
            self.groups,
            self.runner,
            self.broadcast,
            self._ends,
            settings.roles.take_back_ms,
        )

    def _open_group(self, name: str) -> Group:
        try:
            store = Store.open(self.settings.data_directory, name, self.settings.store, self._encoders)
        except StoreDamaged as error:
            aside = Store.set_aside(self.settings.data_directory, name)
            self.journal.forget_all(name, self.journal.newest_version(name))
            _log.error("store damaged, set aside", group=name, directory=str(aside), error=str(error))
            store = Store.open(self.settings.data_directory, name, self.settings.store, self._encoders)
        self._opened.callback(store.close)
        group = Group(name, self.slot_table.group(name), 1, store, self.tables, self.settings.limits, self._sealed)
        self._opened.callback(group.stop)
        return group

    def _recover(self, group: Group, on_progress: Callable[[str], None]) -> Cursor:
        """Apply a group's journal beyond its store; where to read on from."""
        newest = self.journal.newest_version(group.name)
        begin = group.version
        self._join_gap(group)
        shown = time.monotonic()

        def note(entry: JournalEntry) -> None:
            nonlocal shown
            if time.monotonic() - shown > 1.0:
                shown = time.monotonic()
                on_progress(f"group {group.name}: journal record {entry.version - begin} of {newest - begin}")

        try:
            group.recover(self.journal.recovered(group.name, begin), note)
        except HeadraceError as error:
            group.fail(str(error))
        self._join_gap(group)
        if newest <= begin:
            self.journal.forget_all(group.name, newest)
        return Cursor.of(group.replica.state)

    def _join_gap(self, group: Group) -> None:
        """A gap that was accepted, or must be passed by other files, is remembered over restarts."""
        topic = self.topics.forward(group.name)
        if topic in self.identity.gaps:
            gap = parse_gap(self.identity.gaps[topic])
            if topic in self.identity.wrong:
                group.gap = gap
            else:
                group.join(gap)

    def _start_threads(self, speaking: bool) -> None:
        source = LocalSource(lambda: list(self.groups.values()), self.tables.catalogue)
        directories = [group.store.segments_directory for group in self.groups.values()]
        self.engine = QueryEngine(
            source, directories, self.settings.query, on_unreadable=lambda: self.mending.scrubber.hurry()
        )
        self._speaking = speaking
        self.watching = Watching(
            self.log,
            self._consumer,
            self.tables,
            self.groups,
            self.identity.topics,
            self.runner.durable_offset,
            self.standing,
            self.shelf.expire,
        )
        self.duties = Duties(
            self.log,
            self.groups,
            self.settings.node,
            self.incarnation,
            self.settings.seal,
            self.standing.view,
            self.broadcast.speak_now,
            lambda database, table: self.tables.catalogue.newest(database, table).retention_ns,
            Trimming(self.log, self.broadcast.live, self.limits.log_keep_records),
        )
        self.mending = Mending(
            self.log,
            self.settings.data_directory,
            self.identity,
            self.groups,
            self.journal,
            self.runner,
            self.standing,
            self.broadcast,
            self._open_group,
            self.limits,
        )
        self.standing.decision = self.duties.decision
        for group in self.groups.values():
            group.start()
        self.runner.start()
        if speaking:
            self.broadcast.start()
            self.duties.start()
            self.mending.start()
        self.watching.start()
        self.started = True

    def serve(self, host: str, port: int) -> None:
        """Serve HTTP; port 0 takes a free one. Raises AddressInUse."""
        operations = [*admin_routes(self), *snapshot_routes(self)]
        server = Server(create_app(self, loopback=host in LOOPBACK, operations=operations), host, port)
        server.start()
        self._server = server
        self.http_address = self.standing.http_address = server.url
        self.broadcast.speak_now()

    # Shut-down, top down.

    def stop(self) -> None:
        """Stop every thread and give up the directory, also after a start that failed. What was journaled is found again at the next start."""
        self._stopping.set()
        if self._server is not None:
            self._server.stop()
        if self.started:
            self.engine.close()
            self.mending.stop()
            self.duties.stop()
            self.runner.stop()
            for group in self.groups.values():
                group.stop()
            self.broadcast.stop()
            self.watching.stop()
        self._opened.close()
        self.log.close()

    # What operators ask of it.

    def seal(self, group_name: str) -> dict[str, Any]:
        """Seal a group that this node leads, and wait until the log says so. Raises NotLeader, SealUnconfirmed."""
        topic = self.topic_of(group_name)
        if topic is None:
            raise NotLeader(f"group {group_name!r} is not at node {self.settings.node}")
        group = self.groups[topic]
        before = group.applied
        self.duties.seal(topic)
        if not group.wait_for(
            lambda: group.applied.frontier > before.frontier or group.applied.epoch > before.epoch, SEAL_TIMEOUT_S
        ):
            raise SealUnconfirmed(
                f"the seal of group {group_name} was not read back in {SEAL_TIMEOUT_S:g} s", action="seal again"
            )
        if group.applied.epoch > before.epoch:
            raise NotLeader(
                f"another claim came into the log of group {group_name} before this seal, which does not count",
                action="ask the new leader",
                retriable=True,
            )
        return {"group": group_name, "version": group.applied.frontier}

    def evidence(self, group_name: str, version: int, sealed_version: int) -> dict[str, Any]:
        """The chain after a record, the digests of the segments that end at or below a version, and how far the work on files is."""
        group = next(group for group in self.groups.values() if group.name == group_name)
        chain, stored_version = group.chain_at(version), group.files.version
        digests = {
            entry.name: entry.content_digest for entry in group.store.segments() if entry.last_version <= sealed_version
        }
        return {
            "chain": chain.hex() if chain is not None else f"not remembered (at version {group.version})",
            "digests": digests,
            "stored_version": stored_version if stored_version == group.files.version else -1,
        }

    def accept_gap(self, group_name: str, resume_offset: int | None) -> dict[str, Any]:
        """Accept that the log of a group lost records for good. Raises GapRefused."""
        topic = self.topic_of(group_name)
        if topic is None:
            raise GapRefused(f"group {group_name!r} is not at node {self.name}")
        return {"group": group_name, **gap_document(self.mending.accept_gap(topic, resume_offset))}

    def make_snapshot(self, group_name: str) -> Snapshot:
        """The files of a group that is in sync here, for another member. Raises SnapshotRefused."""
        topic = self.topic_of(group_name)
        if topic is None:
            raise SnapshotRefused(f"group {group_name!r} is not at node {self.name}")
        if reason := self.reason(topic):
            raise SnapshotRefused(f"group {group_name} is not in sync at node {self.name}: {reason}", retriable=True)
        group = self.groups[topic]
        if group.sealed_for_others[0] < 1:
            raise SnapshotRefused(
                f"group {group_name} has not sealed what a copy needs to join its log", retriable=True
            )
        return self.shelf.make(group_name, self.identity.topics[topic], group.era, group.store)

    def _trimmed(self, topic: str, needed: int, log_begin: int) -> None:
        """The log begins behind what a group has: it recovers; a node without a voice only says so."""
        if self._speaking:
            self.mending.trimmed(topic, needed, log_begin)
            return
        self.groups[topic].fail(
            f"topic {topic} begins at offset {log_begin} and {needed} is needed: the log was trimmed; "
            "start the node instead, it recovers from the files of another member"
        )

    # What the node knows of itself.

    @property
    def cluster(self) -> str:
        """Name of the cluster."""
        return self.settings.cluster

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.settings.node

    @property
    def limits(self) -> ReplicationLimits:
        """Its limits."""
        return self.settings.limits

    def role(self, topic: str) -> Role:
        """Role in the group of a forward topic."""
        return self.duties.decision(topic).role

    def topic_of(self, group_name: str) -> str | None:
        """The forward topic of one of this node's groups."""
        return next((topic for topic, group in self.groups.items() if group.name == group_name), None)

    def end(self, topic: str) -> int:
        """The end of a forward log when it was last looked at."""
        return self.standing.end(topic)

    @property
    def scrubber(self) -> Scrubber:
        """Reads its files again."""
        return self.mending.scrubber

    def progress(self, topic: str) -> Progress | None:
        """How a recovery of the group goes, None while there is none."""
        return self.standing.progress(topic)

    def held_back(self, topic: str) -> int:
        """Offsets of a forward topic that nobody can read because of an open transaction."""
        return self.standing.held_back(topic)

    def reason(self, topic: str) -> str:
        """What keeps a group from being in sync here, empty when nothing does."""
        return self.standing.reason(topic)

    def ready(self) -> tuple[bool, list[str]]:
        """Whether every group here serves, and the reasons why not."""
        return self.standing.ready()

    def startup_done(self) -> bool:
        """Whether the data is open and the logs are followed."""
        return self.started

    def live(self) -> bool:
        """False when only a restart can help."""
        return not self.started or self.runner.alive

    def status(self) -> dict[str, Any]:
        """Everything an operator wants to know first."""
        return status_report(self)

    def metrics(self) -> str:
        """The metrics in the text form of Prometheus."""
        return metrics_text(self)

    # What its parts tell it.

    def _sealed(self, group_name: str, version: int) -> None:
        try:
            self.journal.forget(group_name, version)
        except HeadraceError as error:
            _log.warning("journal keeps sealed records", group=group_name, error=str(error))
        self.broadcast.speak_now()

    def _durable(self) -> None:
        self.broadcast.speak_now()


def installed_version() -> str:
    """Version of the installed distribution, `unknown` in a source tree that is not installed."""
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "unknown"
