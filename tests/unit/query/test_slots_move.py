"""Queries while slots change hands: every row exactly once, from one slot table, or an error that names the cause.

The query engine, the source, the scanner of the member that is asked and their fences are those of a node. Groups,
stores and statuses are stand-ins that a schedule changes step by step, as the records of a change would.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.consumers.query import cluster_source, remote_rows
from headrace.consumers.query.cluster_source import ClusterSource
from headrace.consumers.query.engine import QueryEngine
from headrace.consumers.query.group_scanner import GroupScanner
from headrace.consumers.query.hand_overs import HandOvers, missing
from headrace.consumers.query.local_source import LocalSource
from headrace.consumers.query.query_errors import GroupUnavailable, NotCaughtUp, NotReady, QueryTimeout, SlotsMoved
from headrace.consumers.query.remote_rows import RemoteRows
from headrace.consumers.query.scan_request import RemoteScanRequest, ScanInvalid
from headrace.consumers.query.scan_stream import HAND_OVERS
from headrace.consumers.query.settings import QuerySettings
from headrace.consumers.query.table_source import Reading, ReadTimer
from headrace.consumers.query.touched_slots import touched
from headrace.consumers.replication.applied_state import AppliedState
from headrace.consumers.replication.change_view import ChangeView
from headrace.consumers.replication.group_health import GroupHealth
from headrace.consumers.replication.transfers import HandOver, Transfer
from headrace.consumers.store.segment_reader import ReadCount
from headrace.schemas.group_changes import BEGINNING, BarrierPhase, GroupKey, HandOverPosition
from headrace.schemas.records import Role, Status
from headrace.schemas.series import slot_of
from headrace.schemas.tables import Catalogue, DatabaseChange, DatabaseSchema, FieldType, TableChange
from tests.unit.statuses import STATUS

DONOR, TAKER = GroupKey("a", 1), GroupKey("b", 1)
SQL = "SELECT pump, flow FROM plant.pumps ORDER BY pump"


def catalogue() -> Catalogue:
    """`plant.pumps`."""
    found = Catalogue()
    found.apply(DatabaseChange("plant", 86_400_000_000_000, 8))
    found.apply(TableChange("plant", "pumps", 0, ("pump",), (("flow", FieldType.INT64),), None, None))
    return found


class Scan:
    """A TableScan of rows as they were."""

    files: Sequence[Path] = ()
    segments, file_rows, near_rows, merged, rollup = 0, 0, 0, ReadCount(), None

    def __init__(self, rows: Mapping[str, int]) -> None:
        self.table = pa.table(
            {
                "pump": pa.array(list(rows), pa.string()),
                "time": pa.array([0] * len(rows), pa.int64()),
                "flow": pa.array(list(rows.values()), pa.int64()),
            }
        )

    def __enter__(self) -> Scan:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


class RollupsOff:
    """Rollups of a store that has none."""

    enabled = False


class Group:
    """A group at one node: its rows, and what its log has decided."""

    def __init__(self, world: World, key: GroupKey, **rows: int) -> None:
        self.name, self.birth_key, self.key = (
            key.group,
            key,
            key.group if key.birth == 1 else f"{key.group}@{key.birth}",
        )
        self.health = GroupHealth(threading.Condition())
        self.applied = AppliedState(offset=0, changes=ChangeView(settled=key.birth, slots_total=12))
        self.decided = self.applied.changes
        self.rows = rows
        self.store, self.rollups = self, RollupsOff()
        self._world = world
        self._unread = 0

    @property
    def end(self) -> int:
        """The offset of the newest record of its log, also of one that is not applied here."""
        return self.applied.offset + self._unread

    def delay(self, records: int) -> None:
        """So many records are in the log, and not applied here."""
        self._unread = records

    def scan(self, database: str, table: str, **_: Any) -> Scan:
        """See Store."""
        with self._world.lock:
            found = Scan(self.rows)
        # A record is applied right behind the moment of the scan.
        self._world.maybe()
        return found

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """See Group: the log grows meanwhile."""
        while not condition():
            if not self._world.step():
                return False
        return True

    def change(self, **changed: Any) -> None:
        """A record that changes what the log has decided."""
        self._unread = max(0, self._unread - 1)
        self.decided = replace(self.applied.changes, revision=self.applied.changes.revision + 1, **changed)
        self.applied = replace(self.applied, offset=self.applied.offset + 1, changes=self.decided)

    def hide(self, version: int, *kept: str) -> None:
        """The barrier of a change's second phase hides the rows that leave. What it decides is not all applied yet."""
        self.decided = replace(self.applied.changes, settled=version)
        self.rows = {name: self.rows[name] for name in kept}

    def settle(self, version: int, **changed: Any) -> None:
        """The barrier of a change's second phase."""
        self.change(phase=BarrierPhase.FORMAL, table_version=version, settled=version, **changed)

    def hand_over(self, target: GroupKey, version: int) -> None:
        """A record concerns slots of another group."""
        position = HandOverPosition(version, 0)
        due = HandOver(target, "", Transfer(position, None, (), self.applied.offset + 1), BEGINNING)
        self.change(due={target: (due,)})

    def accept(self, origin: GroupKey, version: int, **rows: int) -> None:
        """A hand-over counts."""
        self.rows = {**self.rows, **rows}
        self.change(accepted={**self.applied.changes.accepted, origin: HandOverPosition(version, 0)})


@dataclass
class Table:
    """A slot table as queries see it. See Placement."""

    version: int
    members: Mapping[str, tuple[str, ...]]

    @property
    def headers(self) -> tuple[str, ...]:
        return tuple(self.members)

    def group(self, header: str) -> tuple[str, ...]:
        return self.members[header]

    def birth(self, header: str) -> int:
        return 1


class World:
    """The steps of a change, which happen when a query waits, or whenever a test draws it."""

    def __init__(self, draws: Callable[[], bool] = lambda: False) -> None:
        self.steps: list[Callable[[], None]] = []
        self._draws = draws
        # Fetches have threads of their own.
        self.lock = threading.RLock()

    def step(self) -> bool:
        """The next step; False when there is none."""
        with self.lock:
            if not self.steps:
                return False
            self.steps.pop(0)()
            return True

    def maybe(self) -> None:
        """The next steps, as many as a test draws."""
        while self.steps and self._draws():
            self.step()


class Serving:
    """A node that serves. See ServingState."""

    fencings = 0

    def refusals(self) -> list[str]:
        return []

    def refusal(self, topic: str) -> str:
        return ""

    def durable_offset(self, topic: str) -> int:
        return -1

    confirmed_offset = durable_offset

    def objections(self) -> list[str]:
        return []

    def as_of(self) -> None:
        return None


class Pulled:
    """Slots whose data is on its way. See PulledSlots."""

    def __init__(self, world: World) -> None:
        self.slots: dict[str, frozenset[int]] = {}
        self.asked: list[frozenset[int]] = []
        self._world = world

    def pulling(self, group: str) -> frozenset[int]:
        return self.slots.get(group, frozenset())

    def wait_until_pulled(self, group: str, slots: Iterable[int], timeout_s: float) -> bool:
        self.asked.append(frozenset(slots))
        while self.pulling(group) & frozenset(slots):
            if not self._world.step():
                return False
        return True

    def former_rows(self, *_: object) -> None:
        """Nobody has them."""


class Schemas:
    """Schemas that are always read. See SchemaSource."""

    def wait_for(self, *_: object) -> object:
        return object()


@dataclass
class Topics:
    """See GroupTopics."""

    deleted: set[GroupKey]
    groups: Mapping[GroupKey, Group]

    def is_deleted(self, key: GroupKey) -> bool:
        """See GroupTopics."""
        return key in self.deleted

    def newest_offset(self, key: GroupKey) -> int:
        """See GroupTopics."""
        return self.groups[key].end


@dataclass
class Cluster:
    """Two nodes with a group each, and a node that asks."""

    world: World
    donor: Group
    taker: Group
    pulled: Pulled
    source: ClusterSource
    engine: QueryEngine
    deleted: set[GroupKey] = field(default_factory=set)
    holders: dict[str, list[str]] = field(default_factory=dict)

    def ask(self, **given: Any) -> list[tuple[str, int]]:
        """The rows of the cluster."""
        with self.engine.query(SQL, **given) as result:
            return [(row["pump"], row["flow"]) for row in result.read_all().to_pylist()]

    def follow(self, version: int, *headers: str) -> None:
        """The asking node reads a newer table."""
        self.source.remote.placement = Table(version, {header: (f"at-{header}",) for header in headers or ("a", "b")})


@contextmanager
def cluster_of(
    directory: Path, here: Sequence[str] = (), draws: Callable[[], bool] = lambda: False
) -> Iterator[Cluster]:
    """A cluster whose asking node has the groups `here`; the others are at nodes of their own."""
    world, known = World(draws), catalogue()
    groups: dict[str, Any] = {"a": Group(world, DONOR, p1=1, p2=2), "b": Group(world, TAKER, p3=3)}
    pulled, made = Pulled(world), ExitStack()

    def source_of(*names: str) -> LocalSource:
        found = LocalSource({f"c.forward.{name}.1": groups[name] for name in names}, known, Serving())
        found.pulled = pulled
        return found

    def scanner_of(name: str) -> GroupScanner:
        source = source_of(name)
        engine = QueryEngine(source, [directory], QuerySettings(timeout_ms=5_000))
        made.callback(engine.close)
        return GroupScanner(name, source, Schemas(), engine)  # type: ignore[arg-type]

    scanners = {f"at-{name}": scanner_of(name) for name in groups}
    holders: dict[str, list[str]] = {name: [f"at-{name}"] for name in groups}

    class Members:
        def live(self, group: str, members: Iterable[str]) -> list[Status]:
            return [status(name) for name in members]

        def holders(self, group: str) -> list[Status]:
            return [status(name) for name in holders.get(group, [])]

    def fetch(
        url: str, request: RemoteScanRequest, schema: pa.Schema, timer: ReadTimer, reserve: Callable[[int], None]
    ) -> pa.Table:
        world.maybe()
        # As over HTTP.
        scan = scanners[url].open(RemoteScanRequest.parse(json.loads(json.dumps(request.document()))))
        try:
            rows = pa.Table.from_batches(list(iter(scan.next, None)), schema)
        finally:
            scan.close()
        return rows.replace_schema_metadata({HAND_OVERS: json.dumps(scan.hand_overs.document()).encode()})

    deleted: set[GroupKey] = set()
    remote = RemoteRows("me", Table(1, {"a": ("at-a",), "b": ("at-b",)}), Members(), 1_000_000, fetch)
    topics = Topics(deleted, {group.birth_key: group for group in groups.values()})
    source = ClusterSource(source_of(*here), remote, topics, lambda: (world.step(), None)[1])
    engine = QueryEngine(source, [directory], QuerySettings(timeout_ms=5_000))
    with made:
        made.callback(source.close)
        made.callback(engine.close)
        yield Cluster(world, groups["a"], groups["b"], pulled, source, engine, deleted, holders)


def status(node: str) -> Status:
    """A member in sync."""
    return replace(STATUS, node=node, http=node, eligible=True, role=Role.FOLLOWER, durable_offset=0, reason="")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where segments would be."""
    return tmp_path_factory.mktemp("segments")


@pytest.fixture(autouse=True, scope="module")
def hasty() -> Iterator[None]:
    """No pauses: the schedule continues whenever something waits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote_rows, "PAUSE_S", 0.001)
        patch.setattr(remote_rows, "PATIENCE_S", 0.05)
        patch.setattr(cluster_source, "LOOK_WAIT_S", 0.001)
        yield


def steps_of(cluster: Cluster) -> list[Callable[[], None]]:
    """A change that moves `p2` from group a to group b, with a row that comes late; in the order of its causes."""
    donor, taker, pulled = cluster.donor, cluster.taker, cluster.pulled

    def cut() -> None:
        donor.settle(2)
        donor.hand_over(TAKER, 5)

    def gain() -> None:
        pulled.slots["b"] = frozenset({7})
        taker.settle(2)

    def arrive() -> None:
        taker.rows = {**taker.rows, "p2": 2}
        pulled.slots.clear()

    return [
        lambda: cluster.follow(2),
        lambda: donor.hide(2, "p1"),
        cut,
        gain,
        lambda: taker.accept(DONOR, 5),
        arrive,
        lambda: donor.hand_over(TAKER, 6),
        lambda: taker.accept(DONOR, 6, p2=22),
        lambda: donor.change(due={}, handed={TAKER: HandOverPosition(6, 0)}),
    ]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 3), st.sampled_from([(), ("a",), ("b",), ("a", "b")]))
def test_every_row_once_at_every_step_of_a_change(
    directory: Path, seed: int, behind: int, here: tuple[str, ...]
) -> None:
    """Between the fence, the scans of both groups and the last row; wherever the groups are. Never a part of them.

    A query that begins behind the late row has it. The asking node reads the new table before or after the groups.
    """
    chance = random.Random(seed)
    with cluster_of(directory, here, lambda: chance.random() < 0.4) as cluster:
        follows, *steps = steps_of(cluster)
        cluster.world.steps = [*steps[:behind], follows, *steps[behind:]]
        for _ in range(4):
            left = len(cluster.world.steps)
            found = cluster.ask()
            assert [("p1", 1), ("p3", 3)] == [found[0], found[-1]]
            assert [("p2", 22)] == found[1:-1] or (left > 2 and [("p2", 2)] == found[1:-1])
            cluster.world.maybe()


def test_a_group_that_is_behind_is_waited_for(directory: Path) -> None:
    """Its barrier comes while the query waits; when it does not, the query says so and may be asked again."""
    for here in ((), ("a", "b")):
        with cluster_of(directory, here) as cluster:
            cluster.follow(2)
            with pytest.raises((NotCaughtUp, GroupUnavailable)) as raised:
                cluster.ask()
            assert raised.value.retriable
            cluster.world.steps = steps_of(cluster)[1:6]
            assert [("p1", 1), ("p2", 2), ("p3", 3)] == cluster.ask()


def test_a_group_that_is_ahead_ends_a_query_of_an_older_table(directory: Path) -> None:
    """The asking node never reads the newer table: an error that may be asked again, and no row."""
    for here in ((), ("a",)):
        with cluster_of(directory, here) as cluster:
            cluster.donor.settle(2)
            # Whichever the end of its time meets.
            with pytest.raises((SlotsMoved, QueryTimeout)) as raised:
                cluster.ask(timeout_ms=300)
            assert raised.value.retriable
            fence: Any = cluster.source.fence()
            timer: Any = SimpleNamespace(left_s=1.0)
            reading = Reading(fence, {}, timer)
            if here:
                with pytest.raises(SlotsMoved, match=r"group a has reached slot table 2.*planned with table 1"):
                    cluster.source.wait_for(reading)


def test_slots_whose_data_is_on_its_way_are_waited_for_and_named(directory: Path) -> None:
    """Only those that the scan may read, with priority; a query of another time does not wait."""
    with cluster_of(directory, ("a", "b")) as cluster:
        cluster.taker.change(slots_total=12)
        slot = slot_of("plant", 3, 1, 12)
        cluster.pulled.slots["b"] = frozenset({slot})
        with pytest.raises(NotReady, match=f"group b still receives the data of slots {slot}"):
            cluster.ask()
        assert [frozenset({slot})] == cluster.pulled.asked
        others = {slot_of("plant", bucket, 0, 12) for bucket in range(8)}
        cluster.pulled.slots["b"] = frozenset(set(range(12)) - others)
        sql = "SELECT count(*) AS c FROM plant.pumps WHERE time > TIMESTAMP '1970-01-01 06:00:00' AND time < TIMESTAMP '1970-01-01 07:00:00'"
        with cluster.engine.query(sql) as result:
            assert [{"c": 0}] == result.read_all().to_pylist()
        cluster.world.steps = [cluster.pulled.slots.clear]
        assert [("p1", 1), ("p2", 2), ("p3", 3)] == cluster.ask()


# Offsets of groups that have ended.


def ended(cluster: Cluster) -> None:
    """Group a has ended, and has handed over all but a late row at offset 9."""
    cluster.donor.rows = {}
    cluster.taker.rows = {"p1": 1, "p2": 2, "p3": 3}
    for group in (cluster.donor, cluster.taker):
        group.settle(2)
    cluster.follow(2, "b")


@pytest.mark.parametrize("here", [(), ("a",), ("b",), ("a", "b")])
def test_an_offset_of_a_group_that_ended_is_reached_once_its_rows_were_handed_over(
    directory: Path, here: tuple[str, ...]
) -> None:
    """Wherever it still is. A client reads its own write, although another group has it by now."""
    with cluster_of(directory, here) as cluster:
        ended(cluster)
        for name, value in (("a", 22), ("a@1", 23)):
            version, offset = cluster.donor.applied.offset + 10, cluster.donor.applied.offset + 1
            cluster.world.steps = [
                partial(cluster.donor.hand_over, TAKER, version),
                partial(cluster.taker.accept, DONOR, version, p2=value),
            ]
            assert [("p1", 1), ("p2", value), ("p3", 3)] == cluster.ask(after={name: offset})


def test_an_offset_of_a_group_that_is_gone_is_reached(directory: Path) -> None:
    """Its topic is deleted behind the last hand-over. While the topic is there somebody must still hand over."""
    with cluster_of(directory, ("b",)) as cluster:
        ended(cluster)
        cluster.holders["a"] = []
        with pytest.raises(GroupUnavailable, match="it has ended, and no node that holds it is online"):
            cluster.ask(after={"a": 1})
        cluster.deleted.add(DONOR)
        assert 3 == len(cluster.ask(after={"a": 10**6}))


@pytest.mark.parametrize("here", [(), ("b",)])
def test_a_member_that_is_behind_a_group_that_is_gone_is_waited_for(directory: Path, here: tuple[str, ...]) -> None:
    """Another member had accepted everything when the topic was deleted; the one that is asked reads on before."""
    with cluster_of(directory, here) as cluster:
        ended(cluster)
        cluster.holders["a"] = []
        cluster.deleted.add(DONOR)
        cluster.taker.delay(1)
        cluster.world.steps = [lambda: cluster.taker.accept(DONOR, 9, p2=22)]
        assert [("p1", 1), ("p2", 22), ("p3", 3)] == cluster.ask(after={"a": 9})
        # Once more: what is known by now is enough.
        assert [("p1", 1), ("p2", 22), ("p3", 3)] == cluster.ask(after={"a": 9})


@pytest.mark.parametrize("here", [(), ("b",), ("a", "b")])
def test_a_group_that_ended_and_took_from_one_that_is_gone_is_asked(directory: Path, here: tuple[str, ...]) -> None:
    """The first one has left its rows to the second, which still hands them over: a client of the first reads them."""
    first = GroupKey("x", 1)
    with cluster_of(directory, here) as cluster:
        ended(cluster)
        cluster.deleted.add(first)
        cluster.source.note_ended([first, DONOR])
        cluster.donor.hand_over(TAKER, 9)
        cluster.world.steps = [lambda: cluster.taker.accept(DONOR, 9, p2=22)]
        assert [("p1", 1), ("p2", 22), ("p3", 3)] == cluster.ask(after={"x": 3})


def test_an_offset_of_a_group_of_a_newer_table_waits_for_that_table(directory: Path) -> None:
    """The client wrote to a group that the asked node does not know yet: it has not ended, and has the row."""
    for here in ((), ("a", "b")):
        refused = pytest.raises((SlotsMoved, QueryTimeout), match="group c@2 has reached slot table 2|time")
        with cluster_of(directory, here) as cluster, refused:
            cluster.ask(after={"c@2": 0}, timeout_ms=300)


def test_rows_by_the_next_table_end_a_query_of_the_one_before(directory: Path) -> None:
    """A writer of the next table is ahead of the barrier: the former holder may have the same row, too."""
    for here in ((), ("a", "b")):
        with cluster_of(directory, here) as cluster:
            cluster.taker.change(phase=BarrierPhase.PRE, table_version=2, era=2)
            cluster.taker.rows = {"p2": 22, "p3": 3}
            with pytest.raises((SlotsMoved, QueryTimeout)):
                cluster.ask(timeout_ms=300)


def test_a_bare_name_means_the_group_that_has_the_header(directory: Path) -> None:
    """A group of a later birth has a name of its own; without a birth the header's present group is meant."""
    with cluster_of(directory, ("a", "b")) as cluster:
        table: Any = cluster.source.remote.placement
        table.birth = {"a": 4, "b": 1}.__getitem__
        names = {"a": 1, "a@4": 3, "a@1": 2, "b": 7, "gone": 5, "gone@3": 6}
        assert {"a@4": 3, "a": 2, "b": 7, "gone": 5, "gone@3": 6} == cluster.source.named(names)


# The parts.


def test_what_must_be_accepted_follows_from_what_was_handed_over() -> None:
    """Everything that is due, or else what is known as accepted; groups that were not read lack all of it."""
    position = HandOverPosition
    first = HandOvers({TAKER: position(5, 1)}, {})
    assert {} == missing({DONOR: first, TAKER: HandOvers({}, {DONOR: position(5, 1)})})
    assert {TAKER: {DONOR: position(5, 1)}} == missing({DONOR: first, TAKER: HandOvers({}, {DONOR: position(5, 0)})})
    assert {TAKER: {DONOR: position(5, 1)}} == missing({DONOR: first})
    view = ChangeView(handed={TAKER: position(3, 0), DONOR: BEGINNING})
    assert HandOvers({TAKER: position(3, 0)}, {}) == HandOvers.of(view)
    whole = HandOvers({TAKER: position(3, 0)}, {DONOR: position(4, 2)})
    assert whole == HandOvers.parse(json.loads(json.dumps(whole.document())))
    assert {} == HandOvers().document()
    for wrong in (list[str](), {"handed": 1}, {"handed": [["a", 1, 2]]}, {"accepted": [["a", True, 2, 3]]}):
        with pytest.raises(ValueError, match="not"):
            HandOvers.parse(wrong)


def test_a_request_of_a_cluster_that_never_changed_is_that_of_earlier_builds() -> None:
    """They refuse parameters that they do not know; and what they send means the first table."""
    request = RemoteScanRequest("n1", "plant", "pumps", 1, ("time",), None, None, birth=1)
    assert not {"birth", "table_version", "accepted"} & set(request.document())
    assert replace(request, birth=0) == RemoteScanRequest.parse(request.document())
    changed = replace(request, birth=4, table_version=7, accepted={DONOR: HandOverPosition(4, 2)})
    assert changed == RemoteScanRequest.parse(json.loads(json.dumps(changed.document())))
    assert "n1@4" == changed.name
    for name, wrong in (("birth", -1), ("table_version", "x"), ("accepted", [["a"]]), ("accepted", dict[str, int]())):
        with pytest.raises(ScanInvalid):
            RemoteScanRequest.parse({**request.document(), name: wrong})


@given(st.sets(st.integers(0, 11)), st.integers(-5, 5), st.integers(0, 3))
def test_a_scan_touches_the_slots_of_its_slices(slots: set[int], first: int, count: int) -> None:
    """All of them: a slot that is left out would be read before its data is there."""
    database = DatabaseSchema("plant", 1_000, 4)
    start, end = first * 1_000 + 10, (first + count) * 1_000 + 20
    reached = {
        slot_of("plant", bucket, number, 12) for bucket in range(4) for number in range(first, first + count + 1)
    }
    assert slots & reached == touched(slots, 12, database, start, end)
    assert slots == touched(slots, 12, database, None, end) == touched(slots, 12, database, start, None)
    assert set() == touched(slots, 12, database, end, start)
    assert slots == touched(slots, 12, database, 0, 10**9)
