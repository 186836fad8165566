"""A store in use: writes, seals, scans, drops, and its sizes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.consumers.store import BatchInvalid, JobOutOfOrder, Store, StoreSettings, TableUnknown, pruning
from headrace.schemas.tables import DatabaseSchema, FieldType, TableSchema
from tests.unit.store.builders import CPU, DATABASE, HOUR_NS, Row, contents, expected, row_batch, seal, write
from tests.unit.store.conftest import SETTINGS

A, B = {"host": "a"}, {"host": "b", "rack": "r1"}


def test_the_newest_write_of_a_row_wins_everywhere(store: Store) -> None:
    """Later in the log wins, within a message the later row, sealed or not; a field the winner lacks is null."""
    write(store, 1, [(A, 1, {"busy": 1, "load": 1.0}), (A, 1, {"busy": 2})])
    assert expected([(A, 1, {"busy": 2})]) == contents(store)
    seal(store, 2)
    write(store, 3, [(A, 1, {"load": 3.0}), (B, 2, {"busy": 9})])
    rows: list[Row] = [(A, 1, {"load": 3.0}), (B, 2, {"busy": 9})]
    assert expected(rows) == contents(store)
    seal(store, 4)
    assert expected(rows) == contents(store)


def test_a_higher_era_wins_over_a_later_version(store: Store) -> None:
    """Rank is (era, version): a row of an older era never covers one of a newer era, in memory and in files."""
    write(store, 1, [(A, 1, {"busy": 2})], era=2)
    write(store, 2, [(A, 1, {"busy": 1}), (A, 2, {"busy": 1})], era=1)
    want = expected([(A, 1, {"busy": 2}), (A, 2, {"busy": 1})])
    assert want == contents(store)
    seal(store, 3)
    assert want == contents(store)
    assert [1, 2] == sorted(entry.era for entry in store.segments())


@pytest.mark.parametrize("seals", [(), (2,), (4,), (2, 4)])
def test_a_lower_era_never_covers_whatever_is_sealed(store: Store, home: Path, seals: tuple[int, ...]) -> None:
    """The higher era wins over a later row of a lower one, with each of them in memory or in a file.

    The same holds for last rows, and after reopening.
    """
    write(store, 1, [(A, 1, {"busy": 2})], era=2)
    if 2 in seals:
        seal(store, 2)
    write(store, 3, [(A, 1, {"busy": 1})], era=1)
    if 4 in seals:
        seal(store, 4)
    want = expected([(A, 1, {"busy": 2})])
    assert want == contents(store)
    last = store.last_rows("plant", "cpu")
    assert last is not None
    assert [2] == last.column("busy").to_pylist()
    if 4 in seals:
        store.close()
        reopened = Store.open(home, "n1", SETTINGS)
        assert want == contents(reopened)
        reopened.close()


def test_files_that_share_no_row_are_scanned_without_a_merge(store: Store) -> None:
    """Overlap in time alone needs no merge, neither between files nor between files and late unsealed rows.

    A shared row does, and only of the files that have it.
    """
    write(store, 1, [(A, 10, {"busy": 1}), (A, 30, {"busy": 2})])
    seal(store, 2)
    write(store, 3, [(A, 20, {"busy": 3}), (A, 40, {"busy": 4}), (A, HOUR_NS, {"busy": 5})])
    seal(store, 4)
    write(store, 5, [(A, 15, {"busy": 6}), (B, 10, {"busy": 7})])
    with store.scan("plant", "cpu") as scan:
        assert (3, 2) == (len(scan.files), scan.table.num_rows)
    write(store, 6, [(A, 40, {"busy": 8}), (A, 17, {"busy": 9})])
    with store.scan("plant", "cpu") as scan:
        assert {10, 15, 17, 20, 40} == set(scan.table.column("time").to_pylist())
        assert 2 == len(scan.files)
    seal(store, 7)
    with store.scan("plant", "cpu") as scan:
        assert {10, 15, 17, 20, 40} == set(scan.table.column("time").to_pylist())
    with store.scan("plant", "cpu", end_ns=12) as scan:
        assert 0 == scan.table.num_rows
        assert 0 < len(scan.files)


@pytest.mark.parametrize("sealed", [True, False])
def test_rows_that_were_written_twice_are_found_without_a_file(
    store: Store, monkeypatch: pytest.MonkeyPatch, sealed: bool
) -> None:
    """The index has the first and the last time of each series: an equal one is a shared row."""
    rows: list[Row] = [(A, 10, {"busy": 1}), (A, 20, {"busy": 2}), (B, 15, {"busy": 3})]
    write(store, 1, rows)
    seal(store, 2)
    again: list[Row] = [(A, 5, {"busy": 4}), (A, 20, {"busy": 5})]
    write(store, 3, again)
    if sealed:
        seal(store, 4)

    def unread(*_arguments: object) -> None:
        raise AssertionError("a file was read")

    monkeypatch.setattr(pruning, "read_rows", unread)
    assert expected([rows[0], rows[2], *again]) == contents(store)


def test_live_rows_are_known_to_be_unique_or_not(store: Store) -> None:
    """Repeated, upserted and late unsealed rows are each answered once, also after earlier scans."""
    rows: list[Row] = [(A, 10, {"busy": 1}), (B, 10, {"busy": 2})]
    write(store, 1, rows)
    assert expected(rows) == contents(store)
    write(store, 2, [(A, 11, {"busy": 3})])
    assert store._components.live.of(store._components.view.table("plant", "cpu")).unique
    assert expected([*rows, (A, 11, {"busy": 3})]) == contents(store)
    write(store, 3, [(A, 10, {"busy": 4}), (B, 9, {"busy": 5})])
    assert not store._components.live.of(store._components.view.table("plant", "cpu")).unique
    assert expected(
        [(A, 10, {"busy": 4}), (B, 10, {"busy": 2}), (A, 11, {"busy": 3}), (B, 9, {"busy": 5})]
    ) == contents(store)


def test_a_pruned_scan_returns_the_requested_columns(store: Store) -> None:
    """The merged half has the requested tags and fields in the order of the schema, and always the time.

    Unknown names are left out.
    """
    write(store, 1, [(A, 1, {"busy": 1, "load": 2.0})])
    with store.scan("plant", "cpu", columns=["load", "host", "nothing"]) as scan:
        assert ["host", "time", "load"] == scan.table.schema.names
        assert pa.dictionary(pa.int32(), pa.string()) == scan.table.schema.field("host").type
    with store.scan("plant", "cpu", columns=[]) as scan:
        assert (["time"], 1) == (scan.table.schema.names, scan.table.num_rows)


def test_a_scan_without_rows_still_has_its_columns(store: Store) -> None:
    """Nothing found gives an empty table with every column and its type."""
    write(store, 1, [(A, 1, {"busy": 1})])
    with store.scan("plant", "cpu", start_ns=100) as scan:
        assert ([], 0) == (scan.files, scan.table.num_rows)
        assert ["host", "rack", "time", "busy", "load", "note", "up"] == scan.table.schema.names
        assert [pa.int64(), pa.float64(), pa.string(), pa.bool_()] == scan.table.schema.types[3:]


def test_an_unknown_table_is_an_error_and_never_an_empty_answer(store: Store) -> None:
    """Scan, last rows and schema of a table without rows raise TableUnknown."""
    for ask in (store.scan, store.last_rows, store.schema):
        with pytest.raises(TableUnknown):
            ask("plant", "nothing")


def test_frozen_rows_stay_visible_until_their_segments_are(store: Store) -> None:
    """Between freeze and commit rows are in memory, after it in files, at each moment once; sizes say which."""
    write(store, 1, [(A, 1, {"busy": 1})])
    job = store.freeze(2, 1, b"two")
    write(store, 3, [(B, 1, {"busy": 2})])
    want = expected([(A, 1, {"busy": 1}), (B, 1, {"busy": 2})])
    assert want == contents(store)
    assert (1, 2, 1) == (store.size().rows, store.unsealed().rows, store.pending_jobs())
    assert (None, 0) == (store.state, store.frontier)
    job.run()
    job.run()
    assert want == contents(store)
    assert (1, 1, 0) == (store.size().rows, store.unsealed().rows, store.pending_jobs())
    assert (b"two", 2) == (store.state, store.frontier)


def test_jobs_commit_in_the_order_of_their_creation(store: Store) -> None:
    """A later seal refuses to commit before an earlier one, so the committed state never skips rows."""
    write(store, 1, [(A, 1, {"busy": 1})])
    first = store.freeze(2, 1, b"")
    write(store, 3, [(A, 2, {"busy": 2})])
    second = store.freeze(4, 1, b"")
    with pytest.raises(JobOutOfOrder) as caught:
        second.run()
    assert caught.value.retriable
    first.run()
    second.run()
    assert [(1, 2), (3, 4)] == sorted((e.first_version, e.last_version) for e in store.segments())


def test_an_empty_seal_commits_its_state(store: Store, home: Path) -> None:
    """A seal without rows writes no file but moves state and frontier, and that survives reopening."""
    seal(store, 7, b"seven")
    assert [] == store.segments()
    store.close()
    reopened = Store.open(home, "n1", SETTINGS)
    assert (b"seven", 7, []) == (reopened.state, reopened.frontier, reopened.tables())
    reopened.close()


def test_a_scan_keeps_its_files_on_disk(store: Store) -> None:
    """A file that a merge replaces stays until the scan that names it is closed; the next scan has the new file."""
    write(store, 1, [(A, 1, {"busy": 1})])
    seal(store, 2)
    write(store, 3, [(A, 2, {"busy": 2})])
    seal(store, 4)
    inputs = [entry.name for entry in store.segments()]
    scan = store.scan("plant", "cpu")
    store.compact(5, inputs).run()
    assert all(path.exists() for path in scan.files)
    assert 2 == len(scan.files)
    assert expected([(A, 1, {"busy": 1}), (A, 2, {"busy": 2})]) == contents(store)
    scan.close()
    scan.close()
    assert not any(path.exists() for path in scan.files)


def test_drop_removes_complete_slices(store: Store) -> None:
    """Slices that end at or before the time are removed, in files and in memory; the slice of the time stays."""
    rows: list[Row] = [(A, at, {"busy": 1}) for at in (1, HOUR_NS - 1, HOUR_NS, HOUR_NS + 1)]
    write(store, 1, rows[:2])
    seal(store, 2)
    write(store, 3, rows[2:])
    write(store, 4, [(B, 5, {"busy": 2})])
    job = store.drop(5, 1, "plant", "cpu", 2 * HOUR_NS - 1)
    assert expected(rows[2:]) == contents(store)
    assert job is not None
    job.run()
    assert [] == [entry.name for entry in store.segments()]
    assert not list(store.segments_directory.rglob("*.parquet"))
    write(store, 6, [(B, 7, {"busy": 3})])
    seal(store, 8)
    assert expected([*rows[2:], (B, 7, {"busy": 3})]) == contents(store)
    assert store.drop(9, 1, "plant", "nothing", HOUR_NS) is None


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        (TableSchema("plant", "cpu", 1, ("host",), (("busy", FieldType.INT64),)), {"load": FieldType.FLOAT64}),
        (TableSchema("plant", "cpu", 1, ("host",), (("load", FieldType.INT64),)), {"load": FieldType.FLOAT64}),
        (TableSchema("plant", "cpu", 1, ("host",), (("load", FieldType.BOOL),)), {"load": FieldType.STRING}),
    ],
)
def test_a_batch_with_a_row_that_does_not_fit_is_refused(
    store: Store, schema: TableSchema, types: dict[str, FieldType]
) -> None:
    """A field the schema lacks, or of another type that does not widen, is refused and nothing is stored."""
    batch = row_batch(CPU, [(A, 1, {})], types)
    with pytest.raises(BatchInvalid, match="load"):
        store.write(1, 1, schema, DATABASE, batch)
    assert (0, []) == (store.size().rows, store.tables())


def test_columns_are_added_and_widened(store: Store) -> None:
    """Rows under older and newer schemas are one table: new fields are null in old rows, int64 reads as float64, also after a merge."""
    old = TableSchema("plant", "t", 1, ("host",), (("v", FieldType.INT64),))
    new = TableSchema("plant", "t", 2, ("host", "site"), (("v", FieldType.FLOAT64), ("w", FieldType.STRING)))
    write(store, 1, [(A, 1, {"v": 1}), (A, 5, {"v": 5})], old)
    seal(store, 2)
    write(store, 3, [(A, 3, {"v": 0.5, "w": "x"}), ({"host": "a", "site": "s"}, 3, {"v": 2.5})], new)
    want = expected([(A, 1, {"v": 1.0}), (A, 5, {"v": 5.0}), (A, 3, {"v": 0.5, "w": "x"}),
                     ({"host": "a", "site": "s"}, 3, {"v": 2.5})])  # fmt: skip
    assert want == contents(store, new)
    assert new == store.schema("plant", "t")
    seal(store, 4)
    for plan in store.plan_compaction():
        store.compact(5, plan.inputs).run()
    assert {2} == {entry.schema_version for entry in store.segments() if entry.last_version == 4}
    wide = [row for row in contents(store, new).items() if row[0][1] != 99]
    assert want.keys() == dict(wide).keys()


def test_a_seal_uses_the_schema_it_is_given(store: Store) -> None:
    """A seal that names a newer schema than its rows writes that one's columns: the record decides, not the newest schema at a replica."""
    narrow = TableSchema("plant", "t", 1, ("host",), (("v", FieldType.INT64),))
    wide = TableSchema("plant", "t", 3, ("host",), (("u", FieldType.BOOL), ("v", FieldType.FLOAT64)))
    write(store, 1, [(A, 1, {"v": 1})], narrow)
    store.freeze(2, 1, b"", {("plant", "t"): wide}).run()
    with store.scan("plant", "t") as scan:
        (path,) = scan.files
    assert [("a", None, 1.0)] == duckdb.execute(f"SELECT host, u, v FROM read_parquet('{path}')").fetchall()
    assert 3 == store.segments()[0].schema_version


def test_unusual_names_survive(store: Store, home: Path) -> None:
    """Databases, tables, tags and values with separators, dots, globs and long names are stored in files and survive reopening."""
    long = "ü" * 90 + "/" * 20
    for version, (database, table) in enumerate(
        [("a/b", "c d"), ("..x", "*?[0]"), (long, "_hidden=1"), ("A%2Fb", "a/b")]
    ):
        schema = TableSchema(database, table, 1, ("ta,g",), (("f.g", FieldType.INT64), ("ü b", FieldType.STRING)))
        cut = DatabaseSchema(database, HOUR_NS, 2)
        rows: list[Row] = [({"ta,g": "v=1, \\\n2"}, 1, {"f.g": version, "ü b": "x"})]
        store.write(version * 2 + 1, 1, schema, cut, row_batch(schema, rows))
        seal(store, version * 2 + 2)
        assert expected(rows) == contents(store, schema)
    tables = store.tables()
    assert 4 == len(tables)
    assert 4 == len({entry.name.rsplit("/", 2)[0] for entry in store.segments()})
    store.close()
    reopened = Store.open(home, "n1", SETTINGS)
    assert tables == reopened.tables()
    reopened.close()


MESSAGES = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(({"host": "a"}, {"host": "b", "rack": "x"}, {})),
            st.integers(0, 9).map(lambda n: n * HOUR_NS // 4),
            st.fixed_dictionaries({"busy": st.integers(0, 99), "up": st.none() | st.booleans()}),
        ),
        min_size=1,
        max_size=8,
    ),
    min_size=1,
    max_size=6,
)


@given(messages=MESSAGES, sealing=st.lists(st.booleans(), min_size=6, max_size=6), merging=st.booleans())
@settings(max_examples=20, deadline=None)
def test_the_documented_query_over_plain_files_gives_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, messages: list[list[Row]], sealing: list[bool], merging: bool
) -> None:
    """For a table without deletes DuckDB over the Parquet files gives the rows of a scan, without a running node.

    It takes of each (tags, time) the row of the last file name.
    """
    home = tmp_path_factory.mktemp("plain")
    store = Store.open(home, "n1", StoreSettings(row_group_rows=4, compaction_files_min=2, encode_threads=1))
    version = 0
    for message, sealed in zip(messages, sealing, strict=False):
        write(store, version + 1, message)
        version += 2
        if sealed:
            seal(store, version)
    seal(store, version + 1)
    if merging:
        for plan in store.plan_compaction():
            store.compact(version + 2, plan.inputs).run()
    want = contents(store)
    store.close()
    rows = duckdb.execute(
        f"""SELECT host, rack, epoch_ns(time) AS at, busy, up
            FROM read_parquet('{home}/segments/n1/plant/cpu/**/*.parquet', union_by_name = true, filename = true)
            QUALIFY row_number() OVER (PARTITION BY host, rack, time ORDER BY filename DESC) = 1"""
    ).fetchall()
    found: list[Row] = [
        ({"host": host or "", "rack": rack or ""}, at, {"busy": busy, "up": up}) for host, rack, at, busy, up in rows
    ]
    assert want == expected(found)
    assert len(found) == len(want)


def test_stores_share_encoding_threads_that_survive_each_close(tmp_path: Path) -> None:
    """Two stores seal at once on one thread; closing the first does not stop the second."""
    with ThreadPoolExecutor(1) as encoders, ThreadPoolExecutor(2) as jobs:
        stores = [Store.open(tmp_path / name, "n1", SETTINGS, encoders) for name in ("one", "other")]
        rows: list[Row] = [(A, 1, {"busy": 1}), (B, 2, {"busy": 2}), (A, HOUR_NS, {"busy": 3})]
        for store in stores:
            write(store, 1, rows)
        for done in [jobs.submit(seal, store, 2) for store in stores]:
            done.result()
        stores[0].close()
        write(stores[1], 3, [(B, 2, {"busy": 4})])
        seal(stores[1], 4)
        assert expected([rows[0], (B, 2, {"busy": 4}), rows[2]]) == contents(stores[1])
        stores[1].close()
        assert encoders.submit(lambda: "still there").result() == "still there"
