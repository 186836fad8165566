"""Rebuilds the store of a stopped node from the topics: the node's own code, without a voice.

The new store is built beside the old one and takes its place only when it is complete; then the old one is deleted. A crash leaves the old
directory or the new one under its name, or, between two renames, neither: then both lie beside it, and a node that is started recovers by itself.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from connectors.files import DirectoryLock, fsync_directory
from connectors.log.deadline import Deadline
from connectors.log.kafka import KafkaLog
from connectors.log.port import Log
from connectors.log.topics import Topics
from consumers.membership.cluster import read_slot_table
from consumers.node import Node, NodeSettings
from consumers.replication.broadcast import StatusReader
from consumers.replication.identity import IDENTITY_FILE, Identity
from schemas.errors import HeadraceError

STALL_TIMEOUT_S = 30.0
LISTEN_S = 1.5
PARTIAL_SUFFIX = ".replay"
REPLACED_SUFFIX = ".replaced"


class NodeRunning(HeadraceError):
    """The node that is to be rebuilt is alive."""


class DirectoryNotEmpty(HeadraceError):
    """A data directory that holds something, and nobody said that it may go."""


class ReplayStalled(HeadraceError):
    """The log has more records, and none came for a while."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay read and built."""

    records: int
    rows: int
    segments: int
    bytes: int
    seconds: float


def replay(
    settings: NodeSettings, *, may_replace: bool, on_progress: Callable[[int, int], None], log: Log | None = None
) -> Replayed:
    """Rebuild a store; `on_progress(done, total)` counts offsets of all logs together.

    Raises NodeRunning, DirectoryNotEmpty, DirectoryHeld, NoCluster, ReplayStalled and what a starting node raises.
    """
    directory = settings.data_directory
    settings = _as_born(settings, log)
    lock = _claim(directory, settings, may_replace)
    try:
        partial = directory.with_name(directory.name + PARTIAL_SUFFIX)
        shutil.rmtree(partial, ignore_errors=True)
        replayed = _build(replace(settings, data_directory=partial), on_progress, log)
    finally:
        if lock is not None:
            lock.release()
    _swap(directory, partial)
    return replayed


def _as_born(settings: NodeSettings, log: Log | None) -> NodeSettings:
    """The settings with nodes, replication and slots as the cluster was born. Raises NodeRunning."""
    kafka = log or KafkaLog(settings.bootstrap, settings.kafka)
    topics = Topics(settings.cluster)
    try:
        table = read_slot_table(kafka, topics)
        reader = StatusReader(kafka, topics.status)
        try:
            deadline = Deadline(LISTEN_S)
            while not deadline.passed():
                reader.follow(deadline.left_s())
            running = any(_is_fresh(reader, group, settings.node) for group in table.groups_of(settings.node))
        finally:
            reader.close()
    finally:
        if log is None:
            kafka.close()
    if running:
        raise NodeRunning(f"node {settings.node} of cluster {settings.cluster} is running", action="stop it first")
    return replace(settings, nodes=table.nodes, replication=table.replication, slots=table.slots)


def _is_fresh(reader: StatusReader, group: str, node: str) -> bool:
    """Whether a node has spoken while we listened; a topic in which nobody else speaks has no newer time to compare with."""
    heard = reader.board.heard.get((group, node))
    return heard is not None and time.time() * 1_000 - heard.timestamp_ms < LISTEN_S * 1_000


def _claim(directory: Path, settings: NodeSettings, may_replace: bool) -> DirectoryLock | None:
    """Hold the old directory, if there is one, so that no node opens it meanwhile."""
    if not directory.exists() or not any(directory.iterdir()):
        return None
    lock = DirectoryLock(directory, purpose="data directory")
    try:
        if (directory / IDENTITY_FILE).exists():
            Identity.load(directory, settings.cluster, settings.node)
        if not may_replace:
            raise DirectoryNotEmpty(
                f"data directory {directory} is not empty", action="add --replace to rebuild it, or name another one"
            )
    except BaseException:
        lock.release()
        raise
    return lock


def _build(settings: NodeSettings, on_progress: Callable[[int, int], None], log: Log | None) -> Replayed:
    node, started = Node(settings, log), time.monotonic()
    node.start(lambda _line: None, speaking=False)
    try:
        _await_end(node, on_progress)
        groups = list(node.groups.values())
        for group in groups:
            group.files.drain()
        segments = [entry for group in groups for entry in group.store.segments()]
        return Replayed(
            records=sum(group.version for group in groups),
            rows=sum(group.rows_applied for group in groups),
            segments=len(segments),
            bytes=node.runner.bytes_consumed,
            seconds=time.monotonic() - started,
        )
    finally:
        node.stop()


def _await_end(node: Node, on_progress: Callable[[int, int], None]) -> None:
    """Wait until every group has applied its log up to where it ended when it was last looked at. Raises ReplayStalled."""
    newest, stalled = -1, Deadline(STALL_TIMEOUT_S)
    while True:
        done = sum(max(0, group.applied.offset + 1) for group in node.groups.values())
        total = sum(node.end(topic) for topic in node.groups)
        on_progress(min(done, total), total)
        faults = [f"group {group.name}: {group.fault}" for group in node.groups.values() if group.fault]
        if faults:
            raise HeadraceError(faults[0], action="mend the log, then replay again; nothing was replaced")
        if all(node.standing.caught_up(topic) for topic in node.groups):
            return
        if done > newest:
            newest, stalled = done, Deadline(STALL_TIMEOUT_S)
        elif stalled.passed():
            reasons = "; ".join(node.reason(topic) for topic in node.groups if node.reason(topic))
            raise ReplayStalled(
                f"no record came for {STALL_TIMEOUT_S:g} s: {reasons}",
                action="check the broker; an open foreign transaction also holds the end of a log back",
            )
        time.sleep(0.05)


def _swap(directory: Path, partial: Path) -> None:
    replaced = directory.with_name(directory.name + REPLACED_SUFFIX)
    shutil.rmtree(replaced, ignore_errors=True)
    if directory.exists():
        directory.rename(replaced)
    partial.rename(directory)
    fsync_directory(directory.parent)
    shutil.rmtree(replaced, ignore_errors=True)
