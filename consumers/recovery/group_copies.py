"""Copies a group from another member: fetched, opened, and compared with the log and with other members.

A copy that is not proven to be of the group's log is never committed, and own records that are right give way to none
that ends before them (docs/internals/recovery.md).
"""

from __future__ import annotations

from pathlib import Path
from threading import Event

import structlog

from headrace.connectors.log.port import Log
from headrace.consumers.recovery.environment import GroupBusy, RecoveryEnvironment
from headrace.consumers.recovery.file_copy import (
    PARTS,
    RECOVERING,
    Snapshot,
    SourceCorrupt,
    SourceFailed,
    commit_copy,
    fetch,
)
from headrace.consumers.recovery.log_evidence import LogEvidence
from headrace.consumers.recovery.log_gap import read_chain
from headrace.consumers.recovery.progress import Recovery
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_state import GroupState, LogBase
from headrace.consumers.store import Store, StoreDamaged, StoreFormatUnknown

_log = structlog.get_logger(__name__)


class GroupCopies:
    """Makes copies of groups. Safe for the threads of a pool, one for each group."""

    def __init__(self, log: Log, environment: RecoveryEnvironment, evidence: LogEvidence, stopping: Event) -> None:
        self._log = log
        self._environment = environment
        self._evidence = evidence
        self._stopping = stopping

    def make(self, topic: str, group: Group, recovery: Recovery, source: str, url: str) -> None:
        """Fetch, verify, check that the log still continues the copy, and commit it.

        `source` is the member to copy from, at `url`. Raises SourceCorrupt, SourceFailed, GroupBusy, TransferStopped, and
        the errors of a log or a disk.
        """
        own = self._environment.directory
        directory = own / RECOVERING / group.directory_name
        _log.info("copying files", group=group.name, source=source)
        recovery.start_attempt(source)
        snapshot = fetch(self._environment.source(url, group.name), directory, recovery, own=own)
        if (snapshot.group, snapshot.topic_id) != (group.name, self._environment.topic_id(topic)):
            raise SourceCorrupt(f"the snapshot is of group {snapshot.group} in topic {snapshot.topic_id}")
        base = check_copy(directory, snapshot, group.key)
        # A log with a gap proves nothing, also while this replica has yet to read the gap.
        if base != LogBase() or not self._is_of_log(topic, group, snapshot, url):
            self._check_source(group, snapshot, source)
        # Read again after the copy: while it ran, a leader that did not see this node alive may have trimmed
        # past its end.
        begin = self._log.describe(topic).begin
        if snapshot.offset + 1 < begin:
            raise SourceFailed(
                f"the copy ends at offset {snapshot.offset} and the log begins at {begin} by now", retriable=True
            )
        if not recovery.wrong:
            self._check_reach(topic, snapshot)
        commit_copy(own, group.directory_name)

    def _check_reach(self, topic: str, snapshot: Snapshot) -> None:
        """Own records that are right do not give way to a copy that ends before them. Raises GroupBusy, SourceFailed."""
        # They were reported as durable, a writer may have counted them, and the journal goes with the old data. The
        # poll under way when the recovery was planned may have added some.
        if not self._environment.is_released(topic):
            raise GroupBusy("the log is still read for this group", retriable=True)
        if snapshot.offset < (durable := self._environment.durable_offset(topic)):
            raise SourceFailed(
                f"the copy ends at offset {snapshot.offset}, and {durable} is durable here", retriable=True
            )
        if self._evidence.lost_records(topic):
            raise SourceFailed("the log lost records that this node has", retriable=True)

    def _is_of_log(self, topic: str, group: Group, snapshot: Snapshot, url: str) -> bool:
        """Compare the copy's chain with that of the log; False where the log does not prove it.

        Raises SourceCorrupt, and the errors of a log that does not answer: it will, and no member is asked in its place.
        """
        # The source may be wrong without knowing it. A member that was tampered with looks in sync until the
        # next sample of its chain, and a copy from it would spread the fault to a majority.
        if group.log_is_whole(self._log.describe(topic).begin):
            known = read_chain(self._log, topic, snapshot.version, self._stopping.is_set)
            compared = known.version == snapshot.version
            chain = snapshot.chain if compared else self._chain_of(url, group, known.version)
            # A log that was cut proves nothing. One with a record that nobody can read does, up to that record.
            if (compared or known.unreadable) and chain not in (known.chain.hex(), ""):
                raise SourceCorrupt(f"its chain at version {known.version} is not that of the log")
            return compared
        return False

    def _check_source(self, group: Group, snapshot: Snapshot, source: str) -> None:
        """Compare the copy's chain with another member's. Raises SourceFailed: it is not decided which is wrong."""
        for status in self._environment.live(group):
            if status.node not in (self._environment.node, source) and status.durable_offset >= 0 and status.http:
                chain = self._chain_of(status.http, group, snapshot.version)
                if chain not in (snapshot.chain, ""):
                    raise SourceFailed(
                        f"its chain at version {snapshot.version} is not that of {status.node}", retriable=True
                    )

    def _chain_of(self, url: str, group: Group, version: int) -> str:
        """The chain of a member at a version, empty when it does not answer or does not know."""
        chain = self._environment.chain_of(url, group.name, version)
        return chain.hex() if chain is not None else ""


def check_copy(directory: Path, snapshot: Snapshot, key: str) -> LogBase:
    """Open the copy as a store and compare it with its listing; where its log begins.

    Raises SourceCorrupt, and SourceFailed for the files of a newer build.
    """
    try:
        store = Store.open(directory, key, read_state=GroupState.from_bytes)
    except StoreDamaged as error:
        raise SourceCorrupt(f"the copy cannot be opened: {error}") from error
    except StoreFormatUnknown as error:
        raise SourceFailed(f"its files are of a newer build: {error.message}", action="upgrade this node") from error
    try:
        state = GroupState.from_bytes(store.state) if store.state is not None else GroupState()
        found = {entry.name: (entry.size_bytes, entry.file_digest) for entry in store.segments()}
        prefix = f"{PARTS[0]}/{store.segments_directory.name}/"
    finally:
        store.close()
    listed = {
        file.path.removeprefix(prefix): (file.size_bytes, file.digest)
        for file in snapshot.files
        if file.path.startswith(prefix)
    }
    if (state.version, state.offset, state.chain.hex()) != (snapshot.version, snapshot.offset, snapshot.chain):
        raise SourceCorrupt(
            f"the index is of version {state.version} at offset {state.offset}, "
            f"the listing has {snapshot.version} at {snapshot.offset}"
        )
    if found != listed:
        raise SourceCorrupt("the segments of the index are not those of the listing")
    return state.base
