"""Micro-batches while the members of the cluster change: a replay is made of the same messages as its first attempt."""

from __future__ import annotations

from pathlib import Path

from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import Record
from headrace.pipeline.batch_table import BatchTables, has_ended
from headrace.pipeline.cluster_access import ClusterAccess
from headrace.pipeline.ingest_task import ingest_partition
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.membership_records import ChangeKind
from headrace.schemas.messages import Write, decode_message
from tests.unit.membership.growing import TOPICS, Growing
from tests.unit.pipeline.harness import influx_job, raw_batch

LINES = [f"t,host=h{number} v={number}i {number % 5 * 86_400_000_000_000}" for number in range(40)]


def attempt(growing: Growing, tables: BatchTables, batch: int) -> None:
    """One attempt of a micro-batch by a worker that has just started: its records are in the log."""
    access = ClusterAccess(growing.log, TOPICS)
    access.begin_task(tables.of(batch, access.newest_table()))
    for records in ingest_partition(iter([raw_batch(LINES)]), influx_job(), access, "q", batch):
        for record in records.to_pylist():
            growing.log.store(record["topic"], record["value"], None, ())


def written(log: MemoryLog) -> dict[str, list[Record]]:
    """The records of each forward log."""
    return {topic: list(log._topics[topic].records) for topic in log._topics if TOPICS.group_of(topic)}


def test_a_replay_behind_a_change_repeats_the_same_messages(tmp_path: Path) -> None:
    """The process has ended in between, and a node has joined: replicas drop each message as a repeat of itself."""
    growing = Growing(("n1", "n2", "n3"), 2)
    attempt(growing, BatchTables(str(tmp_path)), 4)
    first = written(growing.log)
    growing.add("n4")
    attempt(growing, BatchTables(str(tmp_path)), 4)
    second = written(growing.log)
    for topic, records in first.items():
        values = [each.value for each in records]
        assert values + values == [each.value for each in second[topic]]
    assert not second[TOPICS.forward("n4", 2)]
    # The next batch is routed by the table of its own time.
    attempt(growing, BatchTables(str(tmp_path)), 5)
    assert written(growing.log)[TOPICS.forward("n4", 2)]


def test_a_replay_of_a_group_that_has_ended_is_routed_by_the_newest_table(tmp_path: Path) -> None:
    """Its topic takes no rows, so the whole batch is written again: its rows are upserts, and none is lost."""
    growing = Growing(("n1", "n2", "n3"), 2)
    kept = BatchTables(str(tmp_path))
    before = kept.of(4, growing.table)
    growing.remove("n2")
    assert has_ended(before, growing.table)
    attempt(growing, BatchTables(str(tmp_path)), 4)
    found = written(growing.log)
    assert not found[TOPICS.forward("n2")]
    messages = [decode_message(each.value) for records in found.values() for each in records]
    bodies = [each.body for each in messages if isinstance(each.body, Write)]
    assert (len(messages), len(LINES)) == (len(bodies), sum(body.row_count for body in bodies))
    assert {2} == {body.slot_table_version for body in bodies}


def test_all_tasks_of_a_batch_have_one_table_whenever_they_run(tmp_path: Path) -> None:
    """A table that begins to count while the batch runs is that of the next one; another header is another group."""
    growing = Growing(("n1", "n2", "n3"), 2)
    tables = BatchTables(str(tmp_path))
    first = tables.of(0, growing.table)
    growing.add("n4")
    assert first == tables.of(0, growing.table)
    assert not has_ended(first, growing.table)
    growing.remove("n3")
    growing.add("n3")
    assert has_ended(first, growing.table)
    assert growing.table == tables.of(1, growing.table)


def test_a_checkpoint_elsewhere_keeps_no_table() -> None:
    """Spark alone has access to it: within a run a batch keeps its table, and a replay is routed by the newest one."""
    growing = Growing(("n1", "n2", "n3"), 2)
    tables = BatchTables("hdfs://host/checkpoint")
    first = tables.of(0, growing.table)
    growing.add("n4")
    assert first == tables.of(0, growing.table)
    assert growing.table == BatchTables("hdfs://host/checkpoint").of(0, growing.table)


def test_a_worker_sees_a_new_table_with_its_next_batch() -> None:
    """The driver looks at the log for each batch; a group without a topic is not written to yet."""
    growing = Growing(("n1", "n2", "n3"), 2)
    access = ClusterAccess(growing.log, TOPICS)
    assert access.newest_table().version == 1
    growing.begin(ChangeKind.ADD, "n4")
    growing.formal()
    assert access.newest_table().version == 1
    growing.create_topic("n4")
    assert access.newest_table().version == 2
    assert GroupKey("n4", 2) == GroupKey("n4", access.newest_table().birth("n4"))
