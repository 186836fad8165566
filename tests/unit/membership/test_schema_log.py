"""A table log that is lost, or another one under its name, never changes what a schema's version means."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headrace.connectors import deadline
from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import RecordUndeliverable, TopicMissing, TopicState, read_to_end
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership import schema_log
from headrace.consumers.membership.schema_history import SchemaLogLost
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.schemas.tables import FieldType, SchemaError
from tests.unit.nodes import running_nodes
from tests.waiting import eventually

TOPICS = Topics("c")


@pytest.fixture
def log() -> MemoryLog:
    """A log with two tables."""
    log = MemoryLog()
    log.create_topic(TOPICS.table, {})
    add_table(log, "pumps", FieldType.FLOAT64)
    add_table(log, "valves", FieldType.FLOAT64)
    return log


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing topic is gone at once."""
    monkeypatch.setattr(deadline, "GONE_AFTER_S", -1.0)


def add_table(log: MemoryLog, table: str, kind: FieldType) -> None:
    """Write a table to the log as a new process does."""
    writer = SchemaLog(log, TOPICS)
    writer.ensure_database("plant")
    writer.ensure("plant", table, ["id"], {"flow": kind})
    writer.close()


def recreate(log: MemoryLog, values: list[bytes]) -> None:
    """Delete the topic, and create it again with these records."""
    log.delete_topic(TOPICS.table)
    log.create_topic(TOPICS.table, {})
    for value in values:
        log.store(TOPICS.table, value, None, ())


def values_of(log: MemoryLog) -> list[bytes]:
    """The values of all records."""
    return [record.value for record in read_to_end(log, TOPICS.table, timeout_s=10)]


def opened(log: MemoryLog, path: Path | None = None) -> SchemaLog:
    """A schema log that was read to its end."""
    tables = SchemaLog(log, TOPICS, path)
    tables.refresh()
    return tables


def test_another_log_under_the_name_is_not_followed(log: MemoryLog) -> None:
    """Its records change nothing, and no version of a schema is given out, however long the new log is."""
    tables = opened(log)
    recreate(log, [])
    for number in range(5):
        add_table(log, f"table{number}", FieldType.INT64)
    with pytest.raises(SchemaLogLost, match=r"c\.table was created again"):
        tables.follow(0)
    with pytest.raises(SchemaLogLost):
        tables.ensure("plant", "tanks", ["id"], {"level": FieldType.INT64})
    assert "created again" in tables.lost
    assert None is tables.wait_for("plant", "pumps", 1, 0)
    assert {"pumps", "valves"} == {table for _, table in tables.catalogue.tables}


def test_a_deleted_log_is_lost_and_continues_once_it_is_restored(log: MemoryLog) -> None:
    """Whatever the id of the topic: the same records in the same order are the same log."""
    tables, values = opened(log), values_of(log)
    log.delete_topic(TOPICS.table)
    with pytest.raises(SchemaLogLost, match="does not exist any more"):
        tables.verify()
    assert None is tables.wait_for("plant", "pumps", 1, 0)
    recreate(log, values)
    tables.verify()
    add_table(log, "tanks", FieldType.INT64)
    tables.refresh()
    assert "" == tables.lost
    assert None is not tables.wait_for("plant", "pumps", 1, 0)
    assert None is not tables.wait_for("plant", "tanks", 1, 0)


@pytest.mark.parametrize("change", ["shorter", "other"])
def test_a_start_refuses_another_log(log: MemoryLog, tmp_path: Path, change: str) -> None:
    """The data directory remembers the records that were read, and not only the topic's id."""
    path = tmp_path / "tables.json"
    opened(log, path).close()
    values = values_of(log)
    recreate(log, values[:-1] if change == "shorter" else [*values[:-1], values[0], values[-1]])
    with pytest.raises(SchemaLogLost, match=r"c\.table"):
        opened(log, path)


def test_a_start_accepts_a_restored_log(log: MemoryLog, tmp_path: Path) -> None:
    """It has the same records, and may have more."""
    path = tmp_path / "tables.json"
    opened(log, path).close()
    recreate(log, values_of(log))
    add_table(log, "tanks", FieldType.INT64)
    assert None is not opened(log, path).wait_for("plant", "tanks", 1, 0)


def test_a_change_that_cannot_be_read_is_never_missed(log: MemoryLog) -> None:
    """Later versions would build on another one."""
    tables = SchemaLog(log, TOPICS)
    log.undeliverable.add((TOPICS.table, 1))
    for _ in range(2):
        with pytest.raises(RecordUndeliverable):
            tables.refresh()
    log.undeliverable.clear()
    tables.refresh()
    assert {"pumps", "valves"} == {table for _, table in tables.catalogue.tables}


def test_a_foreign_record_is_logged_once_at_a_node(log: MemoryLog, tmp_path: Path) -> None:
    """With its place and why: it changes nothing, and who looks for it must find it. Commands and restarts are silent."""
    log.store(TOPICS.table, b"", None, ())
    with capture_logs() as logs:
        for path in (tmp_path / "tables.json", tmp_path / "tables.json", None):
            opened(log, path).close()
    assert [3] == [each["offset"] for each in logs]
    assert [("a record cannot be read", TOPICS.table)] == [(each["event"], each["topic"]) for each in logs]
    assert "no schema we know" in logs[0]["error"]


def test_a_node_without_the_table_log_serves_nothing_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running node names it and applies nothing more; a start refuses, and creates none in its place."""
    with running_nodes(tmp_path, monkeypatch, ("n1",)) as nodes:
        nodes.write()
        nodes.holds_everything("n1")
        node = nodes.running["n1"]
        values = values_of(nodes.log)
        nodes.log.delete_topic(TOPICS.table)
        eventually(lambda: any(TOPICS.table in reason for reason in node.ready()[1]), "the reason")
        nodes.stop("n1")
        with pytest.raises(SchemaLogLost, match="does not exist any more"):
            nodes.start("n1")
        with pytest.raises(TopicMissing):
            nodes.log.describe(TOPICS.table)
        nodes.running.pop("n1").stop()
        recreate(nodes.log, [])
        add_table(nodes.log, "pumps", FieldType.INT64)
        with pytest.raises(SchemaLogLost, match="read from it"):
            nodes.start("n1")
        nodes.running.pop("n1").stop()
        recreate(nodes.log, values)
        nodes.start("n1")
        nodes.holds_everything("n1")


@pytest.mark.parametrize(("slice_ns", "buckets"), [(999_999, 8), (0, 8), (-1, 8), (1_000_000, 0), (1_000_000, 4_097)])
def test_a_new_database_has_a_least_slice_and_a_number_of_buckets(log: MemoryLog, slice_ns: int, buckets: int) -> None:
    """What breaks a limit is refused with the limit, and writes nothing to the log."""
    tables, end = opened(log), log.describe(TOPICS.table).end
    with pytest.raises(SchemaError, match="'fast' would have") as raised:
        tables.ensure_database("fast", slice_ns, buckets)
    assert raised.value.action
    assert (None, end) == (tables.catalogue.databases.get("fast"), log.describe(TOPICS.table).end)
    assert 1_000_000 == tables.ensure_database("fast", 1_000_000, 4_096).slice_ns


def test_a_database_of_shorter_slices_stays_readable(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older build may have made it: it is in the catalogue of every reader, as it was made."""
    with monkeypatch.context() as older:
        older.setattr(schema_log, "SLICE_NS_MIN", 1)
        opened(log).ensure_database("fast", 1_000, 8)
    assert 1_000 == opened(log).ensure_database("fast").slice_ns


def test_a_thread_that_waits_for_the_log_keeps_no_node_from_its_end(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Kafka a look-up takes up to 20 s, and the stop of the node waited for it without a limit."""
    asked, may_answer = threading.Event(), threading.Event()
    schemas = SchemaLog(log, TOPICS)
    describe = log.describe

    def wait(topic: str) -> TopicState:
        asked.set()
        assert may_answer.wait(60.0)
        return describe(topic)

    monkeypatch.setattr(log, "describe", wait)
    reading = threading.Thread(target=schemas.refresh)
    reading.start()
    assert asked.wait(60.0)
    ending = threading.Thread(target=schemas.close)
    ending.start()
    ending.join(30.0)
    has_ended = not ending.is_alive()
    may_answer.set()
    for thread in (reading, ending):
        thread.join()
    schemas.close()
    assert has_ended
