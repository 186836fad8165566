"""Why a query ended: Spark's stack traces as one line with an action."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.connectors.log.topics import dlq
from headrace.schemas.errors import HeadraceError


class QueryFailed(HeadraceError):
    """The query failed. Its finished micro-batches are kept; a restart resumes from its checkpoint."""


class RawDataLost(QueryFailed):
    """The raw topic no longer holds messages that the query has not read."""


class KafkaLost(QueryFailed):
    """Kafka stopped answering while the query ran."""


class TooManyRejected(QueryFailed):
    """Most lines of a batch are refused: the options of the job are probably wrong. The batch is not committed."""


class GroupEnded(QueryFailed):
    """A data group of the micro-batch's slot table has ended: the batch must be written again, by the newest table."""


class StoppedEarly(HeadraceError):
    """A run that was stopped before the end of its topic, which it was to reach, or within a micro-batch."""


class SparkEnded(HeadraceError):
    """Spark's JVM has exited. What was finished is kept."""


def spark_ended() -> SparkEnded:
    """The error of a run whose JVM is gone."""
    return SparkEnded(
        "Spark's Java process ended",
        action=f"look into {SPARK_LOG}; start it again: it continues behind what was finished",
        retriable=True,
    )


class WorkerLate(QueryFailed):
    """A Python process of Spark did not start within Spark's fixed 10 s, as on a machine that is overloaded."""


_WORKER_LATE = ("failed to connect back", "waiting for the Python worker to connect back")
_DATA_LOST = ("Some data may have been lost", "KAFKA_DATA_LOSS", "OffsetOutOfRangeException", "failOnDataLoss")
_KAFKA_AWAY = (
    "org.apache.kafka.common.errors.TimeoutException",
    "TimeoutException: Timeout of",
    "DisconnectException",
    "Failed to update metadata",
    "LogUnavailable",
    "AppendUnknown",
    "Connection to node",
    "NetworkException",
    "NotLeaderOrFollowerException",
)
# Python's traceback ends with the full name of the class: our errors in a worker arrive here as text only.
_OWN_ERROR = re.compile(r"^headrace\.[\w.]+\.(\w+): (.+)$", re.MULTILINE)
# The last line of a traceback, which is the first one that is not indented.
_PYTHON_CAUSE = re.compile(
    r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*([A-Za-z_][\w.]*(?:: .+)?)$", re.MULTILINE
)
SPARK_LOG = "its spark.log"
_CAUSE = re.compile(r"^(?:Caused by: )?(?:[\w$]+\.)+(\w*(?:Exception|Error)): (.+)$", re.MULTILINE)


def check_ended(*, ended: bool) -> None:
    """Raises StoppedEarly for a run that was to reach the end of its topic and did not."""
    if not ended:
        raise StoppedEarly("stopped before the end of the topic", action="start it again: it continues from there")


def raw_data_lost(topic: str) -> RawDataLost:
    """The error of a query whose unread messages are gone."""
    return RawDataLost(
        f"topic {topic} no longer holds messages that were not read yet: it was trimmed, deleted or created again",
        action="keep raw messages longer; to continue without the lost ones start with a new --checkpoint",
    )


def too_many_action(queue: str) -> str:
    """What to do when most lines are refused."""
    return (
        f"check --format and its options; earlier dead letters: headrace dlq show {queue}; to let these pass, "
        "raise the setting ingest.rejected_share_max"
    )


def explain(error: Exception, topic: str) -> QueryFailed:
    """The error behind a StreamingQueryException; `retriable` when a restart of the query may help."""
    text = str(error)
    own = _OWN_ERROR.findall(text)
    # The order matters: a trace often holds several marks, and a timeout may be the symptom of another cause.
    if any(name == GroupEnded.__name__ for name, _ in own):
        return GroupEnded("a data group ended while its rows were written", retriable=True)
    for name, message in own:
        if name == TooManyRejected.__name__:
            # Without the action, which follows in parentheses.
            action = too_many_action(dlq(topic))
            return TooManyRejected(message.removesuffix(f" ({action})"), action=action)
    if any(mark in text for mark in _WORKER_LATE):
        return WorkerLate(
            "a Python process of Spark did not start in 10 s", action="relieve the machine", retriable=True
        )
    if any(mark in text for mark in _DATA_LOST) or any(name == RawDataLost.__name__ for name, _ in own):
        return raw_data_lost(topic)
    if own and not any(name in ("LogUnavailable", "AppendUnknown") for name, _ in own):
        return QueryFailed(own[-1][1])
    if any(mark in text for mark in _KAFKA_AWAY):
        return KafkaLost(
            "Kafka stopped answering", action="check the broker; finished micro-batches are kept", retriable=True
        )
    if "RecordTooLargeException" in text:
        return QueryFailed(
            "a record is larger than its topic allows", action="raise max.message.bytes of the dlq and forward topics"
        )
    if "UnknownTopicOrPartition" in text:
        return QueryFailed(
            f"topic {topic}, or a topic of the cluster, does not exist any more", action="do not delete topics in use"
        )
    causes = _CAUSE.findall(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # The last "Caused by" is the innermost cause; but an error of Python is only the text of one of Java's.
    python = _PYTHON_CAUSE.findall(text)
    reason = python[-1].strip() if python else causes[-1][1] if causes else lines[0] if lines else "no reason given"
    return QueryFailed(f"the query ended: {reason[:500]}", action=f"look into {SPARK_LOG}")


@contextmanager
def naming_log(log_file: Path | None) -> Iterator[None]:
    """Errors of the block name this log of Spark."""
    try:
        yield
    except HeadraceError as error:
        if log_file is not None:
            error.action = error.action.replace(SPARK_LOG, str(log_file))
        raise
