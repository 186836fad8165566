"""Cases of the topics beside the forward logs: no record of them ends a reader, and two readers come to the same."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import Record
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import replay
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.cluster_report import ClusterReport
from headrace.consumers.membership.membership_follower import MembershipFollower
from headrace.consumers.membership.metadata_leader import MetadataView, decide_metadata
from headrace.consumers.membership.placement import wanted_groups
from headrace.consumers.membership.requests import nodes_view
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.replication.failure_detector import FailureDetector
from headrace.consumers.replication.heartbeat import StatusReader
from headrace.consumers.replication.process_runs import OwnRun
from headrace.consumers.replication.upkeep import expired_before
from headrace.consumers.sync.centre_status import sender_documents
from headrace.consumers.sync.decided_files import DecidedFiles
from headrace.consumers.sync.file_loader import DAMAGES, REJECTIONS
from headrace.consumers.sync.manifest_rules import check_manifest, is_answerable
from headrace.consumers.sync.owner_index import OwnerIndex
from headrace.consumers.sync.owner_log import change_of_record, encode_devices
from headrace.consumers.sync.owners import OwnersInMemory
from headrace.consumers.sync.partition_files import PartitionFiles
from headrace.consumers.sync.sender_state import SenderState
from headrace.consumers.sync.verdicts import SenderCloned, apply_verdict
from headrace.pipeline.dead_letter_queue import DeadLetterQueues, dead_letter_of
from headrace.schemas.framing import FORMAT, HEADER_BYTES, FrameInvalid
from headrace.schemas.membership_records import (
    Cancel,
    Change,
    ChangeKind,
    Exile,
    Formal,
    MembershipChange,
    MetadataClaim,
    PreDone,
    SlotDone,
)
from headrace.schemas.messages import Leadership
from headrace.schemas.receipts import WrittenRecords
from headrace.schemas.records import Create, encode_membership
from headrace.schemas.sync_records import (
    ChunkDamaged,
    OwnerClaim,
    OwnerEnrolment,
    OwnerMove,
    SyncChunk,
    SyncFile,
    decode_chunk,
    decode_manifest,
    decode_verdict,
    encode_chunk,
    encode_manifest,
    encode_owner,
)
from headrace.schemas.tables import COLUMNS_MAX, check_name
from tests.fuzz.mutation import WIDE_EDGES, Case, mutated
from tests.fuzz.records import Records, hostile
from tests.golden_values import goldens

TOPICS = Topics("c")
SENDER = "00000000-0000-0000-0000-000000000001"
RECORDS = 40
KEYS = (None, b"", b"n2/n1", b"/n1", b"\xff\xfe", b"a/b/c", b"x" * 2_000)


def filled(topic: str, values: list[bytes], chance: random.Random) -> MemoryLog:
    """A log with a topic of these records."""
    log = MemoryLog()
    log.create_topic(topic, {})
    for value in values:
        log.store(topic, value, chance.choice(KEYS), ())
    return log


def next_step(state: MembershipState, chance: random.Random) -> MembershipChange | Create:
    """A record that may count next."""
    table, leader, change = state.table, state.leader, state.change
    if table is None:
        return Create(("n1", "n2", "n3"), 2, 60)
    if leader is None or chance.random() < 0.1:
        return MetadataClaim(Leadership(state.epoch + 1, chance.choice(table.nodes), "a"))
    if change is None:
        return new_change(state, table, leader, chance)
    if not change.formal:
        if not change.groups_waiting:
            return chance.choice(
                (Formal(leader, change.number), Formal(leader, change.number), Cancel(leader, change.number))
            )
        group = chance.choice(change.groups_waiting)
        return PreDone(change.number, group, chance.choice(change.pre_members(group)), 1, 1)
    node = chance.choice(change.table.nodes)
    due = change.due_from(node)
    return SlotDone(change.number, node, tuple(slot for slot in range(table.slots) if due >> slot & 1))


def new_change(state: MembershipState, table: SlotTable, leader: Leadership, chance: random.Random) -> MembershipChange:
    """A change of the nodes, or an exile that is due."""
    if due := [node for node in state.removed if node not in state.exiled]:
        return Exile(leader, due[0])
    request = f"r{state.changes}"
    if len(table.nodes) < 4:
        node = chance.choice([each for each in ("n1", "n2", "n3", "n4") if each not in table.nodes])
        return Change(leader, request, ChangeKind.ADD, node, "s", table.add_node(node).to_bytes())
    node = chance.choice(table.nodes)
    return Change(leader, request, ChangeKind.REMOVE, node, "", table.remove_node(node).to_bytes())


def changed_step(step: MembershipChange | Create, chance: random.Random) -> bytes:
    """The record of a step, most often with a hostile value or other bytes, also inside its slot table."""
    schema = "membership" if isinstance(step, Create) else "membership_change"
    value = encode_membership("w", step)
    if chance.random() < 0.4:
        return value
    if isinstance(step, Change) and chance.random() < 0.7:
        table = hostile("slot_table", step.table, chance) if chance.random() < 0.7 else mutated(step.table, chance, 10)
        return encode_membership("w", Change(step.leadership, step.request, step.kind, step.node, step.store, table))
    return hostile(schema, value, chance) if chance.random() < 0.6 else mutated(value, chance, 10)


def membership() -> Case:
    """Membership records, among them those that would count: a follower and a command come to the same state."""
    drawn = Records("membership", "membership_change")

    def case(chance: random.Random, number: int) -> None:
        del number
        state, values = MembershipState(), list[bytes]()
        for _ in range(RECORDS):
            foreign = chance.random() < 0.2
            values.append(drawn.draw(chance) if foreign else changed_step(next_step(state, chance), chance))
            state, _ = state.apply_value(values[-1])
            check_membership(state)
        log = filled(TOPICS.membership, values, chance)
        follower = MembershipFollower(log, TOPICS.membership)
        assert state == follower.read_all()
        assert state == replay(Record("t", offset, 0, None, value) for offset, value in enumerate(values))
        assert state.records == len(values)

    return case


def check_membership(state: MembershipState) -> None:
    """What nodes and commands make of a state."""
    table = state.table
    if table is None:
        return
    assert SlotTable.from_bytes(table.to_bytes()) == table
    assert {*table.headers} <= {key.group for key in state.founders}
    report = ClusterReport(state, FailureDetector())
    report.cluster()
    report.slots(range(table.slots))
    for node in (*table.nodes, "n4"):
        wanted_groups(state, node)
    view = MetadataView(state, table.nodes[0], "a", report.nodes_view(), (), True, False, True, 0)
    decide_metadata(view)


def tables() -> Case:
    """Schema changes: two readers have the same catalogue, and nothing in it breaks a rule."""
    drawn = Records("table", "refusal", "table_drop")

    def case(chance: random.Random, number: int) -> None:
        del number
        log = filled(TOPICS.table, [drawn.draw(chance) for _ in range(RECORDS)], chance)
        one, other = SchemaLog(log, TOPICS), SchemaLog(log, TOPICS)
        one.ensure_database("plant")
        # A writer makes its own table beside whatever the topic has.
        one.ensure("plant", "own", ["pump"], {})
        other.refresh()
        assert one.catalogue == other.catalogue
        for versions in one.catalogue.tables.values():
            for version, schema in enumerate(versions, start=1):
                assert version == schema.version
                assert len(schema.tags) + len(schema.fields) <= COLUMNS_MAX
                check_name("table", schema.table)
                before_ns = expired_before(schema.retention_ns, 10**18)
                assert before_ns is None or before_ns < 10**18, f"a retention of {schema.retention_ns} ns"
        for each in one.catalogue.databases.values():
            assert 0 < each.slice_ns < 2**63

    return case


def statuses() -> Case:
    """Statuses and presences: a reader takes them all, and what is asked of what it has read is answered."""
    drawn = Records("status", "presence")
    state = replay([Record("t", 0, 0, None, encode_membership("w", Create(("n1", "n2", "n3"), 2, 60)))])
    table = state.table
    assert table is not None

    def case(chance: random.Random, number: int) -> None:
        del number
        log = filled(TOPICS.status, [drawn.draw(chance) for _ in range(RECORDS // 2)], chance)
        with closing(StatusReader(log, TOPICS.status, 64)) as reader:
            own = OwnRun("n1", "a")
            for _ in range(RECORDS // 2):
                log.store(TOPICS.status, drawn.draw(chance), chance.choice(KEYS), ())
            while reader.follow(0.0):
                own.look(reader.detector.runs, 1)
            # Answered in full: each of them is a question of a thread of the node.
            detector, present = reader.detector, reader.detector.presences()
            nodes = nodes_view(table, detector, present)
            decide_metadata(MetadataView(state, "n1", "a", nodes, present, True, False, True, 0))
            ClusterReport(state, detector).cluster()
            detector.durable_copies("n2", table.nodes, "topic-id", WrittenRecords(1, (bytes(8),)))
            detector.unread_fault()

    return case


def transfers() -> Case:
    """Manifests and chunks at a receiver: each is taken, answered or skipped, and offsets stay within the topics."""
    golden = next(each.value for each in goldens() if each.name == "sync-manifest")
    manifest = replace(golden, sender=SENDER, number=1)
    drawn = Records("sync_manifest", more=[("sync_manifest", encode_manifest(manifest))] * 3)

    def take_manifest(files: PartitionFiles, offset: int, value: bytes) -> None:
        found = decode_manifest(value)
        if is_answerable(found) and files.take_manifest(offset, found, float(offset)).file is not None:
            with suppress(*REJECTIONS, *DAMAGES):
                check_manifest(found, FORMAT)
                return
            files.decide((found.sender, found.number))

    def take_chunk(files: PartitionFiles, offset: int, value: bytes) -> None:
        with suppress(ChunkDamaged):
            chunk = decode_chunk(value)
            if files.knows(chunk):
                files.take_chunk(offset, chunk, float(offset))

    def case(chance: random.Random, number: int) -> None:
        del number
        files = PartitionFiles(1.0)
        for offset in range(RECORDS):
            with suppress(FrameInvalid):
                if chance.random() < 0.4:
                    take_manifest(files, offset, drawn.draw(chance))
                else:
                    take_chunk(files, offset, chunk_of(golden.body, chance))
            list(files.silent(float(offset)))
            assert 0 <= files.manifests_from(RECORDS) <= RECORDS
            assert 0 <= files.chunks_from(RECORDS) <= RECORDS
            assert all(each.received_bytes >= 0 for each in files.files.values())

    return case


def chunk_of(body: SyncFile, chance: random.Random) -> bytes:
    """A chunk of a file, most often with a hostile number or size; its digest holds, unless its bytes are changed."""
    size = chance.choice((body.chunk_bytes, body.chunk_bytes, 0, 1))
    place = chance.choice((0, 0, 1, 2, 2**31 - 1, -(2**31), -1))
    session, number = (chance.choice((1, 1, 2, *WIDE_EDGES)) for _ in range(2))
    value = encode_chunk(SyncChunk(SENDER, session, number, place, bytes(size)))
    return mutated(value, chance, HEADER_BYTES) if chance.random() < 0.1 else value


def answers() -> Case:
    """Manifests and verdicts, as senders, receivers and commands read them."""
    manifests, verdicts = Records("sync_manifest"), Records("sync_verdict")

    def case(chance: random.Random, number: int) -> None:
        del number
        values = [verdicts.draw(chance) for _ in range(RECORDS)]
        found = list(decoded(values, decode_verdict))
        sender_documents(
            decoded([manifests.draw(chance) for _ in range(RECORDS)], decode_manifest),
            ((each, chance.choice((-1, 0, 2**62))) for each in found),
            {},
        )
        state = SenderState({})
        state.begin_session()
        for _ in range(3):
            state.new_number()
        for each in found:
            with suppress(SenderCloned):
                apply_verdict(state, each, 3)
        SenderState({key: value for key, value in state.changes().records.items() if value is not None})
        log = filled(TOPICS.sync_verdict, values, chance)
        with tempfile.TemporaryDirectory() as directory:
            decided = DecidedFiles(log, TOPICS, Path(directory) / "decided")
            with closing(decided):
                decided.refresh()
                for each in found:
                    decided.number(each.sender, each.file)

    return case


def decoded(values: list[bytes], decode: Callable[[bytes], Any]) -> list[Any]:
    """Those that decode."""
    found = []
    for value in values:
        with suppress(FrameInvalid):
            found.append(decode(value))
    return found


def owners() -> Case:
    """Enrolments, claims and moves: a receiver's view on the disk is the one that commands have in memory."""
    devices = encode_devices([f"pumps,pump=p{number}" for number in range(20)])
    bodies = (
        OwnerEnrolment("u", "s", "n"),
        OwnerClaim("u", "s", "f", "plant", devices),
        OwnerMove("v", "plant", devices),
    )
    drawn = Records("sync_owner", more=[("sync_owner", encode_owner(each)) for each in bodies])

    def case(chance: random.Random, number: int) -> None:
        del number
        memory = OwnersInMemory()
        with tempfile.TemporaryDirectory() as directory:
            index = OwnerIndex(Path(directory) / "owners", "t")
            with closing(index):
                for offset in range(RECORDS // 2):
                    value = with_devices(drawn.draw(chance), devices, chance)
                    memory.apply(change_of_record(memory, value))
                    index.apply(change_of_record(index, value), offset + 1)
                for (database, device), owner in memory.devices.items():
                    assert [owner] == index.owners_of(database, [device])
        memory.counts()

    return case


def with_devices(value: bytes, devices: bytes, chance: random.Random) -> bytes:
    """A record as it is, or a claim or move with other bytes in its devices, which Avro carries unharmed."""
    if chance.random() < 0.4:
        return value
    data = mutated(devices, chance)
    kind = chance.randrange(2)
    return encode_owner((OwnerClaim("u", "s", "f", "plant", data), OwnerMove("v", "plant", data))[kind])


def letters() -> Case:
    """Dead letters of foreign producers, and positions of replays."""
    drawn = Records("replayed")
    values = (b"", b"1", b"-1", b"9" * 30, b"\xff", "²".encode(), b"c", b"\0" * 9)
    names = ("topic", "partition", "offset", "line", "reason", "timestamp")

    def case(chance: random.Random, number: int) -> None:
        headers = tuple((f"__dlq.errors.{name}", chance.choice(values)) for name in names if chance.random() < 0.8)
        dead_letter_of(Record("dlq.a", 0, 0, chance.choice(KEYS), chance.choice(values), headers))
        if number % 20:
            return
        log = filled(TOPICS.replayed, [drawn.draw(chance) for _ in range(RECORDS)], chance)
        for topic in ("dlq.a", "dlq.ä", "dlq.", "dlq.a.b"):
            log.create_topic(topic, {})
            log.store(topic, chance.choice(values), chance.choice(KEYS), headers)
        DeadLetterQueues(log, TOPICS).summaries()

    return case


KINDS: dict[str, Callable[[], Case]] = {
    "membership": membership,
    "tables": tables,
    "statuses": statuses,
    "transfers": transfers,
    "answers": answers,
    "owners": owners,
    "letters": letters,
}
