"""A group and the records that nothing of Headrace writes: ignored by every member at the same version."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import Record
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.refusal import RefusalNotNeeded, refuse_record
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.replication.actions import Ignored
from headrace.consumers.replication.admission import RowAdmission, TableWait
from headrace.consumers.replication.founding import Founding
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import Aspect, GroupHealth, State
from headrace.consumers.replication.hash_chain import record_digest
from headrace.consumers.replication.journal import JournalEntry
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.consumers.store import Store
from headrace.schemas import payload
from headrace.schemas.framing import LOAD_FORMAT, format_headers
from headrace.schemas.messages import (
    Anchor,
    Body,
    Claim,
    Compact,
    Delete,
    Drop,
    Leadership,
    Load,
    Message,
    ProducerPosition,
    TableVersion,
    Write,
    encode_message,
    format_of,
)
from headrace.schemas.payload import PayloadInvalid, encode_rows, row_schema
from headrace.schemas.tables import FieldType, RecordName, RecordRefusal, TimeResolution
from tests.poison import SCHEMA, bomb, encoded, poison_payloads, row_batch, write_message
from tests.waiting import eventually

TOPICS = Topics("c")
GROUP = "n1"
FIELDS = {"flow": FieldType.FLOAT64, "note": FieldType.STRING}
POISONS = poison_payloads()
LEADER = Leadership(1, "n1", "i")
LIMITS = ReplicationLimits(schema_wait_s=0.01)


class Scene:
    """A memory log with one table, and groups over it that are one member each."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = MemoryLog()
        self.log.create_topic(TOPICS.table, {})
        self.log.create_topic(TOPICS.forward(GROUP), {})
        self.tables = self.schema_log()
        self.tables.ensure_database("plant")
        self.tables.ensure("plant", "pumps", ["pump"], FIELDS)
        self.groups: list[Group] = []

    def schema_log(self) -> SchemaLog:
        """The table log, read to its end."""
        tables = SchemaLog(self.log, TOPICS)
        tables.refresh()
        return tables

    def append(self, value: bytes) -> int:
        """Append a forward record; its offset."""
        return self.log.store(TOPICS.forward(GROUP), value, None, format_headers())

    def digest(self, offset: int) -> bytes:
        """The digest of a forward record."""
        return record_digest(self.log.topic(TOPICS.forward(GROUP)).records[offset].value)

    def member(self, tables: SchemaLog | None = None) -> Group:
        """A new member that has taken every record of the log so far."""
        store = Store.open(self.directory / f"member-{len(self.groups)}", GROUP)
        group = Group(GROUP, Founding(("n1",)), store, tables or self.tables, LIMITS, lambda _group, _version: None)
        self.groups.append(group)
        group.start()
        self.feed(group)
        return group

    def feed(self, group: Group) -> None:
        """Enqueue what the log has beyond the group's newest record, as the log consumer does."""
        records: list[Record] = self.log.topic(TOPICS.forward(GROUP)).records
        new = [(number, record) for number, record in enumerate(records, start=1) if number > group.version]
        group.enqueue([JournalEntry.of(GROUP, number, record) for number, record in new])

    def applied(self, group: Group) -> bool:
        """Whether a group has applied the whole log, waited for."""
        newest = self.log.describe(TOPICS.forward(GROUP)).end - 1
        return group.wait_for(lambda: group.applied.offset >= newest, 60.0)

    def close(self) -> None:
        """Stop all members."""
        for group in self.groups:
            group.stop()
            group.store.close()


def test_a_time_finer_than_the_table_keeps_is_ignored_by_all(scene: Scene) -> None:
    """A record that no file of the table could hold changes nothing but the version; its neighbours count."""
    scene.tables.ensure("plant", "tanks", ["tank"], {"level": FieldType.FLOAT64}, resolution=TimeResolution.US)
    schema = scene.tables.catalogue.newest("plant", "tanks")
    admission = RowAdmission()
    for times, good in (([1_000, 2_000], True), ([1_000, 2_001], False), ([-1], False)):
        series = pa.array(["tanks,tank=a"] * len(times)).dictionary_encode()
        levels = pa.array([1.0] * len(times))
        rows = pa.record_batch([series, pa.array(times, pa.int64()), levels], schema=row_schema(schema.fields))
        write = Write("plant", "tanks", 1, 1, len(times), encode_rows(rows).to_pybytes())
        if good:
            assert len(times) == admission.admit(schema, write).num_rows
        else:
            with pytest.raises(PayloadInvalid, match=r"finer than the microseconds of plant\.tanks"):
                admission.admit(schema, write)


@pytest.mark.parametrize(("table_version", "counts"), [(-(2**62), False), (-1, False), (0, True), (2**62, True)])
def test_a_write_of_a_slot_table_that_nobody_had_stops_no_group(scene: Scene, table_version: int, counts: bool) -> None:
    """A group without slots of its own yet was asked for the slots of its rows, and stopped at every member for good."""
    rows = encoded(row_batch())
    for sequence, version in enumerate((1, table_version, 1)):
        body = Write("plant", "pumps", 1, version, 3, rows)
        scene.append(encode_message(Message(ProducerPosition("p", 1, sequence), body)))
    member = scene.member()
    assert scene.applied(member)
    assert ({} if counts else {Ignored.INVALID: 1}) == dict(member.replica.ignored)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A scene that is closed behind the test."""
    made = Scene(tmp_path)
    yield made
    made.close()


def good(number: int) -> bytes:
    """A valid message of one row."""
    return write_message(encoded(row_batch(codes=(0,), times=(number,), fields={})), 1, sequence=number)


def rows_of(group: Group) -> int:
    """Rows in a group's memtable."""
    return group.store.unsealed().rows


def message(body: Body, sequence: int = 0) -> bytes:
    """A body as the value of a record."""
    return encode_message(Message(ProducerPosition("poison", 1, sequence), body))


def test_poison_is_ignored_at_its_version_and_all_behind_it_is_applied(scene: Scene) -> None:
    """Each poison moves the version, is counted and logged; the rows before and behind it are there and seal."""
    scene.append(good(1))
    for number, data in enumerate(POISONS.values(), start=2):
        scene.append(write_message(data, sequence=number))
    scene.append(good(10_000))
    with capture_logs() as lines:
        group = scene.member()
        assert scene.applied(group), group.health.reason
    assert (len(POISONS) + 2, 2) == (group.version, rows_of(group))
    assert {Ignored.INVALID: len(POISONS)} == dict(group.replica.ignored)
    logged = [line for line in lines if line["event"] == "record ignored"]
    assert [1, 2, 4, 8, 16] == [line["ignored_so_far"] for line in logged]
    assert (2, "invalid") == (logged[0]["version"], logged[0]["why"])
    group.store.freeze(group.version + 1, 1, b"").run()
    assert [2] == [entry.rows for entry in group.store.segments()]


def test_members_ignore_the_same_records(scene: Scene) -> None:
    """A member that applies the log later, or anew, has the state of the first to the byte."""
    for number, data in enumerate([*POISONS.values(), b"garbage"]):
        scene.append(write_message(data, sequence=number))
    first, second = scene.member(), scene.member()
    assert scene.applied(first)
    assert scene.applied(second)
    assert first.replica.state.to_bytes() == second.replica.state.to_bytes()
    assert first.replica.ignored == second.replica.ignored


@pytest.mark.parametrize(
    "body",
    [
        Write("", "pumps", 1, 1, 1, b""),
        Write("plant", "pu\x00mps", 1, 1, 1, b""),
        Write("plant", "../../etc", 1, 1, 1, b""),
        Write("plant", "p" * 1_000, 1, 1, 1, b""),
        Write("plant", "pumps", 0, 1, 1, b""),
        Write("plant", "pumps", -7, 1, 1, b""),
        Write("plant", "pumps", 1, 1, -1, b""),
        Delete("plant", "pumps\n", {}),
        Delete("plant", "pumps", {"x" * 100_000: ("a",)}),
        Drop(LEADER, "", "", 0),
        Compact(LEADER, "plant", "", ()),
    ],
)
def test_a_message_that_no_table_could_take_is_ignored(scene: Scene, body: Body) -> None:
    """Names, versions and counts that cannot exist are decided at once: no schema is waited for."""
    scene.append(message(body))
    group = scene.member()
    assert scene.applied(group)
    assert {Ignored.INVALID: 1} == dict(group.replica.ignored)


def test_rows_that_are_too_large_in_memory_are_ignored(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are never decoded, and do not count towards the next seal."""
    monkeypatch.setattr(payload, "DECODED_BYTES_MAX", 1 << 20)
    scene.append(write_message(bomb(1 << 20), 1))
    group = scene.member()
    assert scene.applied(group)
    assert {Ignored.TOO_LARGE: 1} == dict(group.replica.ignored)
    assert (0, 0) == (group.replica.state.unsealed_rows, rows_of(group))


def test_a_group_seals_by_the_bytes_that_its_rows_take_in_memory(scene: Scene) -> None:
    """Rows of 4 MB that came in 1 KB fill a memtable of 10 MB with the third message."""
    payload_bytes = bomb(4_000_000)
    for number in range(3):
        scene.append(write_message(payload_bytes, 1, sequence=number))
    group = Group(
        GROUP, Founding(("n1",)), Store.open(scene.directory / "one", GROUP), scene.tables, LIMITS, lambda *_: None
    )
    scene.groups.append(group)
    group.replica.state.seal_bytes = 10_000_000
    group.start()
    scene.feed(group)
    assert scene.applied(group)
    assert group.applied.frontier == 3


def test_a_file_of_another_log_is_awaited_while_the_log_continues(scene: Scene) -> None:
    """Members agree about their files at that version, whoever has the file; a load that does not fit is void."""
    leader = Leadership(1, "n1", "i")
    fitting = Load(leader, "c.forward.n9.1", 4, "plant", "pumps", 0, 0, 3, 5, 9, 0, bytes(16), 3, 1, 3, 1_000, 1)
    bodies: list[Body] = [
        Claim(leader, Anchor(-1, 0, bytes(16)), 1_000, 1_000_000),
        fitting,
        replace(fitting, slice_number=1, content_digest=b"x" * 16),
    ]
    assert [1, LOAD_FORMAT, LOAD_FORMAT] == [format_of(body) for body in bodies]
    for number, body in enumerate(bodies, 1):
        scene.append(encode_message(Message(ProducerPosition("n1/i", number, 0), body)))
    scene.append(write_message(encoded(row_batch()), 3))
    group = scene.member()
    assert scene.applied(group)
    group.store_jobs.drain()
    assert ("", 3) == (group.health.reason, rows_of(group))
    (entry,) = group.store.awaited()
    assert {entry.name: "00" * 16} == group.store.digests()
    assert group.store_jobs.content()[0] == 3


# The version of a table that does not exist.


def test_a_record_of_an_unknown_version_waits_and_names_the_way_out(scene: Scene) -> None:
    """The group waits for the version, and applies the record when it comes."""
    scene.append(write_message(encoded(row_batch()), 3, schema_version=2))
    group = scene.member()
    eventually(
        lambda: f"headrace refuse-record --group {GROUP} --offset 0" in group.health.cause(Aspect.RECORDS),
        "the way out",
    )
    assert "version 2 of table plant.pumps" in group.health.cause(Aspect.RECORDS)
    scene.tables.ensure("plant", "pumps", ["site"], {})
    assert scene.applied(group)
    assert ("", 3) == (group.health.reason, rows_of(group))


def test_a_refused_record_is_ignored_by_all_also_once_the_version_exists(scene: Scene) -> None:
    """Members that wait, members that come later and members that read both logs anew decide alike."""
    offset = scene.append(write_message(encoded(row_batch()), 3, schema_version=2))
    scene.append(good(7))
    waiting = scene.member()
    eventually(lambda: waiting.health.holds(State.AWAITING), "a group that waits")
    refused = refuse_record(scene.log, TOPICS, GROUP, offset)
    assert (offset, 2) == (refused.record.offset, refused.schema_version)
    scene.tables.refresh()
    assert scene.applied(waiting)
    scene.tables.ensure("plant", "pumps", ["site"], {})
    late, anew = scene.member(), scene.member(scene.schema_log())
    for group in (waiting, late, anew):
        assert scene.applied(group)
        assert ({Ignored.REFUSED: 1}, 1) == (dict(group.replica.ignored), rows_of(group))
        assert {("plant", "pumps"): 1} == group.replica.state.tables
    assert waiting.replica.state.to_bytes() == anew.replica.state.to_bytes()


def test_a_refusal_behind_the_version_is_void(scene: Scene) -> None:
    """The order in the table log decides: a record that a member may have applied is never ignored by another."""
    offset = scene.append(write_message(encoded(row_batch()), 3, schema_version=2))
    scene.tables.ensure("plant", "pumps", ["site"], {})
    with pytest.raises(RefusalNotNeeded, match="no version of a table that is missing"):
        refuse_record(scene.log, TOPICS, GROUP, offset)
    # One that was on its way when the version came.
    record = RecordName(GROUP, offset, scene.digest(offset))
    assert not scene.tables.refuse(RecordRefusal(record, "plant", "pumps", 2))
    group = scene.member(scene.schema_log())
    assert scene.applied(group)
    assert rows_of(group) == 3


@pytest.mark.parametrize("value", [b"garbage", good(1), message(Drop(LEADER, "plant", "pumps", 0))])
def test_only_a_record_that_names_an_unknown_version_is_refused(scene: Scene, value: bytes) -> None:
    """Any other record is applied or ignored by all members already."""
    with pytest.raises(RefusalNotNeeded):
        refuse_record(scene.log, TOPICS, GROUP, scene.append(value))
    with pytest.raises(RefusalNotNeeded, match="no record"):
        refuse_record(scene.log, TOPICS, GROUP, 7)


def test_a_version_is_looked_for_behind_a_refusal(scene: Scene) -> None:
    """A reader that finds refusal and version in one poll takes the refusal, which came first."""
    value = write_message(encoded(row_batch()), 3, schema_version=2)
    refuse_record(scene.log, TOPICS, GROUP, scene.append(value))
    scene.tables.ensure("plant", "pumps", ["site"], {})
    wait = TableWait(GROUP, scene.schema_log(), 0.01, GroupHealth(threading.Condition()), lambda: False)
    versions = (TableVersion("plant", "pumps", 2),)
    assert not wait.accepts(0, record_digest(value), versions)
    # Another record at the offset, as of a topic that was created again.
    assert wait.accepts(0, record_digest(b"other"), versions)
    assert RecordName(GROUP, 0, record_digest(value)) in scene.schema_log().catalogue.refused


def test_the_check_of_series_is_remembered_by_content(scene: Scene) -> None:
    """Keys that were checked for one version are checked again for one with other tags."""
    admission, batch = RowAdmission(), row_batch(["pumps,pump=p1"])
    write = Write("plant", "pumps", 1, 1, 3, encoded(batch))
    assert admission.admit(SCHEMA, write).num_rows == 3
    assert admission.admit(SCHEMA, write).num_rows == 3
    other = scene.tables.ensure("plant", "pumps", ["site"], FIELDS)
    assert admission.admit(other, write).num_rows == 3
    sites = Write("plant", "pumps", 1, 1, 3, encoded(row_batch(["pumps,site=p1"])))
    assert admission.admit(other, sites).num_rows == 3
    with pytest.raises(payload.PayloadInvalid):
        admission.admit(SCHEMA, sites)
