"""Topics on a disk that stops at any moment: what was acknowledged is there, in order, under its offsets."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.connectors.log.port import RecordUndeliverable, TopicMissing
from headrace.consumers.local_log import topic_store
from headrace.consumers.local_log.local_log import LocalReader
from headrace.consumers.local_log.topic_store import NewRecord, TopicStore
from headrace.consumers.wal import DurabilityUnknown, UpdateFailed
from tests.unit.wal.disk import Crash, SimulatedDisk

DIRECTORY = Path("/log")
NAMES = ("a", "b", "c")
RESERVED_BYTES = 2 << 20
"""More than a journal reserves: less fits a full disk."""
LARGE_BYTES = 5_000
"""Beyond what the write-ahead log keeps in memory."""

Model = dict[str, dict[int, bytes]]
"""Topic -> offset -> value of every record that it holds."""


def opened(disk: SimulatedDisk, clock_ms: Callable[[], int] = lambda: 0) -> TopicStore:
    """The store on this disk."""
    return TopicStore(DIRECTORY, clock_ms, disk)


def new(topic: str, value: bytes) -> NewRecord:
    """A record with a key and a header."""
    return NewRecord(topic, value, b"key", (("format", b"1"),))


def held(store: TopicStore) -> Model:
    """Everything that can be read."""
    found: Model = {}
    for name in store.names():
        state = store.state(name)
        records = store.read(name, state.begin, 1_000_000)
        assert list(range(state.begin, state.end)) == [record.offset for record in records]
        assert {(b"key", (("format", b"1"),))} >= {(record.key, record.headers) for record in records}
        found[name] = {record.offset: record.value for record in records}
    return found


class Run:
    """Random changes, with the model before and after the one that a crash interrupts."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.before: Model = {}
        self.after: Model = {}
        self.ends: dict[str, int] = {}
        self.interrupted = ""

    def change(self, store: TopicStore) -> None:
        """One change; `before` and `after` differ while it runs."""
        name = self.random.choice(NAMES)
        kind = self.random.choice(("append", "append", "append", "trim", "delete"))
        self.after = {topic: dict(records) for topic, records in self.before.items()}
        self.interrupted = name
        if name not in self.before:
            self.after[name] = {}
            self.ends[name] = 0
            store.create(name, {"retention.ms": "-1"})
        elif kind == "append":
            values = [self.random.randbytes(self.random.choice((0, 9, LARGE_BYTES))) for _ in range(3)]
            first = self.ends[name]
            self.after[name] |= dict(enumerate(values, first))
            self.ends[name] += len(values)
            assert list(range(first, self.ends[name])) == store.append([new(name, value) for value in values])
        elif kind == "trim":
            before = self.random.randint(0, self.ends[name])
            self.after[name] = {offset: value for offset, value in self.after[name].items() if offset >= before}
            store.trim(name, before)
        else:
            del self.after[name]
            store.delete(name)
        self.before, self.interrupted = self.after, ""

    def allows(self, found: Model) -> bool:
        """Whether a crash may have left this: all before the change, all after it, or a part of a removal."""
        if found in (self.before, self.after):
            return True
        name = self.interrupted
        others = {topic: records for topic, records in self.before.items() if topic != name}
        old, left = self.before.get(name, {}), found.get(name, {})
        is_end = list(old)[len(old) - len(left) :] == list(left)
        return others == {topic: each for topic, each in found.items() if topic != name} and is_end


@pytest.mark.parametrize("any_sectors", [False, True])
def test_a_crash_at_any_operation_leaves_what_was_acknowledged(
    any_sectors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine stops before each operation of the disk in turn; the change under way happened whole, not at all, or
    is a removal that went part of the way.
    """
    monkeypatch.setattr(topic_store, "REMOVED_RECORDS_MAX", 4)
    crashes = 0
    for seed in range(4):
        for stop in range(1, 140, 4):
            disk, run = SimulatedDisk(), Run(seed)
            disk.random = random.Random(stop)
            disk.crash_in(stop)
            try:
                store = opened(disk)
                for _ in range(25):
                    run.change(store)
            except Crash:
                crashes += 1
            found = held(opened(disk.crash(any_sectors=any_sectors)))
            assert run.allows(found), (seed, stop)
    assert crashes > 50


@pytest.mark.parametrize("removal", ["trimmed", "deleted"])
def test_an_append_waits_for_a_part_of_a_removal(removal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic of millions of records loses them in minutes: nobody could write meanwhile."""
    monkeypatch.setattr(topic_store, "REMOVED_RECORDS_MAX", 1)
    store = opened(SimulatedDisk())
    for name in ("a", "b"):
        store.create(name, {})
    store.append([new("a", b"1")] * 500)
    events, remove = list[str](), store._remove_part
    append = threading.Thread(target=lambda: events.append(f"appended {store.append([new('b', b'1')])}"))

    def noted(*given: Any) -> None:
        if not events:
            append.start()
        events.append("part")
        remove(*given)

    monkeypatch.setattr(store, "_remove_part", noted)
    store.trim("a", 500) if removal == "trimmed" else store.delete("a")
    append.join()
    assert 500 == events.count("part")
    assert "part" == events[-1]


def test_offsets_continue_behind_records_that_were_removed() -> None:
    """A topic that lost every record, and the log was opened again: the next record has the next offset."""
    disk = SimulatedDisk()
    store = opened(disk)
    store.create("a", {})
    store.append([new("a", b"1"), new("a", b"2")])
    store.trim("a", 2)
    store.close()
    again = opened(disk.copy())
    assert (2, 2) == (again.state("a").begin, again.state("a").end)
    assert [2] == again.append([new("a", b"3")])


def test_a_topic_that_is_created_again_is_another_one() -> None:
    """Neither id nor records of a deleted topic come back, also behind a restart."""
    disk = SimulatedDisk()
    store = opened(disk)
    store.create("a", {"x": "1"})
    store.append([new("a", b"old")])
    first = store.state("a").topic_id
    store.delete("a")
    store.delete("a")
    with pytest.raises(TopicMissing, match="a does not exist"):
        store.state("a")
    store.create("a", {})
    again = opened(disk.copy())
    assert ({"a": {}}, True, {}) == (held(again), first != again.state("a").topic_id, again.settings("a"))


def test_a_full_disk_appends_nothing_and_later_all() -> None:
    """The error says that nothing was written; with space the same records have the same offsets."""
    disk = SimulatedDisk()
    store = opened(disk)
    store.create("a", {})
    disk.capacity = sum(disk.sizes().values())
    with pytest.raises(UpdateFailed):
        store.append([new("a", bytes(RESERVED_BYTES))])
    assert {"a": {}} == held(store)
    disk.clear_faults()
    assert [0] == store.append([new("a", bytes(RESERVED_BYTES))])
    assert {"a": {0: bytes(RESERVED_BYTES)}} == held(store) == held(opened(disk.crash()))


def test_a_failed_sync_is_unknown_and_the_log_works_again() -> None:
    """Records behind a failed sync are not readable; the next ones have their offsets, and are durable."""
    disk = SimulatedDisk()
    store = opened(disk)
    store.create("a", {})
    store.append([new("a", b"1")])
    disk.fail("data", 1)
    with pytest.raises(DurabilityUnknown):
        store.append([new("a", b"unknown")])
    assert {"a": {0: b"1"}} == held(store)
    assert [1] == store.append([new("a", b"2")])
    assert {"a": {0: b"1", 1: b"2"}} == held(store) == held(opened(disk.crash()))


def test_records_older_than_an_instant_are_removed_from_the_beginning() -> None:
    """Only those before the first one that is younger: offsets have no gaps."""
    now_ms = 0
    store = opened(SimulatedDisk(), lambda: now_ms)
    store.create("a", {})
    for now_ms in (10, 20, 15, 30):
        store.append([new("a", b"%d" % now_ms)])
    store.expire("a", 16)
    assert {"a": {1: b"20", 2: b"15", 3: b"30"}} == held(store)
    store.expire("a", 1_000)
    assert (4, 4) == (store.state("a").begin, store.state("a").end)


def test_a_record_whose_bytes_changed_is_named_and_not_skipped() -> None:
    """The records before it are returned; it is an error with its offset, and stays one."""
    disk = SimulatedDisk()
    store = opened(disk)
    store.create("a", {})
    values = [b"first", b"\xaa" * LARGE_BYTES, b"last"]
    store.append([new("a", value) for value in values])
    name = next(name for name in disk.sizes() if name.startswith("journal"))
    content = disk.content(name)
    content[content.index(b"\xaa" * 100)] ^= 1
    assert [b"first"] == [record.value for record in store.read("a", 0, 10)]
    for _ in range(2):
        with pytest.raises(RecordUndeliverable) as raised:
            store.read("a", 1, 10)
        assert 1 == raised.value.offset


def test_a_record_whose_bytes_changed_expires_with_an_old_one_behind_it() -> None:
    """It has no time of its own. While nothing behind it is old it stays, and is an error with its offset."""
    now_ms = 0
    disk = SimulatedDisk()
    store = opened(disk, lambda: now_ms)
    store.create("a", {})
    for now_ms in (10, 20, 30, 40):
        store.append([new("a", bytes([now_ms]) * LARGE_BYTES)])
    content = disk.content(next(name for name in disk.sizes() if name.startswith("journal")))
    for damaged in (20, 40):
        content[content.index(bytes([damaged]) * 100)] ^= 1
    store.expire("a", 25)
    assert 1 == store.state("a").begin
    with pytest.raises(RecordUndeliverable, match="record 1 of topic a"):
        store.read("a", 1, 10)
    with capture_logs() as lines:
        store.expire("a", 35)
    assert [("records that cannot be read have expired", "a", 1)] == [
        (each["event"], each["topic"], each["records"]) for each in lines
    ]
    # The last record of all, behind which nothing is.
    store.expire("a", 1_000)
    assert (3, 4) == (store.state("a").begin, store.state("a").end)
    store.append([new("a", b"later")])
    store.expire("a", 1_000)
    assert (5, 5) == (store.state("a").begin, store.state("a").end)


def test_statuses_are_readable_without_a_sync_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a compacted topic only the newest record counts, and its writer sends another; other topics are synced."""
    disk, syncs = SimulatedDisk(), list[int]()
    store = opened(disk)
    store.create("status", {"cleanup.policy": "compact,delete"})
    store.create("forward", {"cleanup.policy": "delete"})
    original = disk.sync_data

    def sync_data(descriptor: int) -> None:
        syncs.append(descriptor)
        original(descriptor)

    monkeypatch.setattr(disk, "sync_data", sync_data)
    for number in range(3):
        assert [number] == store.append([new("status", b"s")])
    assert (3, []) == (len(store.read("status", 0, 10)), syncs)
    assert [0] == store.append([new("forward", b"f")])
    assert 1 == len(syncs)
    assert [3, 1] == store.append([new("status", b"s"), new("forward", b"f")])
    assert 2 == len(syncs)
    store.close()
    again = opened(disk)
    assert (4, 2) == (again.state("status").end, again.state("forward").end)


def test_statuses_behind_a_failed_sync_are_read_on() -> None:
    """The log drops what was not synced, statuses as well; a reader gets the next one."""
    disk = SimulatedDisk()
    store = opened(disk)
    store.create("status", {"cleanup.policy": "compact,delete"})
    store.create("a", {})
    store.append([new("status", b"1")])
    disk.fail("data", 1)
    with pytest.raises(DurabilityUnknown):
        store.append([new("a", b"unknown")])
    reader = LocalReader(store, {"status": 0})
    store.append([new("status", b"2")])
    assert [b"2"] == [record.value for record in reader.poll(1, 0.0)]
    assert not reader._has_news()
    assert b"2" == store.read("status", 0, 10)[-1].value
    assert b"2" == store.read("status", store.state("status").end - 1, 10)[-1].value
