"""A scan of slots whose files are on their way has every row: those up to the cut from who had them, later ones here."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.deadline import Deadline
from headrace.connectors.http import NodeRefused, request_node
from headrace.consumers.migration import former_holders, peer_cut
from headrace.consumers.migration.cut_scan import CutAnswer, CutAnswerInvalid, CutScan
from headrace.consumers.migration.cut_source import ROWS_ROUTE, rows_of_cut
from headrace.consumers.migration.peer_cut import PeerCut
from headrace.consumers.migration.release import SlotRelease
from headrace.consumers.migration.slot_pull import PullState
from headrace.consumers.replication.store_jobs import IsUrgent, JobStep
from headrace.consumers.store import CutUnready, FormerRows, RankedRows, ScanRequest, TableMetadata, cut_rows
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.messages import Delete, Seal, Write
from headrace.schemas.payload import SERIES_COLUMN, encode_rows
from headrace.schemas.tables import TIME_COLUMN
from tests.unit.migration import moves as moves_module
from tests.unit.migration.conftest import of_some_slots
from tests.unit.migration.moves import (
    ANCHOR,
    BASE,
    GAINED,
    TABLE,
    TABLES,
    TARGET,
    Moves,
    MovingNode,
    random_rows,
    slot_of_row,
    topic_of,
)
from tests.unit.migration.test_listed_files import keep_away
from tests.unit.migration.test_puller import finished, has_all
from tests.unit.store.builders import DATABASE, HOUR_NS, Answer, Row, expected, row_batch, scanned

pytestmark = pytest.mark.slow(1.5)

METADATA = {name: TableMetadata(DATABASE, schema) for name, schema in TABLES.items()}


def former_of(node: MovingNode, table: str, request: ScanRequest | None = None, timeout_s: float = 5.0) -> Any:
    """What former holders have of all slots that came to a node."""
    return node.puller.former_rows("n4", GAINED, METADATA[table], request or ScanRequest(), timeout_s)


def answer_of(node: MovingNode, table: str, **conditions: Any) -> Answer:
    """A scan of the slots that came, with the rows that former holders have."""
    former = former_of(node, table, ScanRequest(**conditions), timeout_s=30.0)
    assert former is not None, table
    with node.target.store.scan("plant", table, former=former, **conditions) as scan:
        return scanned(scan, TABLES[table])


def has_every_row(moves: Moves, node: MovingNode) -> None:
    """Each table has just the rows that it should have."""
    for table in TABLES:
        assert expected(moves.moved_rows(table)) == answer_of(node, table)


def test_every_state_of_a_pull_has_every_row(moves: Moves) -> None:
    """Before the list, while files come, and when some are here. At members that fetch, and at those that link."""
    moves.hand_over()
    for member in TABLE.group("n4"):
        node, states = moves.nodes[member], set[PullState]()
        for _ in range(8):
            node.clock.now_s += 1.1
            node.puller.turn()
            states.update(pull.decision.state for pull in node.puller._pulls.values())
            if node.puller._pulls and moves.state.change is not None:
                has_every_row(moves, node)
        assert PullState.LISTING in states
    finished(moves)


def test_files_that_do_not_come_keep_no_query_waiting(moves: Moves, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the disk of the new holder is full: some files are attached, and the donors have all of them."""
    moves.hand_over()
    node = moves.nodes["n4"]
    keep_away(node, monkeypatch)
    moves.turns("n4", count=4)
    assert PullState.FETCHING in {pull.decision.state for pull in node.puller._pulls.values()}
    assert node.target.store.segments()
    assert node.target.store.awaited()
    has_every_row(moves, node)


def test_rows_of_a_cut_are_there_before_its_seal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the memory of the donor, without those of slots that stay, and without what was deleted before the cut."""
    jobs = list[JobStep]()

    def held(self: object, step: JobStep, *, urgent: IsUrgent = lambda: False) -> object:
        del urgent
        jobs.append(step)
        return self

    made = Moves(tmp_path)
    try:
        made.write("cpu", of_some_slots("cpu", random_rows(1)))
        made.delete("cpu", "h1", 0, 3 * HOUR_NS)
        made.write("disk", of_some_slots("disk", random_rows(2)))
        monkeypatch.setattr(moves_module.InlineJobs, "submit", held)
        made.cut()
        made.open_target()
        made.serve()
        made.hand_over()
        node = made.nodes["n4"]
        made.turns("n4", count=2)
        assert {PullState.LISTING} == {pull.decision.state for pull in node.puller._pulls.values()}
        has_every_row(made, node)
        monkeypatch.undo()
        for step in jobs:
            while step() is not None:
                pass
        has_every_row(made, node)
        made.turns(count=8)
        finished(made)
    finally:
        made.close()


class Later:
    """What comes to slots after their cut, and what is true then: ranks of the new table are above those of the old."""

    def __init__(self, moves: Moves, chosen: random.Random) -> None:
        self.moves = moves
        self.chosen = chosen
        self.written_here = set[tuple[str, tuple[str, int]]]()
        self.deleted_here = list[tuple[str, int]]()

    def rows(self, table: str, value: int) -> list[Row]:
        """New values of some rows of the slots."""
        rows = self.chosen.sample(self.moves.moved_rows(table), 5)
        return [(tags, at, {"busy": value}) for tags, at, _ in rows]

    def write_here(self, table: str, value: int) -> None:
        """A writer that knows the new table."""
        rows = self.rows(table, value)
        for row in rows:
            key = row[0]["host"], row[1]
            self.moves.truth[table][key] = row
            self.written_here.add((table, key))
        payload = encode_rows(row_batch(TABLES[table], rows)).to_pybytes()
        self.moves.append(topic_of(TARGET), Write("plant", table, 1, 2, len(rows), payload))

    def write_late(self, table: str, value: int) -> None:
        """A writer that does not; what a later rank has decided stays."""
        self._late(lambda: self.moves.write(table, self.rows(table, value)))

    def delete_late(self, table: str, hour: int) -> None:
        """Rows of the new table stay."""
        self._late(lambda: self.moves.delete(table, "h2", hour * HOUR_NS, (hour + 2) * HOUR_NS))

    def _late(self, call: Callable[[], None]) -> None:
        before = {table: dict(rows) for table, rows in self.moves.truth.items()}
        call()
        self.moves.hand_over()
        for table, key in self.written_here:
            self.moves.truth[table].pop(key, None)
            if key in before[table]:
                self.moves.truth[table][key] = before[table][key]
        for table, hour in self.deleted_here:
            self._drop(table, hour)

    def delete_here(self, table: str, hour: int) -> None:
        """A delete of the new table hides every row of the old one."""
        end_ns = (hour + 2) * HOUR_NS
        self.moves.append(topic_of(TARGET), Delete("plant", table, {"host": ("h3",)}, hour * HOUR_NS, end_ns))
        self.deleted_here.append((table, hour))
        self.written_here -= {(of, key) for of, key in self.written_here if of == table and is_deleted(key, hour)}
        self._drop(table, hour)

    def _drop(self, table: str, hour: int) -> None:
        for key in list(self.moves.truth[table]):
            if is_deleted(key, hour) and moved(table, key) and (table, key) not in self.written_here:
                del self.moves.truth[table][key]


def is_deleted(key: tuple[str, int], hour: int) -> bool:
    """Whether a row is one that `Later.delete_here` deletes."""
    return key[0] == "h3" and hour * HOUR_NS <= key[1] < (hour + 2) * HOUR_NS


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 203))])
def test_what_comes_after_the_cut_wins(moves: Moves, seed: int) -> None:
    """Rows and deletes of writers that know the new table, late ones that are handed over, in memory and in files."""
    chosen, node = random.Random(seed), moves.nodes["n4"]
    later = Later(moves, chosen)
    moves.turns("n4", count=1)
    for value in range(1_000, 1_012):
        table, hour = chosen.choice(list(TABLES)), chosen.randrange(16)
        match chosen.choice(["here", "late", "delete here", "delete late", "seal", "turn"]):
            case "here":
                later.write_here(table, value)
            case "late":
                later.write_late(table, value)
            case "delete late":
                later.delete_late(table, hour)
            case "delete here":
                later.delete_here(table, hour)
            case "seal":
                moves.append(topic_of(TARGET), Seal(moves.leaders[topic_of(TARGET)], ANCHOR))
            case "turn":
                moves.turns("n4", count=1)
        has_every_row(moves, node)
    moves.hand_over()
    moves.turns(count=10)
    assert moves.state.change is None
    for member in TABLE.group("n4"):
        has_all(moves, moves.nodes[member].target.store)


def moved(table: str, key: tuple[str, int]) -> bool:
    """Whether a row is of a slot that came."""
    return slot_of_row(table, {"host": key[0]}, key[1]) in GAINED


def test_a_scan_gets_what_it_asks_for(moves: Moves) -> None:
    """Columns, times and tags are those of the request. A table without rows here is known by them."""
    node = moves.nodes["n4"]
    moves.turns("n4", count=1)
    rows = [row for row in moves.moved_rows("cpu") if row[0]["host"] == "h2" and HOUR_NS <= row[1] < 9 * HOUR_NS]
    assert rows
    asked = ScanRequest(frozenset({"host"}), HOUR_NS, 9 * HOUR_NS, {"host": ("h2",)})
    assert expected(rows) == answer_of(node, "cpu", tags=asked.tags, start_ns=asked.start_ns, end_ns=asked.end_ns)
    former = former_of(node, "cpu", asked)
    assert {(SERIES_COLUMN, TIME_COLUMN)} == {tuple(each.rows.schema.names) for each in former.batches}
    assert len(rows) <= sum(len(each.rows) for each in former.batches) < 3 * len(rows)


def test_where_former_holders_do_not_answer_files_are_waited_for(moves: Moves, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many rows, an answer that is none, slots that nobody gave, an unknown schema, or nobody online."""
    node = moves.nodes["n4"]
    assert former_of(node, "cpu") is None
    moves.turns("n4", count=1)
    assert former_of(node, "cpu") is not None
    assert node.puller.former_rows("n1", GAINED, METADATA["cpu"], ScanRequest(), 5.0) is None
    assert node.puller.former_rows("n4", {*GAINED, 0}, METADATA["cpu"], ScanRequest(), 5.0) is None
    with monkeypatch.context() as patched:
        patched.setattr(cut_rows, "VALUES_MAX", 10)
        assert former_of(node, "cpu") is None
    with monkeypatch.context() as patched:
        patched.setattr(peer_cut, "Deadline", lambda _timeout_s: Deadline(0.0))
        assert former_of(node, "cpu") is None
    for module, name in (
        (cut_rows, "ROWS_BYTES_MAX"),
        (former_holders, "VALUES_MAX"),
        (peer_cut, "ROWS_ANSWER_BYTES_MAX"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, 10)
            assert former_of(node, "cpu") is None
    with monkeypatch.context() as patched:
        patched.setattr(CutAnswer, "to_bytes", lambda _: b"{}\nnothing")
        assert former_of(node, "cpu") is None
    with monkeypatch.context() as patched:
        version = METADATA["cpu"].schema.version
        patched.setattr(PeerCut, "rows", lambda _, pair, *_of: CutAnswer(pair.slots, version))
        assert former_of(node, "cpu") is not None
        patched.setattr(PeerCut, "rows", lambda _, pair, *_of: CutAnswer(pair.slots, version + 1))
        assert former_of(node, "cpu") is None
    for other in moves.nodes.values():
        other.leave()
    assert former_of(node, "cpu") is None


def test_rows_that_were_deleted_before_the_cut_are_not_sent(tmp_path: Path) -> None:
    """Those in files, too, which are as they were sealed: who asks does not know these deletes."""
    made = Moves(tmp_path)
    try:
        for seed, table in enumerate(TABLES, 1):
            made.write(table, of_some_slots(table, random_rows(seed)))
        for header in BASE.headers:
            topic = topic_of(GroupKey(header, 1))
            made.append(topic, Seal(made.leaders[topic], ANCHOR))
        before = {table: len(made.moved_rows(table)) for table in TABLES}
        for table in TABLES:
            made.delete(table, "h1", 0, 9 * HOUR_NS)
            assert len(made.moved_rows(table)) < before[table]
        made.cut()
        made.open_target()
        made.serve()
        made.turns("n4", count=1)
        has_every_row(made, made.nodes["n4"])
    finally:
        made.close()


def test_a_cut_of_a_later_table_is_not_there_yet(moves: Moves) -> None:
    """Also if the group has given slots to the same one before."""
    donor = moves.nodes["n1"].groups[topic_of(GroupKey("n1", 1))]
    assert rows_of_cut(donor, TARGET, TABLE.version, CutScan("plant", "cpu")).batches
    with pytest.raises(CutUnready, match="has not reached slot table 3"):
        rows_of_cut(donor, TARGET, TABLE.version + 1, CutScan("plant", "cpu"))


def test_a_donor_that_is_behind_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a while: it reads its log up to the cut. Before that its answer would lack rows."""
    monkeypatch.setattr(former_holders, "ANSWER_TIMEOUT_S", 0.2)
    made = Moves(tmp_path)
    try:
        made.write("cpu", of_some_slots("cpu", random_rows(1)))
        made.open_target()
        made.serve()
        node = made.nodes["n4"]
        made.turns("n4", count=1)
        assert former_of(node, "cpu") is None
        # Each donor is asked by a thread of its own: the length of a list could be seen as 3 by the two first ones.
        pauses = count(1)

        sleep = time.sleep

        def cut_meanwhile(seconds: float) -> None:
            if next(pauses) == 2:
                made.cut()
            sleep(seconds)

        monkeypatch.setattr(former_holders, "ANSWER_TIMEOUT_S", 20.0)
        monkeypatch.setattr(time, "sleep", cut_meanwhile)
        made_rows = expected(made.moved_rows("cpu"))
        assert made_rows == answer_of(node, "cpu")
    finally:
        made.close()


def test_released_rows_are_no_answer(moves: Moves) -> None:
    """The donors remove them when the change has ended: an answer without them would lack rows."""
    moves.hand_over()
    node = moves.nodes["n4"]
    moves.turns("n4", count=1)
    pull = next(iter(node.puller._pulls.values()))
    moves.turns(count=10)
    finished(moves)
    version = TABLE.version
    scan, donor = CutScan("plant", "cpu"), moves.nodes[pull.pair.donor.group]
    source = PeerCut("n1", donor.server.url if donor.server else "", pull.pair.donor, topic_of(pull.pair.donor))
    assert source.rows(pull.pair, version, scan, 5.0).batches
    for each in moves.nodes.values():
        SlotRelease(each.groups, lambda: moves.state).turn()
        for group in each.groups.values():
            while group.turn():
                pass
    with pytest.raises(Exception, match="are not held here"):
        source.rows(pull.pair, version, scan, 5.0)


def test_a_request_that_no_node_sends_is_refused(moves: Moves) -> None:
    """With one line, and status 400."""
    server = moves.nodes["n1"].server
    assert server is not None
    for query in ("scan=nothing", "scan={}", 'scan={"database":1,"table":"t"}', "scan={}&table=x"):
        named = f"group=n1&birth=1&target=n4&target_birth=2&table=2&{query}"
        with pytest.raises(NodeRefused) as refused, request_node(f"{server.url}{ROWS_ROUTE}?{named}"):
            pass
        assert 400 == refused.value.status
        assert "\n" not in refused.value.message


NAMES = st.text(min_size=1, max_size=8)


@given(
    scan=st.builds(
        CutScan,
        NAMES,
        NAMES,
        st.none() | st.lists(NAMES, max_size=4, unique=True).map(sorted),
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.dictionaries(NAMES, st.lists(st.text(max_size=5), max_size=3), max_size=3),
    )
)
def test_a_scan_survives_its_way(scan: CutScan) -> None:
    """Whatever names and values it has."""
    assert scan == CutScan.from_json(scan.to_json())


def batches() -> Iterator[RankedRows]:
    """Rows of several ranks, each with series of its own."""
    schema = TABLES["cpu"]
    for rank in range(3):
        rows = [({"host": f"h{rank}-{number}"}, number, {"busy": number}) for number in range(rank * 3 + 1)]
        yield RankedRows(rank, rank * 7, row_batch(schema, rows))


@given(cut=st.integers(1, 400), at=st.integers(0, 4_000), to=st.integers(1, 255))
def test_an_answer_is_whole_or_none(cut: int, at: int, to: int) -> None:
    """Bytes that are not all there, and bytes that have changed, are an error."""
    data = CutAnswer((1, 5), 3, tuple(batches())).to_bytes()
    changed = bytearray(data)
    changed[at % len(data)] ^= to
    for each in (bytes(changed), data[: len(data) - cut]):
        with pytest.raises(CutAnswerInvalid):
            CutAnswer.from_bytes(each)


def test_rows_of_an_answer_come_as_they_were_sent() -> None:
    """Each batch with its rank, and its own dictionary of series."""
    sent = CutAnswer((1, 5), 3, tuple(batches()))
    found = CutAnswer.from_bytes(sent.to_bytes())
    assert [(each.era, each.version) for each in sent.batches] == [(each.era, each.version) for each in found.batches]
    for one, other in zip(sent.batches, found.batches, strict=True):
        assert one.rows.column(0).dictionary_decode().equals(other.rows.column(0).dictionary_decode())
        assert one.rows.select([1, 2]).equals(other.rows.select([1, 2]))
    assert () == CutAnswer.from_bytes(CutAnswer((), 0).to_bytes()).batches
    assert () == tuple(FormerRows(METADATA["cpu"], 2, ()).live())


def test_groups_of_the_old_table_are_the_donors() -> None:
    """The tests above are about rows of three donors."""
    assert {"n1", "n2", "n3"} == {former for _, former in TABLE.moved} == set(BASE.nodes)
    assert GroupKey("n4", TABLE.version) == TARGET
