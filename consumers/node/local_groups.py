"""Opens the groups of a node from its data directory.

That is the journal, the stores, and the records that only the journal holds.
"""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import structlog

from headrace.connectors.log.port import Log
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.node.data_directory import Identity, set_aside
from headrace.consumers.node.settings import StoreSection
from headrace.consumers.recovery.file_copy import finish_swaps
from headrace.consumers.recovery.log_gap import parse_gap
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import Event
from headrace.consumers.replication.group_state import LogBase, lost_log_choices
from headrace.consumers.replication.hash_chain import record_digest
from headrace.consumers.replication.heartbeat import Heartbeat
from headrace.consumers.replication.journal import Journal, JournalBroken, JournalEntry
from headrace.consumers.replication.log_consumer import RECEIPTS_MAX
from headrace.consumers.replication.log_prefix import Cursor
from headrace.consumers.store import Store, StoreDamaged, encoding_threads
from headrace.consumers.wal import LogDamaged
from headrace.schemas.errors import HeadraceError
from headrace.schemas.receipts import receipt_of

PROGRESS_INTERVAL_S = 1.0
JOURNAL_DIRECTORY = "journal"
_UNREADABLE = (errno.EIO, errno.EUCLEAN, errno.EBADMSG)
"""What a disk reports for bytes that it has lost."""
_log = structlog.get_logger(__name__)


class LocalGroups:
    """Owns the journal and the groups of one node, by forward topic.

    `open_group` is also called when a group was replaced. `joining` is why the node has no groups at all, empty for
    a node of the slot table.
    """

    def __init__(
        self,
        directory: Path,
        identity: Identity,
        slot_table: SlotTable,
        topics: Topics,
        schema_log: SchemaLog,
        heartbeat: Heartbeat,
        settings: StoreSection,
    ) -> None:
        self.directory = directory
        self.identity = identity
        self._slot_table = slot_table
        self._topics = topics
        self._schema_log = schema_log
        self._heartbeat = heartbeat
        self._settings = settings
        # A node that is not in the table holds nothing.
        self.joining = "" if identity.node in slot_table.nodes else joining_reason(identity.node, slot_table)
        self._names = () if self.joining else slot_table.groups_of(identity.node)
        self._opened = ExitStack()
        self._recreated: dict[str, str] = {}
        self.ends: dict[str, int] = {}
        self.warnings: list[str] = []
        self.groups: dict[str, Group] = {}
        self.cursors: dict[str, Cursor] = {}
        self.receipts: dict[str, bytes] = {}

    def check_topics(self, log: Log) -> None:
        """Compare the topics with those that the data came from, and note their ends.

        Raises TopicMissing, LogUnavailable.
        """
        for name in self._names:
            topic = self._topics.forward(name)
            state = log.describe(topic)
            known = self.identity.topics.setdefault(topic, state.topic_id)
            # Offsets of a recreated topic look like those of the old one, and a node that followed it would
            # mix two logs.
            if known != state.topic_id:
                self._recreated[topic] = (
                    f"topic {topic} was recreated since this node stored its data "
                    f"(id {known} is now {state.topic_id}); "
                    f"{lost_log_choices(name)}"
                )
            self.ends[topic] = state.end

    def open(self, on_progress: Callable[[str], None]) -> None:
        """Open every group and apply the journal beyond its store; `cursors` are the positions to read from.

        `receipts` are of the newest records that only the journal holds.
        """
        if self.joining:
            _log.warning("joining", reason=self.joining)
        # Before any store is opened: a crash in the middle of a swap leaves a group with the files of two
        # stores.
        finish_swaps(self.directory)
        try:
            self._open(on_progress)
        except (LogDamaged, JournalBroken, OSError) as error:
            if isinstance(error, OSError) and error.errno not in _UNREADABLE:
                raise
            # Also when the damage was found behind the first groups: their records are in the log as well.
            self._opened.close()
            self._set_journal_aside(str(error))
            self._open(on_progress)
        self._mark_short_of_gap()

    def _open(self, on_progress: Callable[[str], None]) -> None:
        self.journal = Journal(self.directory / JOURNAL_DIRECTORY, self._names)
        self._opened.callback(self.journal.close)
        self._encoders = encoding_threads(self._settings)
        self._opened.callback(self._encoders.shutdown)
        for name in self._names:
            topic = self._topics.forward(name)
            group = self.groups[topic] = self.open_group(name)
            # Data that was found wrong before the last stop is still wrong.
            if topic in self.identity.wrong:
                group.health.mark(self.identity.wrong[topic], gap=self._gap_of(topic))
                group.health.report(Event.RECORD)
            self.cursors[topic] = self._recover(group, on_progress)
            if topic in self._recreated:
                group.mark_log_lost(self._recreated[topic])
        self.journal.release_recovered()

    def open_group(self, name: str) -> Group:
        """A group with its store as it is on the disk, not started."""
        try:
            store = Store.open(self.directory, name, self._settings, self._encoders)
        except StoreDamaged as error:
            # Set aside and not deleted, since it may be the last copy. The journal alone would leave a hole
            # before its first record, so it goes as well, and the group recovers like one with an empty
            # directory.
            aside = Store.quarantine(self.directory, name)
            self.journal.forget_all(name, self.journal.newest_version(name))
            _log.error("store damaged, quarantined", group=name, directory=str(aside), error=str(error))
            self.warnings.append(
                f"the store of group {name} was damaged ({error.message}); "
                f"it is kept in {aside.relative_to(self.directory)}, and the group recovers"
            )
            store = Store.open(self.directory, name, self._settings, self._encoders)
        self._opened.callback(store.close)
        members = self._slot_table.group(name)
        group = Group(name, members, 1, store, self._schema_log, self._settings, self._on_sealed)
        self._opened.callback(group.stop)
        return group

    def close(self) -> None:
        """Stop the groups and close their stores and the journal."""
        self._opened.close()

    def _recover(self, group: Group, on_progress: Callable[[str], None]) -> Cursor:
        """Apply a group's journal beyond its store; the cursor behind its newest record."""
        newest = self.journal.newest_version(group.name)
        begin = group.version
        # Twice: the anchor of the gap may be the store's newest record, or one that the journal holds.
        self._join_gap(group)
        shown_s = time.monotonic()

        def note(entry: JournalEntry) -> None:
            nonlocal shown_s
            if time.monotonic() - shown_s > PROGRESS_INTERVAL_S:
                shown_s = time.monotonic()
                on_progress(f"group {group.name}: journal record {entry.version - begin} of {newest - begin}")

        last, receipts = None, deque[bytes](maxlen=RECEIPTS_MAX)
        try:
            last = group.recover(_noted(self.journal.recovered(group.name, begin), receipts), note)
        except (LogDamaged, JournalBroken):
            raise
        except HeadraceError as error:
            group.fail(str(error))
        except Exception as error:
            # As the applying thread: one group stops at its record, and the others start.
            group.fail(f"record of the journal: {error!r}")
            _log.exception("recovering failed", group=group.name)
        self.receipts[self._topics.forward(group.name)] = b"".join(receipts)
        self._join_gap(group)
        # A crash after a seal, or after a swap, leaves entries that are older than the store.
        if newest <= begin:
            self.journal.forget_all(group.name, newest)
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

    def _mark_short_of_gap(self) -> None:
        """Data that ends before an accepted gap cannot follow the log: only another member has the rest."""
        # The records before the gap were in the journal alone until the seal that the gap asks for.
        for topic, group in self.groups.items():
            gap = self._gap_of(topic)
            if gap is None or topic in self.identity.wrong:
                continue
            if group.version < gap.version:
                why = f"it has version {group.version} and its log continues behind version {gap.version}"
                self.identity.wrong[topic] = why
                self.identity.save(self.directory)
                group.health.mark(why, gap=gap)
                group.health.report(Event.RECORD)

    def _join_gap(self, group: Group) -> None:
        """Restore an accepted gap as the base of the log; wrong data must be replaced instead."""
        gap = self._gap_of(self._topics.forward(group.name))
        if gap is not None and not group.health.is_wrong:
            group.join_gap(gap)

    def _gap_of(self, topic: str) -> LogBase | None:
        return parse_gap(self.identity.gaps[topic]) if topic in self.identity.gaps else None

    def _on_sealed(self, group_name: str, version: int) -> None:
        try:
            self.journal.forget(group_name, version)
        except HeadraceError as error:
            # The records are in segments: a journal that keeps them longer costs space and nothing else.
            _log.warning("journal keeps sealed records", group=group_name, error=str(error))
        self._heartbeat.send_now()


def joining_reason(node: str, table: SlotTable) -> str:
    """Why a node that is not in the slot table serves nothing."""
    return (
        f"joining: node {node} is not among the nodes of the cluster, {', '.join(table.nodes)}, and holds no group; "
        "this version cannot add a node to a cluster"
    )


def _noted(entries: Iterable[JournalEntry], receipts: deque[bytes]) -> Iterator[JournalEntry]:
    """The entries, with the receipt of each noted."""
    for entry in entries:
        receipts.append(receipt_of(entry.offset, record_digest(entry.value)))
        yield entry
