"""A node that joins a cluster of real groups and stores, with logs in plain lists and donors behind real HTTP."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from starlette.applications import Starlette

from headrace.consumers.membership.changes import MembershipState, Verdict
from headrace.consumers.membership.running_change import RunningChange
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.migration.cut_listing import led_by
from headrace.consumers.migration.cut_source import CutSource, OwnCut, PresentFiles
from headrace.consumers.migration.peer_cut import PeerCut
from headrace.consumers.migration.puller import SlotPuller
from headrace.consumers.replication.founding import Founding
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.journal import JournalEntry
from headrace.consumers.replication.leader_tasks import NotLeader
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.consumers.replication.store_jobs import IsUrgent, JobStep
from headrace.consumers.serve.cut_service import CutService, cut_routes
from headrace.consumers.serve.server import Server
from headrace.consumers.store import Store
from headrace.schemas.framing import format_headers
from headrace.schemas.group_changes import Barrier, BarrierPhase, GroupKey, MovedTo
from headrace.schemas.membership_records import ChangeKind, SlotDone
from headrace.schemas.messages import (
    NO_CHAIN,
    Anchor,
    Body,
    Claim,
    Delete,
    Leadership,
    Load,
    Message,
    ProducerPosition,
    Write,
    decode_message,
    encode_message,
    format_of,
)
from headrace.schemas.payload import encode_rows
from headrace.schemas.series import bucket_of, series_key, slot_of
from headrace.schemas.tables import DatabaseSchema, FieldType, TableSchema
from tests.manual_clock import ManualClock
from tests.unit.store.builders import CPU, DATABASE, HOUR_NS, Row, row_batch
from tests.unit.store.conftest import SETTINGS

SLOTS = 24
ANCHOR = Anchor(-1, 0, NO_CHAIN)
DISK = TableSchema("plant", "disk", 1, ("host",), (("busy", FieldType.INT64),))
TABLES = {"cpu": CPU, "disk": DISK}
BASE = SlotTable.create(("n1", "n2", "n3"), 2, SLOTS)
TABLE = BASE.add_node("n4")
CHANGE = RunningChange(1, "r1", ChangeKind.ADD, "n4", "s", BASE, TABLE, formal=True)
TARGET = GroupKey("n4", 2)
LIMITS = ReplicationLimits(migration_fetches_max=2)
GAINED = tuple(slot for slot, _ in TABLE.moved)


def slot_of_row(table: str, tags: Mapping[str, str], at: int) -> int:
    """The slot of a row."""
    bucket = bucket_of(series_key(table, tags), DATABASE.buckets)
    return slot_of("plant", bucket, at // DATABASE.slice_ns, SLOTS)


def random_rows(seed: int, count: int = 300, hosts: int = 6, hours: int = 16) -> list[Row]:
    """Rows of some hosts and hours; no two have one time."""
    chosen = random.Random(seed)
    times = chosen.sample(range(hours * 1_000), count)
    return [
        ({"host": f"h{chosen.randrange(hosts)}"}, at % 1_000 + at // 1_000 * HOUR_NS, {"busy": chosen.randrange(99)})
        for at in times
    ]


class FixedTables:
    """See TableSchemas: two tables that never change."""

    def wait_for(self, _database: str, table: str, _version: int, _timeout_s: float) -> TableSchema | None:
        """See TableSchemas."""
        return TABLES[table]

    def accepts(self, *_arguments: object) -> bool | None:
        """See TableSchemas."""
        return True

    def database(self, _database: str) -> DatabaseSchema | None:
        """See TableSchemas."""
        return DATABASE


class InlineJobs:
    """A JobPool that runs each step at once, until it ends."""

    def submit(self, step: JobStep, *, urgent: IsUrgent = lambda: False) -> InlineJobs:
        """See JobPool."""
        while step() is not None:
            pass
        return self

    def done(self) -> bool:
        """See JobHandle."""
        return True

    def result(self, timeout: float | None = None) -> None:
        """See JobHandle."""
        del timeout

    def hurry(self) -> None:
        """See JobPool."""

    def shutdown(self) -> None:
        """See JobPool."""


class InlineExecutor(Executor):
    """Runs everything in the thread that submits it, so that a test decides about every step."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See Executor."""
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class MovingNode:
    """One node: its groups, the server of its cuts, and its puller. It is the PullEnvironment of the puller."""

    def __init__(self, moves: Moves, name: str) -> None:
        self.moves = moves
        self.node = name
        self.groups: dict[str, Group] = {}
        self.files = PresentFiles()
        self.clock = ManualClock()
        self.server: Server | None = None
        self.puller = self.new_puller()

    def new_puller(self) -> SlotPuller:
        """A puller that knows nothing."""
        return SlotPuller(self, LIMITS, InlineExecutor(), self.clock)

    @property
    def state(self) -> MembershipState:
        """See PullEnvironment."""
        return self.moves.state

    def topic(self, key: GroupKey) -> str:
        """See PullEnvironment."""
        return topic_of(key)

    def source(self, node: str, key: GroupKey) -> CutSource | None:
        """See PullEnvironment."""
        self.moves.asked.append((self.node, node))
        other = self.moves.nodes[node]
        if node == self.node:
            group = self.groups.get(topic_of(key))
            return None if group is None else OwnCut(node, group, topic_of(key), self.files)
        return None if other.server is None else PeerCut(node, other.server.url, key, topic_of(key))

    def leads(self, topic: str) -> bool:
        """See PullEnvironment."""
        return self.moves.leaders[topic].node == self.node

    def append_loads(self, topic: str, loads: Sequence[Load]) -> None:
        """See PullEnvironment."""
        self.moves.on_step()
        if not self.leads(topic):
            raise NotLeader("another node leads")
        for load in led_by(loads, self.moves.leaders[topic]):
            self.moves.append(topic, load)
        self.moves.on_step()

    def replace_data(self, topic: str, why: str, trusted: frozenset[str]) -> None:
        """See PullEnvironment."""
        self.moves.replaced.append((topic, why, trusted))

    def report(self, done: SlotDone) -> None:
        """See PullEnvironment."""
        self.moves.on_step()
        self.moves.reports.append(done)
        self.moves.state, verdict = self.moves.state.apply(done)
        assert verdict in (Verdict.ACCEPTED, Verdict.REPEATED), verdict
        self.moves.on_step()

    def serve(self) -> None:
        """Answer other nodes."""
        service = CutService(self.node, self.groups)
        self.server = Server(Starlette(routes=cut_routes(lambda: service)))
        self.server.start()

    def leave(self) -> None:
        """Answer nobody any more."""
        server, self.server = self.server, None
        if server is not None:
            server.stop()

    def open(self, key: GroupKey, founding: Founding) -> Group:
        """A group with what the directory has of it, and then all of its log."""
        name = key.group if key.birth == 1 else f"{key.group}@{key.birth}"
        store = Store.open(self.moves.directory / self.node, name, SETTINGS)
        self.groups[topic_of(key)] = Group(
            key.group, founding, store, FixedTables(), LIMITS, lambda _group, _version: None, InlineJobs()
        )
        self.follow(topic_of(key))
        return self.groups[topic_of(key)]

    def follow(self, topic: str) -> None:
        """Apply what the log has beyond what the group has."""
        group = self.groups[topic]
        values = self.moves.logs.get(topic, [])
        for version in range(group.replica.state.version + 1, len(values) + 1):
            value, headers = values[version - 1]
            group.enqueue([JournalEntry(group.key, version, version - 1, 0, tuple(headers), value)])
            while group.turn():
                pass
        assert not group.health.reason, group.health.reason

    def restart(self, key: GroupKey, founding: Founding) -> None:
        """Forget everything but the disk."""
        self.groups.pop(topic_of(key)).store.close()
        self.puller = self.new_puller()
        self.open(key, founding)

    @property
    def target(self) -> Group:
        """The group that gained slots."""
        return self.groups[topic_of(TARGET)]


def topic_of(key: GroupKey) -> str:
    """The forward topic of a group."""
    return f"c.forward.{key.group}.{key.birth}"


class Moves:
    """Groups of three nodes with random rows, and a fourth node whose group gets some slots of each."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = MembershipState(records=1, table=TABLE, changes=1, change=CHANGE)
        self.logs: dict[str, list[tuple[bytes, list[tuple[str, bytes]]]]] = {}
        self.leaders: dict[str, Leadership] = {}
        self.reports: list[SlotDone] = []
        self.replaced: list[tuple[str, str, frozenset[str]]] = []
        self.asked: list[tuple[str, str]] = []
        self.batch = 0
        self.truth: dict[str, dict[tuple[str, int], Row]] = {table: {} for table in TABLES}
        self.on_step: Callable[[], None] = lambda: None
        self.nodes = {name: MovingNode(self, name) for name in TABLE.nodes}
        self._stack = ExitStack()
        for header in BASE.headers:
            for member in BASE.group(header):
                self.nodes[member].open(GroupKey(header, 1), Founding(BASE.group(header)))
            self.lead(GroupKey(header, 1), header)

    @property
    def founding(self) -> Founding:
        """What the new group is born with."""
        return Founding(TABLE.group("n4"), 2, GAINED)

    def lead(self, key: GroupKey, node: str) -> None:
        """A node claims a group."""
        topic = topic_of(key)
        epoch = self.leaders[topic].epoch + 1 if topic in self.leaders else 1
        self.leaders[topic] = Leadership(epoch, node, "i")
        self.append(topic, Claim(self.leaders[topic], ANCHOR, 1_000_000, 1 << 40))

    def append(self, topic: str, body: Body) -> None:
        """One more record, which every open member applies."""
        self.batch += 1
        value = encode_message(Message(ProducerPosition(f"p{self.batch}", 1, 0), body))
        self.logs.setdefault(topic, []).append((value, format_headers(format_of(body))))
        for node in self.nodes.values():
            if topic in node.groups:
                node.follow(topic)

    def write(self, table: str, rows: Sequence[Row]) -> None:
        """Write rows to the groups of their slots."""
        by_group: dict[str, list[Row]] = {}
        for row in rows:
            tags, at, _ = row
            by_group.setdefault(BASE.holder(slot_of_row(table, tags, at)), []).append(row)
            self.truth[table][tags["host"], at] = row
        for header, part in by_group.items():
            payload = encode_rows(row_batch(TABLES[table], part)).to_pybytes()
            self.append(topic_of(GroupKey(header, 1)), Write("plant", table, 1, 1, len(part), payload))

    def bodies(self, key: GroupKey) -> list[Body]:
        """Every record of a group's log."""
        return [decode_message(value).body for value, _ in self.logs[topic_of(key)]]

    def delete(self, table: str, host: str, start_ns: int, end_ns: int) -> None:
        """Delete the rows of a host from all groups."""
        for header in BASE.headers:
            self.append(topic_of(GroupKey(header, 1)), Delete("plant", table, {"host": (host,)}, start_ns, end_ns))
        found = self.truth[table]
        for key in [key for key in found if key[0] == host and start_ns <= key[1] < end_ns]:
            del found[key]

    def cut(self) -> None:
        """The second phase reaches every group: slots leave, and the takeovers arrive at the new group."""
        for header in BASE.headers:
            self.cut_one(header)

    def cut_one(self, header: str) -> None:
        """The second phase reaches one group."""
        key = GroupKey(header, 1)
        topic, slots = topic_of(key), tuple(slot for slot, former in TABLE.moved if former == header)
        moves = (MovedTo(TARGET, topic_of(TARGET), slots),) if slots else ()
        members = TABLE.group(header)
        self.append(topic, Barrier(self.leaders[topic], ANCHOR, 1, BarrierPhase.FORMAL, 2, SLOTS, members, moves))

    def hand_over(self) -> None:
        """What the donors owe the new group arrives there."""
        for header in BASE.headers:
            key = GroupKey(header, 1)
            changes = self.nodes[header].groups[topic_of(key)].applied.changes
            for each in changes.due.get(TARGET, ()):
                message = decode_message(self.logs[topic_of(key)][each.transfer.position.version - 1][0])
                self.append(topic_of(TARGET), changes.record_of(key, each, message))

    def open_target(self, leader: str = "n4") -> None:
        """The new group opens at its members."""
        for member in TABLE.group("n4"):
            self.nodes[member].open(TARGET, self.founding)
        self.lead(TARGET, leader)

    def serve(self) -> None:
        """Every node answers others."""
        for node in self.nodes.values():
            node.serve()

    def close(self) -> None:
        """Stop everything."""
        for node in self.nodes.values():
            node.leave()
            for group in node.groups.values():
                group.store.close()

    def turns(self, *names: str, count: int = 40) -> None:
        """Turns of the pullers of some nodes, until no change runs."""
        for _ in range(count):
            for name in names or TABLE.group("n4"):
                node = self.nodes[name]
                node.clock.now_s += 1.1
                node.puller.turn()

    def moved_rows(self, table: str) -> list[Row]:
        """The rows of the slots that moved."""
        return [
            row for row in self.truth[table].values() if slot_of_row(table, row[0], row[1]) in GAINED
        ]  # fmt: skip
