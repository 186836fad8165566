"""The log as a port: ordered, durable topics of one partition that many may append to and anyone may read
from any offset.

Adapters: Kafka (the product) and memory (simulation and unit tests). Every adapter guarantees three things: a
reader sees only committed records, in one order that never changes; offsets rise but may have gaps; a reader
of an offset that is gone gets `LogTruncated` and is never moved to another offset silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.connectors.deadline import Deadline
from headrace.schemas.errors import HeadraceError, StateUnknown

CLOSE_FLUSH_S = 5.0
STOP_FLUSH_S = 1.0
"""Enough for a node that stops: its own records are repeated or replaced by those of the next leader."""

Headers = Sequence[tuple[str, bytes]]


UNKNOWN_EPOCH = -1
"""The leader epoch of a record where the log service does not give one."""
# A broker with TLS drops a client without it, which librdkafka takes for one that is away: nothing shows the cause.
CHECK_CONNECTION = "check the address, the broker, and whether security.protocol is that of the broker's listener"
"""What to do about a log service that does not answer."""


class LogUnavailable(HeadraceError):
    """The log does not answer; nothing was lost and a later try may succeed."""


class ClientSettingsRefused(HeadraceError):
    """Settings of the log's client that it does not know, or whose values it refuses."""

    exit_code = 2


class TopicSettingsRefused(HeadraceError):
    """Settings that a topic cannot have on this log service."""


class TopicMissing(HeadraceError):
    """A topic that does not exist, or no longer does."""


class LogTruncated(HeadraceError):
    """The log no longer holds, or never held, the requested offset."""


class TopicUnreadable(HeadraceError):
    """A topic that cannot be read although the log answers; `topic` is empty where it is every topic."""

    def __init__(self, message: str, *, topic: str = "", action: str = "") -> None:
        super().__init__(message, action=action)
        self.topic = topic


class AccessDenied(TopicUnreadable):
    """The log refuses this account."""


class RecordUndeliverable(TopicUnreadable):
    """The record at `offset` is in the log and cannot be read: its bytes changed, or are of an unknown format."""

    # Never skipped by a reader: a replica that misses a record is no copy of its log any more.
    def __init__(self, message: str, *, topic: str, offset: int, action: str = "") -> None:
        super().__init__(message, topic=topic, action=action)
        self.offset = offset


class RecordTooLarge(HeadraceError):
    """A record above the log's size limit; nothing was appended."""


class AppendFailed(HeadraceError):
    """A record was refused and is certainly not in the log."""


class AppendUnknown(StateUnknown):
    """A record may or may not be in the log."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a topic; `timestamp_ms` is the log's own clock at append.

    `leader_epoch` counts the leaders of the log up to the one that appended it. It never falls along a log. A log
    that lost records continues under a newer one, so offset and epoch name a record and all before it.
    """

    topic: str
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()
    leader_epoch: int = UNKNOWN_EPOCH


# Topics are compared by id, not by name: a topic that was deleted and created again is another log.
@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic's identity and its readable offsets, begin <= offset < end; a topic created again has another
    id.
    """

    topic_id: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicConfiguration:
    """How a topic is kept: partitions, copies, brokers of the whole log service.

    `settings`: name → value; None when this account may not see them.
    """

    partitions: int
    replication_factor: int
    brokers: int
    settings: Mapping[str, str] | None


OnDelivery = Callable[[int | None, HeadraceError | None], None]


class Reader(Protocol):
    """Reads several topics, each from its own offset. Owned by one thread.

    An error never moves a position: the next call tries the same record again.
    """

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """The next records, in order within a topic; waits up to `timeout_s` for the first.

        Raises LogTruncated, TopicMissing, LogUnavailable, TopicUnreadable; records before the one that an error
        is about are returned first.
        """
        ...

    def answered(self, topic: str) -> bool:
        """Whether a record of the topic, or its end, was reached since the reader was opened."""
        ...

    def position(self, topic: str) -> int:
        """The next offset to be read: every readable record below it has been returned by `poll`."""
        ...

    def seek(self, topic: str, offset: int) -> None:
        """Continue at `offset`. Raises the same errors as `poll`, as `pause` and `resume` do."""
        ...

    def pause(self, topics: Iterable[str]) -> None:
        """Return no records of these topics until `resume`."""
        ...

    def resume(self, topics: Iterable[str]) -> None:
        """The opposite of `pause`."""
        ...

    def close(self) -> None:
        """Release the reader's resources."""
        ...


class Appender(Protocol):
    """Appends records.

    Order per topic is the order of the calls, also across retries. Safe to share between threads.
    """

    def append(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Queue one record; waits while the queue is full.

        `on_delivery(offset, None)` or `on_delivery(None, error)` is called once, later, in any thread.
        """
        ...

    def prepare(self, topic: str) -> None:
        """Look a topic up, so that its first record need not wait for that. Waits; a topic that is not found is no error."""
        ...

    def flush(self, timeout_s: float) -> int:
        """Wait for the delivery of every queued record; returns how many are still open."""
        ...

    def close(self, flush_s: float = CLOSE_FLUSH_S) -> None:
        """Flush for at most this long, and release the appender's resources."""
        ...


class Log(Protocol):
    """All topics of one log service."""

    def create_topic(self, topic: str, settings: Mapping[str, str], *, copies: int = 0, partitions: int = 1) -> None:
        """Create a topic; one that exists is left as it is.

        `copies`: how many brokers hold it, 0 = the default of the log service. A log has one partition; those whose
        order matters within a key alone may have more. Raises AccessDenied, TopicSettingsRefused, LogUnavailable.
        """
        ...

    def configuration(self, topic: str) -> TopicConfiguration:
        """How a topic is kept. Raises TopicMissing, AccessDenied, LogUnavailable."""
        ...

    def configure(self, topic: str, settings: Mapping[str, str]) -> None:
        """Change settings of a topic; they may take effect a moment later.

        Raises TopicMissing, AccessDenied, TopicSettingsRefused, LogUnavailable.
        """
        ...

    def describe(self, topic: str) -> TopicState:
        """The topic's identity and readable offsets. Raises TopicMissing, LogUnavailable."""
        ...

    def written_end(self, topic: str) -> int:
        """The end of all appended records, those of open transactions behind `describe(topic).end` included.

        Raises TopicMissing, LogUnavailable.
        """
        ...

    def acknowledged_end(self, topic: str) -> int:
        """Where the records end that this process itself acknowledges to writers; 0 where a broker does.

        Also 0 while nothing can be appended, as with a full disk: what stops the log may stop its readers as well.
        """
        ...

    @property
    def write_fault(self) -> str:
        """What records that were appended wait for at this moment, if the log itself knows: a full disk. Else empty."""
        ...

    def reader(self, starts: Mapping[str, int], *, name: str = "", follow: bool = False) -> Reader:
        """A reader of these topics from these offsets; `name` is the consumer group shown to lag tools.

        `follow`: it stays open for long and mostly waits for new records.
        """
        ...

    def commit(self, name: str, offsets: Mapping[str, int]) -> None:
        """Publish progress for lag tools; nobody recovers from it."""
        ...

    def trim(self, topic: str, before: int) -> None:
        """Delete every record below an offset.

        Raises TopicMissing, LogUnavailable, and AppendFailed without the permission.
        """
        ...

    def close_topic(self, topic: str) -> int:
        """Refuse every further record, whoever appends it, and return the end of the topic, which is then final.

        Adds at most some probes of its own, which no build decodes. Can be repeated; `configure` opens the topic again.
        Raises TopicMissing, AccessDenied, TopicSettingsRefused, LogUnavailable.
        """
        ...

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with all its records; one that is missing is left so.

        Raises AccessDenied, TopicSettingsRefused, LogUnavailable.
        """
        ...

    def appender(self, *, repeats: bool = False) -> Appender:
        """A new appender.

        `repeats`: a record may be in the log twice, which must mean no more than once. Its first one is there sooner.
        """
        ...

    def close(self) -> None:
        """Release the log's clients."""
        ...


def read_to_end(log: Log, topic: str, *, timeout_s: float) -> list[Record]:
    """Every readable record of a (small) topic.

    Raises LogUnavailable when that takes longer than `timeout_s`.
    """
    # The end is read once, before the first record: a topic that others append to all the time has no other
    # end to reach.
    state = log.describe(topic)
    deadline = Deadline(timeout_s)
    reader = log.reader({topic: state.begin})
    records: list[Record] = []
    try:
        while reader.position(topic) < state.end:
            records += reader.poll(1_000, min(0.2, deadline.left_s()))
            if deadline.passed():
                raise LogUnavailable(
                    f"topic {topic} was not read to its end in {timeout_s:g} s",
                    action="check the broker; an open foreign transaction also holds the end back",
                    retriable=True,
                )
    finally:
        reader.close()
    return records
