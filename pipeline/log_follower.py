"""Follows the forward logs of a cluster for a stream source: how far they are read, and which records do not count.

Runs in the driver. The rows are read again by the tasks; here a record counts by its producer, batch and sequence, as
at a replica. Repeats are known from the point where the query started on, and LOOK_BACK_RECORDS before it. A record
that an operator has refused does not count, and one that names an unknown version of a table is waited at.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.closing import is_closed
from headrace.connectors.log.port import Log, LogUnavailable, Reader, Record, TopicMissing
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.replication.hash_chain import record_digest
from headrace.consumers.replication.producer_section import Section
from headrace.pipeline.checkpoint import CheckpointForeign
from headrace.pipeline.source_options import StreamOptions
from headrace.producers.cluster import Routing, groups_of
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import FrameInvalid, check_format
from headrace.schemas.messages import Delete, Message, TableVersion, Write, decode_message
from headrace.schemas.tables import RecordName

LOOK_BACK_RECORDS = 1_000
"""Records of each log before the start of a query that are looked at for messages which are repeated later."""
IDLE_WAIT_S = 0.5
"""How long an idle query waits for the next record: Spark asks without a pause."""
POLL_RECORDS = 500
READ_TIMEOUT_S = 120.0
TABLE_WAIT_S = 60.0
TABLE_POLL_S = 0.2

Offsets = dict[str, dict[str, str | int]]
"""Of each log the topic's id, the next offset and the table: `{"c.forward.n1.1": {"id": "…", "offset": 7, "table":
"db.t"}}`. Checkpoints of earlier builds have no table.
"""


class LogTrimmed(HeadraceError):
    """A log no longer holds records that the query has not read."""


class TableAwaited(HeadraceError):
    """A record names a version of a table that is not in the table log. Replicas wait at it too."""


class RowsDeleted(HeadraceError):
    """Rows of the table were deleted, which a stream of rows cannot show."""


@dataclass(slots=True)
class _Topic:
    """One forward log. `dropped` has the offsets of records that do not count, in order: repeated and refused ones.

    `given` is the offset behind the newest batch. `closed_end` is its end when it was first seen closed, -1 before.
    `complete`: it was read to its final end.
    """

    topic_id: str
    start: int
    given: int = 0
    producers: Section = field(default_factory=lambda: Section(frozenset()))
    dropped: list[int] = field(default_factory=list)
    closed_end: int = -1
    complete: bool = False


class LogFollower:
    """The forward logs of one cluster. Owned by one thread."""

    def __init__(self, log: Log, routing: Routing, options: StreamOptions) -> None:
        self._log = log
        self._routing = routing
        self._options = options
        self._topics: dict[str, _Topic] = {}
        self._reader: Reader | None = None
        self._tables = SchemaLog(log, options.target.topics)

    @property
    def started(self) -> bool:
        """Whether `start` was called."""
        return self._reader is not None

    def beginning(self) -> Offsets:
        """Where a new query starts in every log."""
        latest = self._options.from_latest
        states = {topic: self._log.describe(topic) for topic in self._names()}
        return {
            topic: self._position(state.topic_id, state.end if latest else state.begin)
            for topic, state in states.items()
        }

    def start(self, offsets: Mapping[str, Mapping[str, str | int]]) -> None:
        """Follow from these offsets on. Raises LogTrimmed, CheckpointForeign."""
        self._check_own(offsets)
        starts: dict[str, int] = {}
        self._topics = {}
        for name, each in offsets.items():
            begin = self._checked_begin(name, str(each["id"]), int(each["offset"]))
            self._topics[name] = _Topic(str(each["id"]), int(each["offset"]), int(each["offset"]))
            starts[name] = max(begin, int(each["offset"]) - LOOK_BACK_RECORDS)
        self._follow(starts)

    def advance(self) -> Offsets:
        """Read what is there, or `maxRecordsPerBatch`; the offsets behind it. Raises LogTrimmed, RowsDeleted."""
        self._add_new_topics()
        assert self._reader is not None, "start comes first"
        ends = {topic: self._log.describe(topic).end for topic in self._topics}
        limit, deadline = self._options.records_per_batch_max, Deadline(READ_TIMEOUT_S)
        # Of a batch that was planned before a restart `cover` has read some logs further than others.
        taken = sum(position - self._topics[topic].given for topic, position in self._read().items())
        idle = not taken and all(self._reader.position(topic) >= end for topic, end in ends.items())
        behind = True
        while behind and taken < limit:
            _check_time(deadline)
            taken += self._take(min(POLL_RECORDS, limit - taken), IDLE_WAIT_S if idle else 0.1)
            behind = not idle and any(self._reader.position(topic) < end for topic, end in ends.items())
        return self._given(limit)

    def cover(self, end: Mapping[str, Mapping[str, str | int]]) -> None:
        """Read on up to these offsets, as those of a batch that was planned before a restart. Raises LogTrimmed."""
        assert self._reader is not None, "start comes first"
        # That batch may be the first one with the log of a group: its beginning does not name it.
        new = {name: str(each["id"]) for name, each in end.items() if name not in self._topics}
        for name, topic_id in new.items():
            self._checked_begin(name, topic_id, 0)
        self._add_topics(new)
        deadline = Deadline(READ_TIMEOUT_S)
        while any(
            self._reader.position(name) < int(each["offset"]) for name, each in end.items() if name in self._topics
        ):
            self._take(POLL_RECORDS, 0.2)
            _check_time(deadline)
        for name, each in end.items():
            if name in self._topics:
                self._topics[name].given = max(self._topics[name].given, int(each["offset"]))

    def dropped(self, topic: str, begin: int, end: int) -> tuple[int, ...]:
        """The offsets of records that do not count, in a range that was read."""
        found = self._topics[topic].dropped
        return tuple(found[bisect_left(found, begin) : bisect_left(found, end)])

    def forget(self, offsets: Mapping[str, Mapping[str, str | int]]) -> None:
        """What is below these offsets is not asked for again."""
        for name, each in offsets.items():
            if name in self._topics:
                dropped = self._topics[name].dropped
                del dropped[: bisect_left(dropped, int(each["offset"]))]

    def close(self) -> None:
        """Release everything."""
        with contextlib.ExitStack() as stack:
            for part in (self._log, self._routing, self._tables, self._reader):
                if part is not None:
                    stack.callback(part.close)

    def _names(self) -> list[str]:
        route = self._routing.route
        groups = dict.fromkeys([*groups_of(route.table), *route.ending])
        names = [self._options.target.topics.forward(group.group, group.birth) for group in groups]
        return [name for name in names if self._exists(name)]

    def _exists(self, topic: str) -> bool:
        try:
            self._log.describe(topic)
        except TopicMissing:
            return False
        return True

    def _checked_begin(self, name: str, topic_id: str, offset: int) -> int:
        try:
            state = self._log.describe(name)
        except TopicMissing:
            raise _lost(f"log {name} no longer exists: its group has left the cluster") from None
        if state.topic_id != topic_id:
            raise _lost(f"log {name} was deleted and made again")
        if state.begin > offset:
            raise _lost(f"log {name} begins at offset {state.begin}, and the query has read up to {offset}")
        if state.end < offset:
            raise _lost(f"log {name} ends at offset {state.end}, and the query has read up to {offset}: it was cut")
        return state.begin

    def _follow(self, starts: dict[str, int]) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = self._log.reader(starts, name=f"headrace-{self._options.target.cluster}-spark")

    def _add_new_topics(self) -> None:
        """Follow the logs of groups that a change of members has added; let go those that were read to their end.

        Raises LogTrimmed.
        """
        assert self._reader is not None, "start comes first"
        route = self._routing.route
        wanted = {self._options.target.topics.forward(each.group, each.birth) for each in groups_of(route.table)}
        positions = {topic: self._reader.position(topic) for topic in self._topics}
        ended = [topic for topic in self._topics if topic not in wanted]
        gone = [topic for topic in ended if not self._note_end(topic)]
        new = [topic for topic in sorted(wanted - self._topics.keys()) if self._exists(topic)]
        for topic in gone:
            if not self._topics[topic].complete:
                raise _lost(f"log {topic} was deleted with its group before the query had read it to its end")
            del self._topics[topic], positions[topic]
        if gone:
            self._follow(positions)
        states = {topic: self._log.describe(topic) for topic in new}
        for topic, state in states.items():
            if state.begin > 0:
                raise _lost(f"log {topic} is new to the query and begins at offset {state.begin}")
        self._add_topics({topic: state.topic_id for topic, state in states.items()})

    def _add_topics(self, new: Mapping[str, str]) -> None:
        """Follow logs, by their topics' ids, from their first records on."""
        if not new:
            return
        assert self._reader is not None, "start comes first"
        positions = {topic: self._reader.position(topic) for topic in self._topics}
        for topic, topic_id in new.items():
            self._topics[topic], positions[topic] = _Topic(topic_id, 0), 0
        self._follow(positions)

    def _note_end(self, name: str) -> bool:
        """Whether the log of a group that has ended exists; notes when it was read to its end."""
        assert self._reader is not None, "start comes first"
        topic = self._topics[name]
        try:
            # In this order: what is below the end of a closed log may still grow by a record that was under way, so
            # the same end is seen twice.
            if not topic.complete and is_closed(self._log, name):
                end = self._log.describe(name).end
                topic.complete = topic.closed_end == end and self._reader.position(name) >= end
                topic.closed_end = end
            return self._exists(name)
        except TopicMissing:
            return False

    def _take(self, records: int, wait_s: float) -> int:
        """Read some records; how many are behind the start."""
        assert self._reader is not None, "start comes first"
        taken = 0
        for record in self._reader.poll(records, wait_s):
            topic = self._topics[record.topic]
            taken += record.offset >= topic.start
            self._note(topic, record)
        return taken

    def _note(self, topic: _Topic, record: Record) -> None:
        message = decoded(record)
        if message is None:
            return
        # First, as at a replica: nothing follows a record that was refused.
        if isinstance(message.body, Write) and not self._counts(record, message.body):
            topic.dropped.append(record.offset)
            return
        if topic.producers.knows(message.position, message.digest):
            topic.dropped.append(record.offset)
            return
        position, body, target = message.position, message.body, self._options.target
        topic.producers.note(position.producer, position.batch, [(position.sequence, message.digest)])
        if not isinstance(body, Delete) or (body.database, body.table) != (target.database, target.table):
            return
        if body.is_fence:
            return
        if record.offset >= topic.start and not self._options.ignore_deletes:
            raise RowsDeleted(
                f"rows of {target.name} were deleted, at offset {record.offset} of {record.topic}",
                action='with option ignoreDeletes="true" the query continues and keeps them',
            )

    def _counts(self, record: Record, write: Write) -> bool:
        """Whether a write names a version of its table that exists; False once an operator has refused the record.

        Raises TableAwaited when neither is so for TABLE_WAIT_S.
        """
        named = TableVersion(write.database, write.table, write.schema_version)
        group = self._options.target.topics.group_of(record.topic)
        assert group is not None, record.topic
        name = RecordName(group[0], record.offset, record_digest(record.value))
        deadline = Deadline(TABLE_WAIT_S)
        decided = self._tables.accepts(name, (named,), 0.0)
        while decided is None:
            self._tables.refresh()
            decided = self._tables.accepts(name, (named,), 0.0)
            if decided is None and deadline.passed():
                raise TableAwaited(
                    f"the record at offset {record.offset} of group {group[0]} names version {named.schema_version} of "
                    f"{named.database}.{named.table}, which does not exist",
                    action="if no writer will add it: headrace refuse-record "
                    f"--group {group[0]} --offset {record.offset}; then restart the query",
                    retriable=True,
                )
            if decided is None:
                self._tables.follow(min(TABLE_POLL_S, deadline.left_s()))
        return decided

    def _read(self) -> dict[str, int]:
        """The offset up to which each log was read."""
        assert self._reader is not None, "start comes first"
        return {
            name: max(topic.start, topic.given, self._reader.position(name)) for name, topic in self._topics.items()
        }

    def _given(self, limit: int) -> Offsets:
        """The offsets behind the next batch, which has `limit` records of what was read."""
        left = limit
        for name, position in self._read().items():
            topic = self._topics[name]
            taken = min(position - topic.given, left)
            topic.given, left = topic.given + taken, left - taken
        return {name: self._position(topic.topic_id, topic.given) for name, topic in self._topics.items()}

    def _position(self, topic_id: str, offset: int) -> dict[str, str | int]:
        return {"id": topic_id, "offset": offset, "table": self._options.target.name}

    def _check_own(self, offsets: Mapping[str, Any]) -> None:
        """Raises CheckpointForeign for offsets of another source, or of another table: its rows would be skipped."""
        own = self._options.target.name
        for each in offsets.values():
            if not isinstance(each, Mapping) or not {"id", "offset"} <= each.keys():
                raise CheckpointForeign(
                    "the checkpoint is that of another source", action="name another checkpointLocation"
                )
            if (table := each.get("table", own)) != own:
                raise CheckpointForeign(
                    f"the checkpoint is that of table {table}, not of {own}", action="name another checkpointLocation"
                )


def decoded(record: Record) -> Message | None:
    """The message of a record of a forward log; None for bytes that no build could have written, which all ignore.

    Raises FormatTooNew.
    """
    check_format(record.headers, record.topic, record.offset)
    try:
        return decode_message(record.value)
    except FrameInvalid:
        return None


def _check_time(deadline: Deadline) -> None:
    if deadline.passed():
        raise LogUnavailable("the forward logs were not read to their end", action="check the broker", retriable=True)


def _lost(what: str) -> LogTrimmed:
    return LogTrimmed(
        what,
        action="rows in between may be missing: read them with spark.read, then start with a new checkpoint; "
        "or keep the logs longer (setting store.log_keep_records)",
    )
