"""Owners of devices: the order of the topic decides, and nothing else."""

from __future__ import annotations

import random
from base64 import b64encode
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.sync.owner_index import OwnerIndex
from headrace.consumers.sync.owner_log import OwnerLog, change_of_record, encode_devices, move_devices, read_owners
from headrace.consumers.sync.owners import DeviceOwned, OwnersInMemory, SenderCloned
from headrace.schemas.payload import DECODED_BYTES_MAX
from headrace.schemas.sync_records import OwnerClaim, OwnerEnrolment, OwnerMove, OwnerRecord, encode_owner

NORTH, SOUTH = OwnerEnrolment("u-north", "store-n", "north"), OwnerEnrolment("u-south", "store-s", "south")
TOPICS = Topics("c")
DEVICES = st.lists(st.sampled_from(["d1", "d2", "d3", "d4"]), min_size=1, max_size=4, unique=True)
SENDERS = st.sampled_from([NORTH, SOUTH, OwnerEnrolment("u-north", "a-copy", "copy")])


@st.composite
def records(draw: st.DrawFn) -> list[OwnerRecord]:
    """A topic: enrolments, claims of known and unknown stores, moves."""
    found: list[OwnerRecord] = []
    for _ in range(draw(st.integers(1, 12))):
        sender, devices = draw(SENDERS), encode_devices(draw(DEVICES))
        database = draw(st.sampled_from(["plant", "plant2"]))
        kind = draw(st.integers(0, 5))
        if kind == 0:
            found.append(sender)
        elif kind == 1:
            found.append(OwnerMove(sender.sender, database, devices))
        else:
            found.append(OwnerClaim(sender.sender, sender.store, "f", database, devices))
    return found


class _Model:
    """The rule as the issue has it, in the plainest words."""

    def __init__(self) -> None:
        self.stores: dict[str, str] = {}
        self.owners: dict[tuple[str, str], str] = {}

    def take(self, record: OwnerRecord, devices: list[str]) -> None:
        """One record."""
        if isinstance(record, OwnerEnrolment):
            self.stores.setdefault(record.sender, record.store)
            return
        keys = [(record.database, device) for device in devices]
        if isinstance(record, OwnerMove) or (
            self.stores.get(record.sender) == record.store
            and all(self.owners.get(key, record.sender) == record.sender for key in keys)
        ):
            self.owners.update(dict.fromkeys(keys, record.sender))


@given(records())
def test_owners_are_those_of_the_model(log: list[OwnerRecord]) -> None:
    """A claim counts whole or not at all, only for the store that enrolled first; a move always does."""
    from headrace.consumers.sync.owner_log import decode_devices

    owners, model = OwnersInMemory(), _Model()
    for record in log:
        owners.apply(change_of_record(owners, encode_owner(record)))
        model.take(record, [] if isinstance(record, OwnerEnrolment) else decode_devices(record.devices))
    assert model.owners == owners.devices
    assert model.stores == {sender: each.store for sender, each in owners.senders.items()}


@pytest.fixture
def log() -> MemoryLog:
    """A log with an owner topic."""
    made = MemoryLog()
    made.create_topic(TOPICS.sync_owner, {})
    return made


def test_the_view_survives_a_start_and_is_rebuilt_when_it_is_missing(log: MemoryLog, tmp_path: Path) -> None:
    """Two receivers, one of which was away, and one without a view: all have the same owners."""
    first = OwnerLog(log, log.appender(), TOPICS, tmp_path / "a")
    first.own(NORTH, "f1", "plant", ["d1", "d2"])
    first.close()
    second = OwnerLog(log, log.appender(), TOPICS, tmp_path / "b")
    second.own(SOUTH, "f1", "plant", ["d3"])
    again = OwnerLog(log, log.appender(), TOPICS, tmp_path / "a")
    for each in (second, again):
        each.own(NORTH, "f2", "plant", ["d1"])
        with pytest.raises(DeviceOwned, match=r"plant/d3 is that of sender south \(u-south\)"):
            each.own(NORTH, "f3", "plant", ["d3", "d4"])
        # The same key in another database is another device.
        assert ["d1", "d2"] == each.devices(NORTH, "plant")
        each.close()
    read = read_owners(log, TOPICS)
    assert {("plant", "d1"): "u-north", ("plant", "d2"): "u-north", ("plant", "d3"): "u-south"} == read.devices


def test_a_conflict_claims_nothing(log: MemoryLog, tmp_path: Path) -> None:
    """Sender B's {d1, d2} against A's d1: d2 stays free for anyone."""
    owners = OwnerLog(log, log.appender(), TOPICS, tmp_path)
    owners.own(NORTH, "f", "plant", ["d1"])
    with pytest.raises(DeviceOwned):
        owners.own(SOUTH, "f", "plant", ["d1", "d2"])
    owners.own(NORTH, "g", "plant", ["d2"])
    owners.close()


def test_a_device_that_was_free_a_moment_ago_may_be_taken(log: MemoryLog, tmp_path: Path) -> None:
    """Two receivers claim from what each has read: the first record counts, and the second one is refused."""
    north = OwnerLog(log, log.appender(), TOPICS, tmp_path / "a")
    south = OwnerLog(log, log.appender(), TOPICS, tmp_path / "b")
    south.own(SOUTH, "f", "plant", ["d9"])
    north.own(NORTH, "f", "plant", ["d1"])
    # It has not read the claim of d1: its newest look is younger than FRESH_S.
    with pytest.raises(DeviceOwned, match="plant/d1 is that of sender north"):
        south.own(SOUTH, "g", "plant", ["d1", "d2"])
    south.own(SOUTH, "h", "plant", ["d2"])
    for each in (north, south):
        each.close()


def test_devices_that_fill_more_than_a_record_are_claimed_and_moved_in_several(log: MemoryLog, tmp_path: Path) -> None:
    """No record takes all these names. They are claimed all the same, and the move of a box moves them."""
    names = random.Random(1)
    log.configure(TOPICS.sync_owner, {"max.message.bytes": "9000000"})
    devices = sorted(f"t,a={b64encode(names.randbytes(90_000)).decode()}" for _ in range(110))
    owners = OwnerLog(log, log.appender(), TOPICS, tmp_path)
    owners.own(NORTH, "f", "plant", devices)
    assert devices == owners.devices(NORTH, "plant")
    claims = log.describe(TOPICS.sync_owner).end - 1
    assert claims > 1
    owners.own(NORTH, "g", "plant", devices)
    assert claims == log.describe(TOPICS.sync_owner).end - 1, "what is the sender's is not claimed again"
    with pytest.raises(DeviceOwned):
        owners.own(SOUTH, "f", "plant", ["d9", *devices])
    move_devices(log, TOPICS, SOUTH.sender, "plant", devices)
    assert dict.fromkeys((("plant", each) for each in devices), SOUTH.sender) == read_owners(log, TOPICS).devices
    owners.close()


def test_a_second_store_under_one_uuid_is_refused(log: MemoryLog, tmp_path: Path) -> None:
    """A cloned image has the UUID of its original and another store."""
    owners = OwnerLog(log, log.appender(), TOPICS, tmp_path)
    owners.own(NORTH, "f", "plant", ["d1"])
    with pytest.raises(SenderCloned, match="store-n"):
        owners.own(OwnerEnrolment("u-north", "a-copy", "north"), "f", "plant", ["d9"])
    owners.close()


def test_moved_devices_are_those_of_the_new_sender(log: MemoryLog, tmp_path: Path) -> None:
    """An operator hands over what a broken box had: from then on its successor may send it, and it may not."""
    owners = OwnerLog(log, log.appender(), TOPICS, tmp_path)
    owners.own(NORTH, "f", "plant", ["d1", "d2"])
    move_devices(log, TOPICS, SOUTH.sender, "plant", ["d1"])
    owners.own(SOUTH, "g", "plant", ["d1"])
    owners.refresh()
    with pytest.raises(DeviceOwned):
        owners.own(NORTH, "h", "plant", ["d1"])
    owners.close()


def test_a_view_of_another_topic_is_thrown_away(log: MemoryLog, tmp_path: Path) -> None:
    """The centre was made again: owners of the former topic are nobody's."""
    index = OwnerIndex(tmp_path, "another topic")
    index.close()
    owners = OwnerLog(log, log.appender(), TOPICS, tmp_path)
    owners.own(NORTH, "f", "plant", ["d1"])
    owners.close()
    log.delete_topic(TOPICS.sync_owner)
    log.create_topic(TOPICS.sync_owner, {})
    owners = OwnerLog(log, log.appender(), TOPICS, tmp_path)
    owners.own(SOUTH, "f", "plant", ["d1"])
    owners.close()


def _devices_of(values: pa.Array, compression: str | None = "zstd") -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"device": values})
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def _with_offset(offset: int) -> bytes:
    """Two texts of two bytes; the second one begins elsewhere."""
    places = [(0).to_bytes(4, "little"), (2).to_bytes(4, "little"), (4).to_bytes(4, "little")]
    data = _devices_of(pa.array(["ab", "cd"]), None)
    assert b"".join(places) in data
    return data.replace(b"".join(places), places[0] + offset.to_bytes(4, "little") + places[2])


@pytest.mark.parametrize(
    "devices",
    [
        _devices_of(pa.array(["ab"]), None).replace(b"ab", b"\xff\xfe"),
        _with_offset(2**31 - 1),
        _devices_of(pa.array([1, 2])),
        _devices_of(pa.array([[{"a": 1}]])),
        _devices_of(pa.array(["d1", None])),
        _devices_of(pa.array(["d" * (DECODED_BYTES_MAX + 1)])),
        _devices_of(pa.array(["d1"]))[:-9],
        b"",
    ],
    ids=["no UTF-8", "offsets", "numbers", "lists", "null", "memory", "cut", "empty"],
)
def test_devices_that_no_build_writes_claim_nothing(log: MemoryLog, tmp_path: Path, devices: bytes) -> None:
    """A foreign record in the topic ends no reader: the claims behind it count, at receivers and in commands."""
    for body in (NORTH, OwnerClaim(NORTH.sender, NORTH.store, "f", "plant", devices), OwnerMove("v", "plant", devices)):
        log.store(TOPICS.sync_owner, encode_owner(body), None, ())
    owners = OwnerLog(log, log.appender(), TOPICS, tmp_path)
    owners.own(NORTH, "f", "plant", ["d1"])
    assert ["d1"] == owners.devices(NORTH, "plant")
    assert {("plant", "d1"): NORTH.sender} == read_owners(log, TOPICS).devices
    owners.close()
