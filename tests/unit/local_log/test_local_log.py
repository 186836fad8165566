"""The local log as the rest of a node uses it: appenders of many threads, readers, retention, and its end.

What every adapter must do is tested in `tests/broker/test_log_contract.py`.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headrace.connectors.files import DirectoryHeld
from headrace.connectors.log.port import (
    AppendFailed,
    AppendUnknown,
    LogTruncated,
    LogUnavailable,
    RecordTooLarge,
    TopicMissing,
    TopicSettingsRefused,
)
from headrace.consumers.local_log import LocalLog, group_append
from headrace.consumers.wal import UpdateFailed
from headrace.schemas.errors import HeadraceError
from tests.unit.wal.disk import SimulatedDisk
from tests.waiting import eventually

RESERVED_BYTES = 2 << 20
"""More than a journal reserves: less fits a full disk."""
Reports = list[int | HeadraceError | None]


def values_of(log: LocalLog, topic: str) -> list[bytes]:
    """Every value that can be read."""
    reader = log.reader({topic: log.describe(topic).begin})
    return [record.value for record in reader.poll(1_000_000, 0)]


def appended(log: LocalLog, topic: str, *values: bytes) -> Reports:
    """Append values; what their reports have."""
    appender, reports = log.appender(), Reports()
    for value in values:
        appender.append(topic, value, on_delivery=lambda offset, error: reports.append(error or offset))
    assert 0 == appender.flush(20)
    return reports


def test_records_and_topics_are_there_after_a_restart(tmp_path: Path) -> None:
    """Another process finds topics, ids, settings and records; two at once cannot have the directory."""
    log = LocalLog(tmp_path)
    log.create_topic("a", {"retention.ms": "-1"})
    assert [0, 1] == appended(log, "a", b"1", b"2")
    state = log.describe("a")
    second = LocalLog(tmp_path)
    with pytest.raises(DirectoryHeld):
        second.describe("a")
    log.close()
    log.close()
    assert (state, {"retention.ms": "-1"}) == (second.describe("a"), second.configuration("a").settings)
    assert [0, 2, 0] == [second.acknowledged_end("b"), second.acknowledged_end("a"), log.acknowledged_end("a")]
    assert [b"1", b"2"] == values_of(second, "a")
    second.close()
    with pytest.raises(LogUnavailable, match="closed"):
        second.describe("a")


def test_each_appender_keeps_its_order_beside_others(tmp_path: Path) -> None:
    """Eight threads append to two topics: each record has one offset, and those of a thread rise in its order."""
    log = LocalLog(tmp_path)
    for topic in ("a", "b"):
        log.create_topic(topic, {})

    def append(thread: int) -> None:
        appender = log.appender()
        for number in range(200):
            appender.append("ab"[number % 2], b"%d %d" % (thread, number))
        assert 0 == appender.flush(30)

    threads = [threading.Thread(target=append, args=(thread,)) for thread in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    for first, topic in enumerate("ab"):
        found = [tuple(map(int, value.split())) for value in values_of(log, topic)]
        assert 800 == len(found)
        for thread in range(8):
            assert list(range(first, 200, 2)) == [number for each, number in found if each == thread]
    log.close()


def test_a_full_disk_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records queue up, in order, and are delivered once there is space. The log has the begin and the end, no try."""
    monkeypatch.setattr(group_append, "RETRY_PAUSE_S", 0.01)
    disk = SimulatedDisk()
    log = LocalLog(Path("/log"), files=disk)
    log.create_topic("a", {})
    log.create_topic("b", {})
    assert ([0], 1) == (appended(log, "b", b"1"), log.acknowledged_end("b"))
    disk.capacity = sum(disk.sizes().values())
    appender, reports = log.appender(), Reports()
    with capture_logs() as lines:
        for number in range(5):
            appender.append(
                "a", bytes([number]) * RESERVED_BYTES, on_delivery=lambda offset, error: reports.append(error or offset)
            )
        assert "" == LocalLog(Path("/other"), files=disk).write_fault
        assert (5, []) == (appender.flush(0.3), reports)
        assert "space" in log.write_fault
        assert 0 == log.acknowledged_end("b")
        disk.clear_faults()
        assert 0 == appender.flush(20)
    expected = [
        ("warning", "the local log cannot be written, and is tried again"),
        ("info", "the local log is written again"),
    ]
    assert expected == [(each["log_level"], each["event"]) for each in lines if "the local log" in each["event"]]
    assert ("", 1) == (log.write_fault, log.acknowledged_end("b"))
    assert list(range(5)) == reports == [value[0] for value in values_of(log, "a")]
    log.close()


def test_a_disk_that_stays_full_fails_the_records_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time of a delivery the report says that the record is not in the log."""
    monkeypatch.setattr(group_append, "RETRY_PAUSE_S", 0.01)
    monkeypatch.setattr(group_append, "DELIVERY_TIMEOUT_S", 0.05)
    disk = SimulatedDisk()
    log = LocalLog(Path("/log"), files=disk)
    log.create_topic("a", {})
    disk.capacity = sum(disk.sizes().values())
    (report,) = appended(log, "a", bytes(RESERVED_BYTES))
    assert isinstance(report, AppendFailed)
    disk.clear_faults()
    assert [0] == appended(log, "a", bytes(RESERVED_BYTES))
    log.close()


def test_a_failed_sync_is_reported_as_unknown() -> None:
    """Only the records of that group; the next ones are in the log."""
    disk = SimulatedDisk()
    log = LocalLog(Path("/log"), files=disk)
    log.create_topic("a", {})
    disk.fail("data", 1)
    (report,) = appended(log, "a", b"1")
    assert isinstance(report, AppendUnknown)
    assert [0] == appended(log, "a", b"2")
    assert [b"2"] == values_of(log, "a")
    log.close()


def test_reports_may_append_and_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that appends never waits for the queue that its own thread empties; one that raises harms nobody."""
    monkeypatch.setattr(group_append, "WAITING_BYTES_MAX", 1)
    log = LocalLog(tmp_path)
    log.create_topic("a", {})
    appender = log.appender()

    def again(offset: int | None, error: HeadraceError | None) -> None:
        if offset is not None and offset < 3:
            appender.append("a", b"more", on_delivery=again)
        raise ValueError(error)

    appender.append("a", b"first", on_delivery=again)
    eventually(lambda: 4 == log.describe("a").end, "the records of the reports")
    assert 0 == appender.flush(20)
    log.close()


def test_a_full_queue_holds_the_caller_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for a while, and is then refused by a retriable error; what was queued is written."""
    monkeypatch.setattr(group_append, "WAITING_BYTES_MAX", 10)
    monkeypatch.setattr(group_append, "FULL_QUEUE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(group_append, "RETRY_PAUSE_S", 0.01)
    disk = SimulatedDisk()
    log = LocalLog(Path("/log"), files=disk)
    log.create_topic("a", {})
    disk.capacity = sum(disk.sizes().values())
    appender = log.appender()
    appender.append("a", bytes(RESERVED_BYTES))
    with pytest.raises(LogUnavailable, match="stayed full") as raised:
        appender.append("a", b"x")
    assert raised.value.retriable
    disk.clear_faults()
    assert 0 == appender.flush(20)
    assert 1 == log.describe("a").end
    log.close()


def test_a_reader_waits_for_records_and_gives_each_topic_its_turn(tmp_path: Path) -> None:
    """A busy topic does not hide another one."""
    log = LocalLog(tmp_path)
    for topic in ("busy", "rare"):
        log.create_topic(topic, {})
    appended(log, "busy", *[b"x"] * 100)
    appended(log, "rare", b"y")
    reader = log.reader({"busy": 0, "rare": 0})
    assert {"busy", "rare"} == {record.topic for _ in range(2) for record in reader.poll(10, 1)}
    while reader.poll(1_000, 0):
        pass
    woken = threading.Thread(target=lambda: appended(log, "rare", b"z"))
    woken.start()
    assert [b"z"] == [record.value for record in reader.poll(10, 20)]
    woken.join()
    log.close()


def test_a_reader_of_a_topic_that_loses_its_records_gets_an_error(tmp_path: Path) -> None:
    """It is never moved: neither by retention, nor by a topic that was created again."""
    now_ms = 0
    log = LocalLog(tmp_path, clock_ms=lambda: now_ms)
    log.create_topic("a", {"retention.ms": "1000"})
    log.create_topic("kept", {"retention.ms": "-1"})
    for topic in ("a", "kept"):
        appended(log, topic, b"1", b"2")
    reader = log.reader({"a": 1})
    now_ms = 5_000
    log.expire()
    assert (2, 0) == (log.describe("a").begin, log.describe("kept").begin)
    with pytest.raises(LogTruncated, match="not 1"):
        reader.poll(10, 0)
    log.close()


def test_a_topic_that_cannot_expire_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those behind it expire. The log has the cause once, and the topic is tried again."""
    now_ms = 0
    log = LocalLog(Path("/log"), lambda: now_ms, SimulatedDisk())
    for topic in ("a", "b"):
        log.create_topic(topic, {"retention.ms": "1000"})
        appended(log, topic, b"old")
    now_ms = 5_000
    store = log._open.store
    trim = store.trim

    def refuse(name: str, before: int) -> None:
        if name == "a":
            raise UpdateFailed("no space left")
        trim(name, before)

    with monkeypatch.context() as patched, capture_logs() as lines:
        patched.setattr(store, "trim", refuse)
        for _ in range(3):
            log.expire()
    found = [(each["topic"], each["error"][:13]) for each in lines if "cannot expire" in each["event"]]
    assert ([("a", "no space left")], 0, 1) == (found, log.describe("a").begin, log.describe("b").begin)
    log.expire()
    assert 1 == log.describe("a").begin
    log.close()


def test_a_changed_byte_in_an_old_record_ends_no_expiry(tmp_path: Path) -> None:
    """Its topic and the one behind it lose all that is old, the damaged record as well."""
    now_ms = 0
    log = LocalLog(tmp_path, lambda: now_ms)
    for topic in ("a", "b"):
        log.create_topic(topic, {"retention.ms": "1000"})
        appended(log, topic, *(letter * 6_000 for letter in (b"A", b"B", b"C")))
    (journal,) = tmp_path.glob("journal-*.wal")
    with journal.open("r+b") as file:
        file.seek(journal.read_bytes().index(b"B" * 6_000))
        file.write(b"X")
    now_ms = 5_000
    log.expire()
    assert [3, 3] == [log.describe(topic).begin for topic in ("a", "b")]
    log.close()


def test_a_record_above_the_limit_of_its_topic_is_refused(tmp_path: Path) -> None:
    """The limit is a setting of the topic, from its next record on; one above every limit is refused at once."""
    log = LocalLog(tmp_path)
    log.create_topic("a", {"max.message.bytes": "3"})
    assert [0] == appended(log, "a", b"abc")
    (refused,) = appended(log, "a", b"abcd")
    assert isinstance(refused, RecordTooLarge)
    log.configure("a", {"max.message.bytes": "4"})
    assert [1] == appended(log, "a", b"abcd")
    with pytest.raises(RecordTooLarge):
        log.appender().append("a", bytes(17 << 20))
    log.close()


def test_headers_without_room_in_a_record_are_refused_at_once(tmp_path: Path) -> None:
    """Only the caller of that record has the error: its group is written."""
    log = LocalLog(tmp_path)
    log.create_topic("a", {})
    appender, reports = log.appender(), Reports()
    first = threading.Event()

    def wait(_offset: int | None, _error: HeadraceError | None) -> None:
        first.wait(20)

    appender.append("a", b"0", on_delivery=wait)
    for headers in ((("h" * 65_536, b""),), (("h", b""),) * 65_536):
        with pytest.raises(RecordTooLarge, match="topic a"):
            appender.append("a", b"refused", headers=headers)
    longest = (("h" * 65_535, b"x"),)
    appender.append("a", b"1", headers=longest, on_delivery=lambda offset, error: reports.append(error or offset))
    first.set()
    assert (0, [1]) == (appender.flush(20), reports)
    assert [(), longest] == [record.headers for record in log.reader({"a": 0}).poll(10, 0)]
    log.close()


def test_settings_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    """Of a new topic and of one that exists, which keeps its own and takes records."""
    log = LocalLog(tmp_path)
    log.create_topic("a", {"max.message.bytes": "10"})
    for name, value in (
        ("max.message.bytes", "10MB"),
        ("max.message.bytes", "-1"),
        ("retention.ms", "soon"),
        ("retention.ms", "-2"),
        ("retention.ms", "9" * 19),
    ):
        with pytest.raises(TopicSettingsRefused, match=f"{name}={value}"):
            log.configure("a", {name: value})
        with pytest.raises(TopicSettingsRefused):
            log.create_topic("b", {name: value})
    with pytest.raises(TopicMissing):
        log.describe("b")
    assert ({"max.message.bytes": "10"}, [0]) == (log.configuration("a").settings, appended(log, "a", b"1"))
    log.close()


def test_an_unforeseen_error_is_reported_and_ends_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record of the group has one report, and the next group is written."""
    log = LocalLog(tmp_path)
    log.create_topic("a", {})
    with monkeypatch.context() as patched:
        patched.setattr(log._open.store, "settings", lambda _topic: 1 / 0)
        reports = appended(log, "a", b"1", b"2")
    assert [AppendUnknown, AppendUnknown] == [type(report) for report in reports]
    assert [0] == appended(log, "a", b"3")
    log.close()
