"""Rebuilds the store of a stopped node from the topics: the node's own code, as an observer.

The new store is built beside the old one and takes its place only when it is complete; then the old one is
deleted. A crash leaves the old or the new directory under its name, or, between two renames, neither: then
both exist under other names, and a node that is started recovers by itself.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.connectors.deadline import Deadline
from headrace.connectors.ends import ended_by
from headrace.connectors.files import (
    LOCK_NAME,
    DirectoryLock,
    create_directories,
    fsync_directory,
    has_no_space,
)
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.port import Log, TopicState
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import read_slot_table
from headrace.consumers.node.data_directory import DataDirectoryUnusable, Identity
from headrace.consumers.node.node import Node
from headrace.consumers.node.replay_files import ReplayFiles
from headrace.consumers.node.settings import IDENTITY_FILE, ServerSettings
from headrace.consumers.node.unfinished_directory import unfinished_directory
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import Aspect, State
from headrace.consumers.replication.heartbeat import StatusReader
from headrace.consumers.replication.row_selection import RowSelection
from headrace.consumers.store import StoreFull
from headrace.schemas.errors import HeadraceError
from headrace.schemas.records import Status

STALL_TIMEOUT_S = 30.0
LISTEN_S = 1.5
PARTIAL_SUFFIX = ".replay"
REPLACED_SUFFIX = ".replaced"
LOOK_S = 0.2


class NodeRunning(HeadraceError):
    """The node to rebuild is alive."""


class DirectoryNotEmpty(HeadraceError):
    """A data directory that is not empty, without permission to replace it."""


class LogIncomplete(HeadraceError):
    """A log that has not all records of its group: a store that is built from it would lack rows."""

    def __init__(self, group: str, why: str, first: str = "") -> None:
        """`first`: what else must be done before a node can recover."""
        super().__init__(
            f"group {group}: {why}",
            action=f"nothing was replaced; {first}start the node instead: it recovers from the files of another member. "
            "A query reads rows that are in files alone",
        )


class ReplayStalled(HeadraceError):
    """The log has more records, and none arrived for some time."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Figures of a replay: what it read and built. `loaded_files` are those that came from other members."""

    records: int
    rows: int
    segments: int
    bytes: int
    seconds: float
    loaded_files: int = 0


def replay(
    settings: ServerSettings, *, may_replace: bool, on_progress: Callable[[int, int], None], log: Log | None = None
) -> ReplayResult:
    """Rebuild a store; `on_progress(done, total)` counts offsets of all logs together.

    Raises NodeRunning, DirectoryNotEmpty, DirectoryHeld, NoCluster, LogIncomplete, DiskFull, ReplayStalled,
    LoadedFilesMissing and what a starting node raises.
    """
    directory = settings.node.data_directory
    settings = as_created(settings, log)
    lock = _claim(directory, settings, may_replace)
    try:
        with unfinished_directory(directory.with_name(directory.name + PARTIAL_SUFFIX)) as partial:
            result = _build(with_node(settings, data_dir=str(partial)), on_progress, log)
        # Under the lock: a node that started before it would lose its directory while it runs.
        _swap(directory, partial)
    finally:
        lock.release()
    return result


def as_created(settings: ServerSettings, log: Log | None, *, may_run: bool = False) -> ServerSettings:
    """The settings with nodes, replication and slots of the cluster's creation.

    Raises UnknownNode, LogIncomplete, and NodeRunning unless the node `may_run`.
    """
    kafka = log or KafkaLog(settings.cluster.bootstrap, settings.kafka)
    topics = Topics(settings.cluster.name)
    try:
        table = read_slot_table(kafka, topics)
        # A node that is not in the table would be rebuilt as one that holds nothing.
        groups = table.groups_of(settings.node.id)
        with closing(StatusReader(kafka, topics.status)) as reader:
            _listen(reader)
        # Statuses that arrive now, and not young ones: the broker's clock may be wrong.
        if settings.node.id in reader.senders and not may_run:
            raise NodeRunning(
                f"node {settings.node.id} of cluster {settings.cluster.name} is running", action="stop it first"
            )
        for group in groups:
            _check_whole(kafka.describe(topics.forward(group, table.birth(group))), group, reader.detector.online())
    finally:
        if log is None:
            kafka.close()
    born = with_node(settings, nodes=table.nodes, replication=table.replication)
    return born.model_copy(update={"cluster": settings.cluster.model_copy(update={"slots": table.slots})})


def _listen(reader: StatusReader) -> None:
    # Three heartbeat intervals: a directory lock would show a running node on this machine only.
    deadline = Deadline(LISTEN_S)
    while not deadline.passed():
        reader.follow(deadline.left_s())


def _check_whole(log: TopicState, group: str, online: Sequence[Status]) -> None:
    """Raises LogIncomplete where a log shows without a read that it has not all records of its group."""
    if log.begin > 0:
        raise LogIncomplete(group, f"the log was trimmed: it begins at offset {log.begin}")
    for each in (status for status in online if status.group == group):
        if each.log_lost:
            why = f"node {each.node} reports that the log is lost: {each.reason}"
            raise LogIncomplete(group, why, first="restore the log or accept the gap, then ")
        # Each record has an offset of its own. A member that counts more of them continues behind an accepted gap.
        if each.topic_id == log.topic_id and each.version > each.offset + 1:
            raise LogIncomplete(
                group,
                f"the log has an accepted gap: node {each.node} holds {each.version} records, and the log had at most "
                f"{each.offset + 1} of them",
            )


def with_node(settings: ServerSettings, **changed: object) -> ServerSettings:
    """Settings with other ones of the node."""
    return settings.model_copy(update={"node": settings.node.model_copy(update=changed)})


def _claim(directory: Path, settings: ServerSettings, may_replace: bool) -> DirectoryLock:
    """Lock the old directory, so that no node opens it meanwhile; also one that does not exist yet, which is made."""
    try:
        lock = DirectoryLock(create_directories(directory), purpose="data directory")
    except OSError as error:
        raise DataDirectoryUnusable.because(directory, error) from error
    try:
        if (directory / IDENTITY_FILE).exists():
            Identity.load(directory, settings.cluster.name, settings.node.id)
        # A replay that was killed leaves the lock file.
        if not may_replace and any(each.name != LOCK_NAME for each in directory.iterdir()):
            raise DirectoryNotEmpty(
                f"data directory {directory} is not empty", action="add --replace to rebuild it, or name another one"
            )
    except BaseException:
        lock.release()
        raise
    return lock


def _build(settings: ServerSettings, on_progress: Callable[[int, int], None], log: Log | None) -> ReplayResult:
    started = time.monotonic()
    with replayed_node(settings, on_progress, log) as (node, fetched):
        groups = list(node.groups.values())
        segments = [entry for group in groups for entry in group.store.segments()]
        return ReplayResult(
            records=sum(group.version for group in groups),
            rows=sum(group.rows_applied for group in groups),
            segments=len(segments),
            bytes=node.log_consumer.bytes_consumed,
            seconds=time.monotonic() - started,
            loaded_files=fetched,
        )


@contextmanager
def replayed_node(
    settings: ServerSettings,
    on_progress: Callable[[int, int], None],
    log: Log | None,
    selection: RowSelection | None = None,
) -> Iterator[tuple[Node, int]]:
    """(a node that has applied its logs to their ends, files that came from other members); stopped at the end."""
    node = Node(settings, log, selection)
    with ended_by(node.stop):
        node.start(lambda _line: None, observer=True)
        files = ReplayFiles(node.name, node.log, node.topics, node.groups, node.metadata.state, node.limits)
        with closing(files):
            _await_end(node, files, on_progress)
            # Stopping a node cancels its jobs: the newest seals would be left to the next start, and missing in
            # the figures.
            for group in list(node.groups.values()):
                _drain(node, group)
            yield node, files.fetched


def _drain(node: Node, group: Group) -> None:
    """Wait for the jobs of a group. Raises StoreFull for one that waits for space."""
    while not group.store_jobs.wait_done(group.version, LOOK_S):
        _check_disk(node)
        _check_faults(node)
    group.store_jobs.drain()


def _await_end(node: Node, files: ReplayFiles, on_progress: Callable[[int, int], None]) -> None:
    """Wait until every group has applied its log to the end that was read last, and has all files that it loads.

    Raises ReplayStalled, LoadedFilesMissing.
    """
    newest, stalled = (-1, -1), Deadline(STALL_TIMEOUT_S)
    while True:
        done = sum(max(0, group.applied.offset + 1) for group in node.groups.values())
        total = sum(node.positions.end(topic) for topic in node.groups)
        on_progress(min(done, total), total)
        _check_disk(node)
        _check_faults(node)
        # Before the look at the files: the last record may load one.
        caught_up = all(node.positions.caught_up(topic) for topic in node.groups)
        files.turn()
        if caught_up and not files.awaited:
            return
        if (done, files.fetched) > newest:
            newest, stalled = (done, files.fetched), Deadline(STALL_TIMEOUT_S)
        elif stalled.passed():
            if files.awaited:
                raise files.missing()
            reasons = "; ".join(node.reason(topic) for topic in node.groups if node.reason(topic))
            raise ReplayStalled(
                f"no record arrived for {STALL_TIMEOUT_S:g} s: {reasons}",
                action="check the broker; an open transaction of another producer also holds the end of a log back",
            )
        time.sleep(0.05)


def _check_disk(node: Node) -> None:
    """Raise StoreFull for a node that waits for space: a running one continues when somebody has freed some."""
    causes = [cause for group in node.groups.values() for cause in group.health.conditions.causes.values()]
    for cause in (node.log_consumer.journal_fault, *causes):
        if has_no_space(cause):
            raise StoreFull(cause)


def _check_faults(node: Node) -> None:
    """Raise HeadraceError for a group that cannot be rebuilt from its log."""
    for group in node.groups.values():
        if (gap := group.health.conditions.gap) is not None:
            raise LogIncomplete(
                group.name,
                f"the log has an accepted gap: offset {gap.offset} follows version {gap.version}, and the records before "
                "it are not in the log",
            )
        if group.health.holds(State.STOPPED):
            raise HeadraceError(
                f"group {group.name}: {group.health.cause(Aspect.RECORDS)}",
                action="repair the log, then replay again; nothing was replaced",
            )
        if group.health.holds(State.TRIMMED):
            raise LogIncomplete(group.name, f"{group.health.cause(Aspect.LOG)}: the log was trimmed")


def _swap(directory: Path, partial: Path) -> None:
    # A rename cannot replace a directory that is not empty, so there are two, and a crash between them is
    # possible.
    replaced = directory.with_name(directory.name + REPLACED_SUFFIX)
    shutil.rmtree(replaced, ignore_errors=True)
    if directory.exists():
        directory.rename(replaced)
    partial.rename(directory)
    fsync_directory(directory.parent)
    shutil.rmtree(replaced, ignore_errors=True)
