"""Opens the groups of a node from its data directory, at its start and when one comes later.

That is the journal, the stores, and the records that only the journal holds. `group_lifecycle` calls this in a
running node.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from headrace.connectors.ends import end_all
from headrace.connectors.log.port import Log, TopicState
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.node.data_directory import Identity, set_aside
from headrace.consumers.node.group_deletion import decide, finish_deletion, finish_deletions, is_decided, sweep_staging
from headrace.consumers.node.settings import StoreSection
from headrace.consumers.recovery.file_copy import finish_swap, finish_swaps
from headrace.consumers.recovery.log_gap import parse_gap
from headrace.consumers.replication.founding import Founding
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import Event
from headrace.consumers.replication.group_registry import GroupRegistry
from headrace.consumers.replication.group_state import GroupState, LogBase, lost_log_choices
from headrace.consumers.replication.hash_chain import record_digest
from headrace.consumers.replication.heartbeat import Heartbeat
from headrace.consumers.replication.journal import Journal, JournalBroken, JournalEntry
from headrace.consumers.replication.log_consumer import RECEIPTS_MAX
from headrace.consumers.replication.log_prefix import Cursor
from headrace.consumers.replication.row_selection import RowSelection
from headrace.consumers.store import Store, StoreDamaged, encoding_threads
from headrace.consumers.store.segment_files import path_component
from headrace.consumers.sync.centres import Centres
from headrace.consumers.wal import LogDamaged
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.group_names import group_name
from headrace.schemas.receipts import receipt_of

PROGRESS_INTERVAL_S = 1.0
JOURNAL_DIRECTORY = "journal"
_UNREADABLE = (errno.EIO, errno.EUCLEAN, errno.EBADMSG)
"""What a disk reports for bytes that it has lost."""
_log = structlog.get_logger(__name__)


class LocalGroups:
    """Owns the journal and the groups of one node, by forward topic.

    `open_group` is also called when a group was replaced, `add` and `remove` when one comes or goes.
    """

    def __init__(
        self,
        directory: Path,
        identity: Identity,
        wanted: Mapping[GroupKey, Founding],
        topics: Topics,
        schema_log: SchemaLog,
        heartbeat: Heartbeat,
        settings: StoreSection,
        selection: RowSelection | None = None,
    ) -> None:
        self.directory = directory
        self._selection = selection
        self.identity = identity
        self.topics = topics
        self._schema_log = schema_log
        self._heartbeat = heartbeat
        self._settings = settings
        # Before any store: their upkeep waits for these.
        self.centres = Centres(directory)
        self._foundings: dict[str, Founding] = {}
        self.keys: dict[str, GroupKey] = {}
        for key, founding in wanted.items():
            self._place(key, founding)
        self._opened = ExitStack()
        self._open_groups: list[Group] = []
        # `node.json` is written under it, by whichever thread.
        self.recording = threading.RLock()
        self._recreated: dict[str, str] = {}
        self.ends: dict[str, int] = {}
        self.warnings: list[str] = []
        self.groups = GroupRegistry()
        self.cursors: dict[str, Cursor] = {}
        self.receipts: dict[str, bytes] = {}

    def _place(self, key: GroupKey, founding: Founding) -> str:
        topic = self.topics.forward(key.group, key.birth)
        self.keys[topic], self._foundings[topic] = key, founding
        return topic

    def check_topics(self, log: Log) -> None:
        """Compare the topics with those that the data came from, and note their ends.

        Raises TopicMissing, LogUnavailable.
        """
        for topic in self.keys:
            self._check_topic(topic, log.describe(topic))

    def _check_topic(self, topic: str, state: TopicState) -> None:
        known = self.identity.topics.setdefault(topic, state.topic_id)
        # Offsets of a recreated topic look like those of the old one, and a node that followed it would
        # mix two logs.
        self._recreated.pop(topic, None)
        if known != state.topic_id:
            self._recreated[topic] = (
                f"topic {topic} was recreated since this node stored its data "
                f"(id {known} is now {state.topic_id}); "
                f"{lost_log_choices(self.keys[topic].group)}"
            )
        self.ends[topic] = state.end

    def open(self, on_progress: Callable[[str], None]) -> None:
        """Open every group and apply the journal beyond its store; `cursors` are the positions to read from.

        `receipts` are of the newest records that only the journal holds.
        """
        # Before any store is opened: a crash in the middle of a deletion or a swap leaves a group with a part of its
        # files, or with those of two stores.
        finish_deletions(self.directory, self._forget)
        finish_swaps(self.directory)
        known = map(self.topics.group_of, {*self.keys, *self.identity.topics})
        sweep_staging(self.directory, {path_component(group_name(GroupKey(*each))) for each in known if each})
        try:
            self._open(on_progress)
        except (LogDamaged, JournalBroken, OSError) as error:
            if isinstance(error, OSError) and error.errno not in _UNREADABLE:
                raise
            # Also when the damage was found behind the first groups: their records are in the log as well.
            self.close()
            self._set_journal_aside(_root_message(error))
            self._open(on_progress)
        for topic, group in self.groups.items():
            self._mark_short_of_gap(topic, group)

    def _forget(self, directory: str) -> None:
        """Forget what is recorded of a group whose directories are deleted. Raises OSError; it can be repeated."""
        with self.recording:
            for topic, topic_id in list(self.identity.topics.items()):
                found = self.topics.group_of(topic)
                if found is None or path_component(group_name(GroupKey(*found))) != directory:
                    continue
                self.identity.forget(topic)
                # The other members must not compare an empty group with what this node has published of it.
                self.identity.renew()
                try:
                    self.identity.save(self.directory)
                except OSError:
                    # A full disk: without it nobody would finish the deletion before the next start.
                    self.identity.topics[topic] = topic_id
                    raise

    def _open(self, on_progress: Callable[[str], None]) -> None:
        self.journal = Journal(self.directory / JOURNAL_DIRECTORY, [group_name(key) for key in self.keys.values()])
        self._opened.callback(self.journal.close)
        self._encoders = encoding_threads(self._settings, self._settings.background_nice)
        self._opened.callback(self._encoders.shutdown)
        for topic in self.keys:
            self.groups.put(topic, self._open_recovered(topic, on_progress))
        for name in self.journal.remove_others():
            _log.info("journal of a group that left is cut", group=name)
        self.journal.release_recovered()

    def _open_recovered(self, topic: str, on_progress: Callable[[str], None]) -> Group:
        """A group with what its store and the journal hold, not started; its cursor and receipts are noted."""
        group = self.open_group(topic)
        # Data that was found wrong before the last stop is still wrong.
        if topic in self.identity.wrong:
            group.health.mark(self.identity.wrong[topic], gap=self._gap_of(topic))
            group.health.report(Event.RECORD)
        self.cursors[topic] = self._recover(topic, group, on_progress)
        if topic in self._recreated:
            group.mark_log_lost(self._recreated[topic])
        return group

    def open_group(self, topic: str) -> Group:
        """A group with its store as it is on the disk, not started. The caller discards the one before it."""
        key = group_name(self.keys[topic])
        try:
            store = self._open_store(key)
        except StoreDamaged as error:
            # Set aside and not deleted, since it may be the last copy. The journal alone would leave a hole
            # before its first record, so it goes as well, and the group recovers like one with an empty
            # directory.
            aside = Store.quarantine(self.directory, key)
            self.journal.forget_all(key)
            _log.error("store damaged, quarantined", group=key, directory=str(aside), error=str(error))
            self.warnings.append(
                f"the store of group {key} was damaged ({error.message}); "
                f"it is kept in {aside.relative_to(self.directory)}, and the group recovers"
            )
            store = self._open_store(key)
        header = self.keys[topic].group
        founding, selection = self._foundings[topic], self._selection
        group = Group(header, founding, store, self._schema_log, self._settings, self._on_sealed, selection=selection)
        self._open_groups.append(group)
        return group

    def _open_store(self, key: str) -> Store:
        return Store.open(self.directory, key, self._settings, self._encoders, self.centres, GroupState.from_bytes)

    def discard(self, group: Group) -> None:
        """Stop a group and close its store; a second call does nothing more."""
        group.stop()
        group.store.close()
        if group in self._open_groups:
            self._open_groups.remove(group)

    def add(self, key: GroupKey, founding: Founding, state: TopicState) -> tuple[str, Group]:
        """Open and start a group that comes while the node runs, whose log is in that state; it is in no registry yet.

        It has what the directory holds of it, mostly nothing. Raises StoreError, OSError.
        """
        topic = self._place(key, founding)
        try:
            group = self._add(topic, key, state)
            group.start()
            return topic, group
        except BaseException:
            # Opened in part: the next attempt must find its store unlocked.
            for group in [group for group in self._open_groups if group.key == group_name(key)]:
                self.discard(group)
            self._displace(topic)
            raise

    def _add(self, topic: str, key: GroupKey, state: TopicState) -> Group:
        directory = path_component(group_name(key))
        if is_decided(self.directory, directory):
            finish_deletion(self.directory, directory, self._forget)
        # A copy that was complete when the group was closed, or when the disk refused the swap.
        finish_swap(self.directory, directory)
        with self.recording:
            self._check_topic(topic, state)
            # Written before any data, so that no crash leaves data of which nothing shows the log.
            self.identity.save(self.directory)
        self.journal.add(group_name(key))
        group = self._open_recovered(topic, lambda _line: None)
        self._mark_short_of_gap(topic, group)
        return group

    def remove(self, topic: str, group: Group) -> None:
        """Close a group that goes; its directories stay until `delete`."""
        self.discard(group)
        # Behind the store: what a crash in between leaves in the journal, the next start deletes, because the group
        # is not one of its own.
        self.journal.remove(group.key)
        self._displace(topic)

    def _displace(self, topic: str) -> None:
        kept: tuple[dict[str, Any], ...] = (self.keys, self._foundings, self.ends, self.cursors, self.receipts)
        for known in (*kept, self._recreated):
            known.pop(topic, None)

    def delete(self, topic: str) -> None:
        """Delete what a closed group has left on the disk. Raises OSError; it can be repeated."""
        assert topic not in self.keys, topic
        found = self.topics.group_of(topic)
        if found is None:
            return
        directory = path_component(group_name(GroupKey(*found)))
        decide(self.directory, directory)
        finish_deletion(self.directory, directory, self._forget)

    def left(self, wanted: Collection[GroupKey]) -> list[GroupKey]:
        """The groups that are closed and not wanted, and that have left something on the disk."""
        found = (self.topics.group_of(topic) for topic in self.identity.topics if topic not in self.keys)
        return sorted(key for each in found if each and (key := GroupKey(*each)) not in wanted)

    def close(self) -> None:
        """Stop the groups and close their stores and the journal, whatever fails. Raises the first error."""
        groups = [partial(self.discard, group) for group in self._open_groups[::-1]]
        end_all([*groups, self._opened.close])

    def _recover(self, topic: str, group: Group, on_progress: Callable[[str], None]) -> Cursor:
        """Apply a group's journal beyond its store; the cursor behind its newest record."""
        newest = self.journal.newest_version(group.key)
        begin = group.version
        # Twice: the anchor of the gap may be the store's newest record, or one that the journal holds.
        self._join_gap(topic, group)
        shown_s = time.monotonic()

        def note(entry: JournalEntry) -> None:
            nonlocal shown_s
            if time.monotonic() - shown_s > PROGRESS_INTERVAL_S:
                shown_s = time.monotonic()
                on_progress(f"group {group.name}: journal record {entry.version - begin} of {newest - begin}")

        last, receipts = None, deque[bytes](maxlen=RECEIPTS_MAX)
        try:
            last = group.recover(_noted(self.journal.recovered(group.key, begin), receipts), note)
        except (LogDamaged, JournalBroken):
            raise
        except HeadraceError as error:
            group.fail(str(error))
        except Exception as error:
            # As the applying thread: one group stops at its record, and the others start.
            group.fail(f"record of the journal: {error!r}")
            _log.exception("recovering failed", group=group.name)
        self.receipts[topic] = b"".join(receipts)
        self._join_gap(topic, group)
        # A crash after a seal, or after a swap, leaves entries that are older than the store.
        if newest <= begin:
            self.journal.forget_all(group.key)
        # Entries that wait for a table are read and not applied.
        if last is not None and last.version > group.replica.state.version:
            newest_read = Cursor(last.version, last.offset, record_digest(last.value))
            return newest_read.expecting(group.replica.state.base)
        return Cursor.of(group.replica.state)

    def _set_journal_aside(self, reason: str) -> None:
        """Continue without the journal, like a node whose disk was lost behind its segments."""
        # None of it is used, not even what can be read: the readable beginning may be older than data that
        # was replaced since, and the log has every record anyway. The new store id comes first: others must
        # not compare what the log gives now with what this node reported of the journal's records.
        self.identity.renew()
        self.identity.save(self.directory)
        aside = set_aside(self.directory, JOURNAL_DIRECTORY)
        name = aside.relative_to(self.directory)
        self.warnings.append(
            f"the journal was damaged ({reason}); it is kept in {name}, and the groups of this node "
            "recover from their logs, or from other members where a log no longer has the records"
        )
        _log.error("journal damaged, set aside", directory=str(aside), error=reason)

    def _mark_short_of_gap(self, topic: str, group: Group) -> None:
        """Data that ends before an accepted gap cannot follow the log: only another member has the rest."""
        # The records before the gap were in the journal alone until the seal that the gap asks for.
        gap = self._gap_of(topic)
        if gap is None or topic in self.identity.wrong:
            return
        if group.version < gap.version:
            why = f"it has version {group.version} and its log continues behind version {gap.version}"
            with self.recording:
                self.identity.wrong[topic] = why
                self.identity.save(self.directory)
            group.health.mark(why, gap=gap)
            group.health.report(Event.RECORD)

    def _join_gap(self, topic: str, group: Group) -> None:
        """Restore an accepted gap as the base of the log; wrong data must be replaced instead."""
        gap = self._gap_of(topic)
        if gap is not None and not group.health.is_wrong:
            group.join_gap(gap)

    def _gap_of(self, topic: str) -> LogBase | None:
        return parse_gap(self.identity.gaps[topic]) if topic in self.identity.gaps else None

    def _on_sealed(self, key: str, version: int) -> None:
        try:
            self.journal.forget(key, version)
        except HeadraceError as error:
            # The records are in segments: a journal that keeps them longer costs space and nothing else.
            _log.warning("journal keeps sealed records", group=key, error=str(error))
        self._heartbeat.send_now()


def _root_message(error: BaseException) -> str:
    """What the first cause says, without its advice: that is about the directory as it was."""
    while isinstance(error.__cause__, HeadraceError | OSError):
        error = error.__cause__
    return error.message if isinstance(error, HeadraceError) else str(error)


def _noted(entries: Iterable[JournalEntry], receipts: deque[bytes]) -> Iterator[JournalEntry]:
    """The entries, with the receipt of each noted."""
    for entry in entries:
        receipts.append(receipt_of(entry.offset, record_digest(entry.value)))
        yield entry
