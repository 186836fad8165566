"""One value of every format on topics and disks, and its golden file: the bytes of a released version.

    python -m tests.golden_values            write the missing golden files of the current version
    python -m tests.golden_values --replace  rewrite them all; only while the version is not released

A later version gets its own directory. The files of an older one never change: users have such bytes on disk.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.replication import journal
from headrace.consumers.replication.change_state import ChangeState
from headrace.consumers.replication.cut_memory import CutMemory
from headrace.consumers.replication.group_state import GroupState, LogBase, ProducerState
from headrace.consumers.replication.holdings import Given, Holding, Holdings
from headrace.consumers.replication.kept_deletes import KeptDeletes
from headrace.consumers.replication.producer_section import Newest, Origin, Section
from headrace.consumers.replication.transfers import Target, Transfer
from headrace.consumers.store.segment import Runs, SegmentRows, encode_segment
from headrace.consumers.store.segment_files import SegmentName
from headrace.consumers.store.settings import StoreSettings
from headrace.schemas.group_changes import (
    Barrier,
    BarrierPhase,
    GroupChange,
    GroupKey,
    HandedDelete,
    HandedOver,
    HandedRows,
    HandOverAccepted,
    HandOverPosition,
    MovedProducer,
    MovedTo,
    Rank,
    Takeover,
)
from headrace.schemas.membership_records import (
    Cancel,
    Change,
    ChangeKind,
    Exile,
    Formal,
    MetadataClaim,
    PreDone,
    SlotDone,
)
from headrace.schemas.messages import (
    Anchor,
    Body,
    CarriedDelete,
    Claim,
    Compact,
    Delete,
    Drop,
    Gap,
    Leadership,
    Load,
    Message,
    ProducerPosition,
    Seal,
    SyncedRows,
    TableVersion,
    Write,
    body_digest,
    decode_message,
    encode_message,
)
from headrace.schemas.payload import decode_rows, encode_rows, row_schema
from headrace.schemas.presence import Presence, decode_presence, encode_presence
from headrace.schemas.records import (
    Acceptance,
    Create,
    MembershipRecord,
    Role,
    Status,
    decode_membership,
    decode_schema_change,
    decode_status,
    encode_membership,
    encode_schema_change,
    encode_status,
)
from headrace.schemas.replay_positions import ReplayPosition, decode_position, encode_position
from headrace.schemas.sync_records import (
    OwnerClaim,
    SyncChunk,
    SyncFile,
    SyncManifest,
    SyncVerdict,
    Verdict,
    decode_chunk,
    decode_manifest,
    decode_owner,
    decode_verdict,
    encode_chunk,
    encode_manifest,
    encode_owner,
    encode_verdict,
)
from headrace.schemas.tables import (
    DatabaseChange,
    FieldType,
    RecordName,
    RecordRefusal,
    TableChange,
    TableDrop,
    TableSchema,
    TimeResolution,
)

VERSION = "0.2.0"
DIRECTORY = Path(__file__).parent / "unit" / "golden"

FIELDS = (
    ("flow", FieldType.FLOAT64),
    ("note", FieldType.STRING),
    ("running", FieldType.BOOL),
    ("starts", FieldType.INT64),
)
SERIES = ("pumps,pump=p1,site=north", "pumps,pump=p\\ 2")
TIMES = (1_767_225_600_000_000_000, 1_767_225_610_000_000_001, -1)
COLUMNS: tuple[Sequence[object], ...] = (
    [12.5, None, float("inf")],
    ["on", "", None],
    [True, None, False],
    [2**62, -1, None],
)
DIGEST = "segment.parquet"
STATUS = Status(
    node="n1",
    incarnation="0123456789abcdef",
    store="store",
    http="http://127.0.0.1:8080",
    flight="",
    group="n2",
    topic_id="topic-id",
    role=Role.FOLLOWER,
    eligible=True,
    epoch=3,
    version=300,
    offset=310,
    position=311,
    durable_offset=310,
    sealed_version=256,
    sealed_offset=260,
    chain_version=256,
    chain=bytes(range(16)),
    stored_version=299,
    content=bytes(range(16, 32)),
    sealed_log_bytes=123_456,
    segment_bytes=4_567,
    log_lost=False,
    recovery_done=5,
    recovery_total=9,
    format=1,
    reason="why not",
    sent_boot_ns=123_456_789_000,
)

STATUS_OF_CHANGES = replace(
    STATUS, accepted=(Acceptance("n3", 1, 40, 0, 3), Acceptance("n5", 2, 300, 1)), change=8, settled=3
)
PRESENCE = Presence(
    node="n1",
    incarnation="0123456789abcdef",
    store="store",
    http="http://127.0.0.1:8080",
    replication=3,
    slots=10_000,
    eligible=False,
    epoch=3,
    records=1 << 40,
    changes=True,
    reason="why not",
    format=3,
    sent_boot_ns=123_456_789_000,
)


REFUSAL = RecordRefusal(RecordName("n1", 41, bytes(range(16))), "plant", "pumps", 3)


# After a join and a removal: births differ, slots have moved, and a group has ended.
SLOT_TABLE = SlotTable.create(("n1", "n2", "n3", "n4"), 2, 64).add_node("n5").remove_node("n2")
LEADERSHIP = Leadership(3, "n1", "0123456789abcdef")
CHANGES: tuple[MembershipRecord, ...] = (
    MetadataClaim(LEADERSHIP),
    Change(LEADERSHIP, "a-request", ChangeKind.REMOVE, "n2", "a-store", SLOT_TABLE.to_bytes(), 1_000_000),
    PreDone(7, "n3", "n1", 4, 1 << 40),
    Formal(LEADERSHIP, 7),
    SlotDone(7, "n4", (0, 9_999)),
    Cancel(LEADERSHIP, 7),
    Exile(LEADERSHIP, "n2"),
)


KEY = GroupKey("n5", 2)
POSITION = HandOverPosition(300, 1)
NEWEST = MovedProducer("a-writer", 7, ((0, bytes(16)), (1, bytes(range(16)))))
RANK = Rank(2, 300)
DELETE = HandedDelete(RANK, (6,), Delete("plant", "pumps", {"pump": ("p1", "p2"), "site": ("",)}, None, TIMES[0]))
HANDED = (
    Takeover(3, 64, (5, 6, 9), (NEWEST,), bytes(range(16)), (DELETE,)),
    HandedRows(
        RANK, (5, 9), ProducerPosition("w", 7, 1), bytes(range(16)), Write("plant", "pumps", 2, 1, 3, b"not decoded")
    ),
    DELETE,
)
GROUP_CHANGES: dict[str, GroupChange] = {
    "forward-barrier": Barrier(
        LEADERSHIP,
        Anchor(41, 40, bytes(range(16))),
        7,
        BarrierPhase.FORMAL,
        3,
        64,
        ("n1", "n2"),
        (MovedTo(KEY, "c.forward.n5.2", (5, 6, 9)),),
        (),
    ),
    "forward-handoveraccepted": HandOverAccepted(LEADERSHIP, KEY, POSITION),
    "forward-handedover": HandedOver(KEY, POSITION, HandOverPosition(300, 0), HANDED[1]),
    "handed-takeover": HandedOver(KEY, POSITION, HandOverPosition(0, 0), HANDED[0]),
    "handed-delete": HandedOver(KEY, POSITION, HandOverPosition(7, 0), HANDED[2]),
}


@dataclass(frozen=True, slots=True)
class Golden:
    """A value with its encoder and decoder; `schema` is the Avro schema it is written with, if any."""

    name: str
    value: Any
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    schema: str = ""


def rows() -> pa.RecordBatch:
    """A row batch with every type, nulls, and a series without one of its tags."""
    series = pa.DictionaryArray.from_arrays(pa.array([0, 0, 1], pa.int32()), pa.array(SERIES))
    fields = [pa.array(values, kind.arrow) for values, (_, kind) in zip(COLUMNS, FIELDS, strict=True)]
    return pa.record_batch([series, pa.array(TIMES, pa.int64()), *fields], schema=row_schema(FIELDS))


def segment_bytes() -> bytes:
    """The same rows as a segment."""
    schema = TableSchema("plant", "pumps", 2, ("pump", "site"), FIELDS)
    name = SegmentName("plant", "pumps", 20_454, 3, 1, 5, 9)
    # Sorted by series and time: the second series sorts before the first.
    order = [2, 0, 1]
    times = np.array([TIMES[index] for index in order], np.int64)
    runs = Runs.of_times(pa.array([SERIES[1], SERIES[0]]), np.array([1, 2], np.int64), times)
    fields = {
        kind[0]: pa.array([values[index] for index in order], kind[1].arrow)
        for kind, values in zip(FIELDS, COLUMNS, strict=True)
    }
    encoded = encode_segment("n1", name, schema, SegmentRows(runs, times, fields), 0, StoreSettings())
    return bytes(encoded.data.to_pybytes())


def goldens() -> list[Golden]:
    """Every value with a golden file, except the segment, which is compared by digest."""
    payload = b"not decoded with its message"
    leader, anchor = Leadership(3, "n1", "0123456789abcdef"), Anchor(41, 40, bytes(range(16)))
    bodies: list[Body] = [
        Write("plant", "pumps", 2, 1, 3, payload),
        Delete("plant", "pumps", {"pump": ("p1", "p2"), "site": ("",)}, None, TIMES[0]),
        Seal(leader, anchor, (TableVersion("plant", "pumps", 2),)),
        Drop(leader, "plant", "pumps", TIMES[0]),
        Compact(leader, "plant", "pumps", ("a.parquet", "b.parquet")),
        Claim(leader, anchor, 2_000_000, 268_435_456),
        Gap("topic-id", 7, anchor),
    ]
    messages = [Message(ProducerPosition("ä-producer", 7, 1 << 40), body, body_digest(body)) for body in bodies]
    return [
        *(
            Golden(f"forward-{type(message.body).__name__.lower()}", message, encode_message, decode_message, "forward")
            for message in messages
        ),
        # Without receipts as 0.1.0 wrote it, and with them.
        Golden("status", STATUS, encode_status, decode_status, "status"),
        Golden("status-receipts", replace(STATUS, receipts=bytes(range(24))), encode_status, decode_status, "status"),
        Golden("status-changes", STATUS_OF_CHANGES, encode_status, decode_status, "status"),
        Golden("presence", PRESENCE, encode_presence, decode_presence, "presence"),
        _change("table-database", DatabaseChange("plant", 3_600_000_000_000, 4)),
        # Without a resolution as 0.1.0 wrote it, and with one.
        _change("table-change", TableChange("plant", "pumps", 1, ("pump", "site"), FIELDS, 86_400_000_000_000)),
        _change("table-resolution", TableChange("plant", "pumps", 0, resolution=TimeResolution.US)),
        Golden(
            "table-refusal",
            ("a-writer", REFUSAL),
            lambda pair: encode_schema_change(*pair),
            decode_schema_change,
            "refusal",
        ),
        _change("table-drop", TableDrop("plant", "pumps", 3), "table_drop"),
        _membership("membership-create", Create(("n1", "n2", "n3"), 3, 10_000), "membership"),
        *(_membership(f"membership-{type(each).__name__.lower()}", each, "membership_change") for each in CHANGES),
        Golden("slot-table", SLOT_TABLE, SlotTable.to_bytes, SlotTable.from_bytes, "slot_table"),
        _load(leader),
        # Without a number as it was before deletes of a sender were a fence, and with one.
        _synced_load(leader),
        _fenced_load(leader),
        *_sync(),
        _replayed(),
        *(_group_change(name, body) for name, body in GROUP_CHANGES.items()),
        # Without loads as 0.1.0 wrote it, and with them.
        Golden("state", _state(), GroupState.to_bytes, GroupState.from_bytes, "state"),
        Golden("state-loads", _state(b"a" * 16, b"b" * 16), GroupState.to_bytes, GroupState.from_bytes, "state"),
        Golden("state-changes", _changed_state(), GroupState.to_bytes, GroupState.from_bytes, "state"),
        Golden("rows", rows(), lambda batch: bytes(encode_rows(batch, "zstd").to_pybytes()), decode_rows),
        Golden("journal-entry", _entry(), journal._encode, partial(journal._decode, "n1", 9)),
    ]


def _load(leader: Leadership) -> Golden:
    deletes = (CarriedDelete(2, 900, (("pump", ("p1",)), ("site", ("",))), None, TIMES[0]),)
    name = ("plant", "pumps", 20_454, 3, 2, 5, 9, 1)
    body = Load(leader, "c.forward.n2.1", 4, *name, bytes(range(16)), 3, TIMES[2], TIMES[1], 4_567, 2, deletes)
    message = Message(ProducerPosition("ä-producer", 7, 1 << 40), body, body_digest(body))
    return Golden("forward-load", message, encode_message, decode_message, "load")


def _synced_load(leader: Leadership) -> Golden:
    """Every field of sync, as no one record has them."""
    load = _load(leader).value.body
    synced = (SyncedRows("sender-1", "000001-000000000000005", "000001-000000000000004"), SyncedRows("sender-2", "7"))
    sync = {"sender": "sender-1", "order": "000001-000000000000005", "settled": "000001", "stores": ("c1", "c2")}
    body = replace(load, **sync, synced=synced, loaded_era=3, loaded_version=77)
    message = Message(ProducerPosition("ä-producer", 7, 1 << 40), body, body_digest(body))
    return Golden("forward-synced-load", message, encode_message, decode_message, "synced_load")


def _fenced_load(leader: Leadership) -> Golden:
    """The load of a sender's file as it is today."""
    load = _load(leader).value.body
    sync = {"origin": "sender-1", "held_since": 0, "sender": "sender-1", "order": "000001-000000000000005"}
    body = replace(load, **sync, stores=("c1",), group="e1/1", number=7)
    message = Message(ProducerPosition("ä-producer", 7, 1 << 40), body, body_digest(body))
    return Golden("forward-fenced-load", message, encode_message, decode_message, "synced_load")


def _sync() -> list[Golden]:
    """A value of each topic of sync."""
    deletes = (CarriedDelete(2, 900, (("pump", ("p1",)),), None, TIMES[0]),)
    place = ("plant", "pumps", 86_400_000_000_000, 8, 20_454, 3, 1, 5, 9, 0, "000001-000000000000005")
    columns = (("site",), (("flow", "double"),), "us")
    content = (bytes(16), 4_567, bytes(range(16)), b"", 120, bytes(range(16)), 1 << 20, 1)
    file = SyncFile(
        "e1/1/a.parquet", ("e1",), *place, 3, TIMES[2], TIMES[1], *(*columns, *content), deletes, settled="000001"
    )
    manifest = SyncManifest("sender-1", "store-1", "ä", 2, 7, 4, file)
    chunk = SyncChunk("sender-1", 2, 7, 0, b"bytes")
    verdict = SyncVerdict("sender-1", 7, "e1/1/a.parquet", bytes(16), Verdict.REJECTED, 0, "OwnerConflict", "ä")
    owner = OwnerClaim("sender-1", "store-1", "e1/1/a.parquet", "plant", b"stream")
    return [
        Golden("sync-manifest", manifest, encode_manifest, decode_manifest, "sync_manifest"),
        Golden("sync-chunk", chunk, encode_chunk, decode_chunk, "sync_chunk"),
        Golden("sync-verdict", verdict, encode_verdict, decode_verdict, "sync_verdict"),
        Golden("sync-owner", owner, encode_owner, decode_owner, "sync_owner"),
    ]


def _replayed() -> Golden:
    value = ReplayPosition("dlq.ä", "Zm9vYmFyYmF6cXV4MTIzNA", 1 << 40, "run-1")
    return Golden("replayed", value, encode_position, decode_position, "replayed")


def _group_change(name: str, body: GroupChange) -> Golden:
    message = Message(ProducerPosition("ä-producer", 7, 1 << 40), body, body_digest(body))
    return Golden(name, message, encode_message, decode_message, "group_change")


def _changed_state() -> GroupState:
    target = Target(KEY, "c.forward.n5.2", HandOverPosition(300, 0))
    target.add(Transfer(POSITION, None, (), 310))
    target.add(Transfer(HandOverPosition(301, 0), RANK, (5, 9), 311))
    section = Section(frozenset((7, 8)), {"b": Newest(2, {(0, bytes(16))}), "a": Newest(1, set())})
    changes = ChangeState(
        members=("n1", "n2"),
        era=3,
        slots_total=64,
        change=8,
        phase=BarrierPhase.PRE,
        table_version=4,
        gains=(1, 2, 3),
        given={5: Given(KEY, 2, 300), 6: Given(KEY, 2, 300), 9: Given(KEY, 2, 300)},
        targets={KEY: target},
        cuts={300: CutMemory(3, ((KEY, (5, 6, 9)),), bytes(range(16)), (((5, 6, 9), (NEWEST,)),), (DELETE,))},
        deletes=KeptDeletes([DELETE]),
        origins={GroupKey("n3", 1): Origin(HandOverPosition(40, 0), [section], 4)},
        added=("n2",),
        gained={1: 2, 2: 2, 4: 2, 3: 3},
        holdings=Holdings({1: (Holding(2, 1),), 2: (Holding(2, 1),), 3: (Holding(2, 1), Holding(3, 2))}),
    )
    return replace(_state(), changes=changes)


def _change(name: str, change: DatabaseChange | TableChange | TableDrop, schema: str = "table") -> Golden:
    return Golden(name, ("a-writer", change), lambda pair: encode_schema_change(*pair), decode_schema_change, schema)


def _membership(name: str, record: MembershipRecord, schema: str) -> Golden:
    return Golden(name, ("n1", record), lambda pair: encode_membership(*pair), decode_membership, schema)


def _state(*loads: bytes) -> GroupState:
    return GroupState(
        version=300,
        offset=310,
        chain=bytes(range(16)),
        record_digest=bytes(range(16, 32)),
        log_bytes=7_654_321,
        epoch=3,
        leader=Leadership(3, "n1", "0123456789abcdef"),
        base=LogBase("topic-id", 7, 40, bytes(range(16))),
        frontier=256,
        unsealed_rows=44,
        unsealed_bytes=4_400,
        seal_rows=2_000_000,
        seal_bytes=268_435_456,
        tables={("plant", "pumps"): 2},
        producers={"a-writer": ProducerState(7, 299, {(0, bytes(16)), (1, bytes(range(16)))})},
        loads=dict.fromkeys(loads),
    )


def _entry() -> journal.JournalEntry:
    headers = (("format", b"1"), ("ä", b""))
    return journal.JournalEntry("n1", 9, 12, 1_767_225_600_000, headers, b"the record's value")


def main(replace: bool) -> None:
    """Write the golden files of the current version."""
    folder = DIRECTORY / VERSION
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, Callable[[], bytes]] = {
        f"{golden.name}.bin": partial(golden.encode, golden.value) for golden in goldens()
    }
    files[DIGEST] = segment_bytes
    for name, encode in files.items():
        path = folder / name
        if replace or not path.exists():
            path.write_bytes(encode())
            print(path)


if __name__ == "__main__":
    main("--replace" in sys.argv[1:])
