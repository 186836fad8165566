"""Queries of five nodes with three replicas of each group: from every node what DuckDB gives over all rows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.consumers.query import top_rows
from headrace.consumers.query.fragment_sql import FragmentSql
from headrace.consumers.query.query_errors import FunctionRefused, NotReadOnly, QueryInvalid
from headrace.consumers.query.scan_request import RemoteScanRequest, ScanInvalid
from tests.seeds import seeds
from tests.unit.query.cluster_of_stores import StoredCluster, cluster_of_stores
from tests.unit.query.random_statements import BEGIN_NS, SCHEMA, TYPES, random_query, random_sibling, random_values
from tests.unit.query.test_partial_plan import assert_same
from tests.unit.store.builders import Row

TABLE = "tsbs.cpu"


class Written:
    """A cluster and the rows that it must have."""

    def __init__(self, cluster: StoredCluster, connection: duckdb.DuckDBPyConnection) -> None:
        self.cluster = cluster
        self.connection = connection
        self.rows: dict[tuple[tuple[tuple[str, str], ...], int], dict[str, object]] = {}

    def write(self, rows: list[Row]) -> None:
        """Upserts."""
        self.cluster.write(rows)
        for tags, time, fields in rows:
            self.rows[tuple(sorted(tags.items())), time] = dict(fields)

    def delete(self, host: str, start_ns: int, end_ns: int) -> None:
        """Rows of one host in a range of time."""
        self.cluster.delete({"host": (host,)}, start_ns, end_ns)
        gone = [key for key in self.rows if dict(key[0]).get("host") == host and start_ns <= key[1] < end_ns]
        for key in gone:
            del self.rows[key]

    def register(self) -> None:
        """Give the rows to DuckDB."""
        rows = [dict(tags) | {"time": time} | fields for (tags, time), fields in self.rows.items()]
        self.connection.execute("CREATE SCHEMA IF NOT EXISTS tsbs")
        self.connection.register("all_rows", pa.Table.from_pylist(rows, schema=pa.schema(list(TYPES.items()))))
        self.connection.execute(f"CREATE OR REPLACE VIEW {TABLE} AS FROM all_rows")

    def check(self, node: str, sql: str, ordered: bool) -> None:
        """One node gives the names, the types and the rows that DuckDB gives."""
        wanted = self.connection.sql(sql)
        found = self.cluster.ask(node, sql)
        expected = wanted.to_arrow_table()
        assert expected.schema.types == found.schema.types, sql
        # An answer numbers names that occur twice.
        names = expected.schema.names
        assert names == found.schema.names or len({*names}) < len(names), sql
        try:
            assert_same(values_of(found), values_of(expected), ordered)
        except AssertionError as error:
            raise AssertionError(f"{node}: {sql}") from error


def values_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows as tuples; times as integers."""
    columns = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in table.columns]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def fill(cluster: StoredCluster, connection: duckdb.DuckDBPyConnection) -> Written:
    """Rows with disorder, upserts and deletes, half of them sealed."""
    chance, filled = random.Random(15), Written(cluster, connection)
    connection.execute("SET threads = 1")
    # A time of its own for every row, so that no two are equally old.
    series = [{"host": f"host_{number}", "region": chance.choice(["eu", "us"])} for number in range(12)]
    series += [{"region": "none"}, {"host": "alone"}]
    seconds = chance.sample(range(4 * 3600), 1_200)
    keys = [(chance.choice(series), BEGIN_NS + second * 1_000_000_000) for second in seconds]
    for first in range(0, len(keys), 100):
        older = chance.sample(keys[:first], min(first, 15))
        filled.write([(tags, time, random_values(chance)) for tags, time in [*keys[first : first + 100], *older]])
        if chance.random() < 0.3:
            begin_ns = BEGIN_NS + chance.randrange(3 * 3600) * 1_000_000_000
            filled.delete(f"host_{chance.randrange(12)}", begin_ns, begin_ns + 1_800_000_000_000)
        cluster.seal(*chance.sample(cluster.ring.headers, 1))
    filled.register()
    return filled


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    """Five nodes."""
    with cluster_of_stores(tmp_path_factory.mktemp("cluster"), SCHEMA) as cluster, duckdb.connect() as connection:
        yield fill(cluster, connection)


@pytest.mark.parametrize("seed", seeds(3, 10))
def test_every_node_answers_as_one_duckdb(written: Written, seed: int) -> None:
    """Random statements, of the allow-list and beyond it, from random nodes."""
    chance = random.Random(seed)
    for _ in range(8):
        query = random_query(chance)
        node = chance.choice(written.cluster.ring.headers)
        written.check(node, query.sql.replace("{table}", TABLE), query.ordered)


@pytest.mark.parametrize("seed", seeds(2, 20))
def test_what_earlier_statements_left_changes_no_answer(written: Written, seed: int) -> None:
    """Statements that differ in their literals alone share trees, plans and divisions, as it is with dashboards."""
    chance = random.Random(seed)
    for _ in range(2):
        query = random_query(chance)
        node = chance.choice(written.cluster.ring.headers)
        for each in [query, *(random_sibling(chance, query) for _ in range(4)), query]:
            written.check(node, each.sql.replace("{table}", TABLE), each.ordered)


@pytest.mark.parametrize(
    ("sql", "ordered"),
    [
        ("SELECT * FROM tsbs.cpu ORDER BY time DESC LIMIT 5", True),
        ("SELECT host, time, x FROM tsbs.cpu WHERE b ORDER BY time LIMIT 3 OFFSET 2", True),
        (
            "SELECT time_bucket(INTERVAL '1 minute', time) AS m, count(*), max(x) FROM tsbs.cpu GROUP BY m ORDER BY m DESC LIMIT 4",
            True,
        ),
        ("SELECT date_trunc('minute', time) AS m, median(x) FROM tsbs.cpu GROUP BY 1 ORDER BY 1 LIMIT 4", True),
        ("SELECT host, time FROM tsbs.cpu WHERE x > 90 ORDER BY time DESC LIMIT 9", True),
    ],
)
def test_first_rows_by_time_are_those_of_all(
    written: Written, monkeypatch: pytest.MonkeyPatch, sql: str, ordered: bool
) -> None:
    """Other nodes are asked for a range of time first, and the answer is that over all rows."""
    monkeypatch.setattr(top_rows, "TABLE_ROWS_MIN", 0)
    for node in written.cluster.ring.headers:
        written.cluster.exchanged.clear()
        written.check(node, sql, ordered)
        first = written.cluster.exchanged[0][0]
        assert (first.start_ns, first.end_ns) != (None, None)


@pytest.mark.parametrize("node", ["n0", "n3"])
@pytest.mark.parametrize("interval", ["1 hour 01:30:00", "150 min", "2 hrs", "150 minutes ago"])
def test_every_form_of_an_interval_bounds_the_rows(written: Written, node: str, interval: str) -> None:
    """What a bound means to the planner, and to the members that filter by it, is what it means to DuckDB."""
    for sign in ("<", ">"):
        condition = f"time {sign} TIMESTAMP '2026-01-01 03:00:00' - INTERVAL '{interval}'"
        written.check(node, f"SELECT host, time FROM {TABLE} WHERE {condition}", ordered=False)
        written.check(node, f"SELECT count(x) FROM {TABLE} WHERE host = 'host_1' AND {condition}", ordered=True)


@pytest.mark.parametrize(
    "condition",
    [
        "s != DATE '2026-01-01'::VARCHAR",
        "time::VARCHAR > TIMESTAMP '2026-01-01 02:00:00'::VARCHAR",
        "time > TIMESTAMP '2026-01-01 02:00:00'::DATE",
    ],
)
def test_a_typed_text_that_is_cast_stays_what_it_is(written: Written, condition: str) -> None:
    """The parser takes the two casts in another order than DuckDB: such a condition is not sent to members."""
    written.check("n0", f"SELECT host, time FROM {TABLE} WHERE {condition}", ordered=False)
    written.check("n0", f"SELECT count(*) FROM {TABLE} WHERE {condition}", ordered=False)


@pytest.mark.parametrize("number", [".5", "-.50", ".5e1", "0.5", "5."])
def test_a_number_keeps_its_digits(written: Written, number: str) -> None:
    """Its text and its type depend on how it is written, also in the statements of members."""
    written.check("n0", f"SELECT host || ({number}) AS k, max(s || ({number})) FROM {TABLE} GROUP BY k", ordered=False)
    written.check("n0", f"SELECT host, time FROM {TABLE} WHERE s || ({number}) < 'a0'", ordered=False)


def answers(written: Written, node: str, sql: str) -> list[tuple[RemoteScanRequest, pa.Table]]:
    """What other nodes were asked for by a query, which is checked, and what they answered."""
    written.cluster.exchanged.clear()
    written.check(node, sql, ordered="ORDER BY" in sql)
    return list(written.cluster.exchanged)


def test_members_send_partial_aggregates(written: Written) -> None:
    """One row a key and group, computed where the rows are, under the guard of users' SQL."""
    found = answers(written, "n0", f"SELECT region, avg(x) AS a, count(*) AS c FROM {TABLE} GROUP BY region")
    assert ["n1", "n2"] == sorted(request.group for request, _ in found)
    assert all(answer.column_names == ["__key_0", "__partial_0", "__partial_1", "__partial_2"] for _, answer in found)
    assert all(0 < answer.num_rows <= 3 for _, answer in found)


def test_members_send_no_rows_that_a_condition_rejects(written: Written) -> None:
    """Also one that no index knows; its value may be a parameter, which travels by name."""
    found = answers(written, "n0", f"SELECT host, time, x FROM {TABLE} WHERE x > 90 AND NOT b")
    assert all(
        answer.num_rows == pc.sum(pc.greater(answer["x"], 90)).as_py() or not answer.num_rows for _, answer in found
    )
    sql = f"SELECT count(*) AS c, max($m) AS m FROM {TABLE} WHERE host = $h OR time < now() - INTERVAL '1 day'"
    given = {"h": "host_1", "m": 7}
    ((wanted,),) = written.connection.execute(
        f"SELECT count(*) FROM {TABLE} WHERE host = 'host_1' OR time < TIMESTAMP '2100-01-01'"
    ).fetchall()
    written.cluster.exchanged.clear()
    assert [{"c": wanted, "m": 7}] == written.cluster.ask("n0", sql, parameters=given).to_pylist()
    parameters = [request.fragment.parameters for request, _ in written.cluster.exchanged if request.fragment]
    assert [{"p0": 7, "p1": "host_1"}] * 2 == parameters or [{"p0": "host_1", "p1": 7}] * 2 == parameters


def test_a_limit_is_that_of_every_member(written: Written) -> None:
    """With an order each member sends its first rows, and without one any rows."""
    ordered = answers(written, "n0", f"SELECT host, time FROM {TABLE} ORDER BY time DESC LIMIT 5 OFFSET 2")
    assert [7, 7] == [answer.num_rows for _, answer in ordered]
    written.cluster.exchanged.clear()
    assert 5 == written.cluster.ask("n0", f"SELECT host, time FROM {TABLE} LIMIT 5").num_rows
    assert [5, 5] == [answer.num_rows for _, answer in written.cluster.exchanged]


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("SELECT * FROM read_text('/etc/passwd')", FunctionRefused),
        ("SELECT getvariable('x') FROM tsbs.cpu", FunctionRefused),
        ("DELETE FROM tsbs.cpu", NotReadOnly),
        ("SELECT * FROM tsbs.cpu; SELECT 1", NotReadOnly),
        ("SELECT count(*) FROM tsbs.cpu, tsbs.other", ScanInvalid),
        ("SELECT 1", ScanInvalid),
        ("EXPLAIN ANALYZE SELECT * FROM tsbs.cpu", ScanInvalid),
    ],
)
def test_a_fragment_passes_the_guard_of_users(written: Written, sql: str, error: type[Exception]) -> None:
    """A member trusts no text: it reads the table of the request, and nothing else."""
    request = RemoteScanRequest("n0", "tsbs", "cpu", 1, ("time",), None, None, fragment=FragmentSql(sql))
    request = replace(request, timeout_ms=30_000, wait_ms=30_000)
    scan = written.cluster.scanners["n0"].open(request)
    try:
        with pytest.raises(error):
            scan.next()
    finally:
        scan.close()


def test_an_expression_that_fails_at_a_member_is_the_users_error(written: Written) -> None:
    """Named as DuckDB names it, at once, instead of a group that is not available."""
    with pytest.raises(QueryInvalid, match="Could not convert"):
        written.cluster.ask("n0", f"SELECT sum(CAST(s AS BIGINT)) AS c FROM {TABLE}")


def explained(written: Written, node: str, sql: str) -> list[dict[str, Any]]:
    """The rows of EXPLAIN ANALYZE."""
    return list(written.cluster.ask(node, f"EXPLAIN ANALYZE {sql}").to_pylist())


def test_explain_analyze_names_every_fragment(written: Written) -> None:
    """Each group once, at the node that answered, with what it read; and the final statement."""
    found = explained(
        written, "n0", f"SELECT host, sum(n) AS s FROM {TABLE} WHERE time >= TIMESTAMP '2026-01-01' GROUP BY host"
    )
    assert ["final", *["partial"] * 5] == sorted(row["driver"] for row in found)
    partial = {row["group"]: row for row in found if row["driver"] == "partial"}
    assert set(written.cluster.ring.headers) == set(partial)
    assert all(row["node"] in written.cluster.ring.group(group) for group, row in partial.items())
    assert {"n0"} == {row["node"] for group, row in partial.items() if group in ("n0", "n3", "n4")}
    stores = {group: len(found[0].segments()) for group, found in written.cluster.stores.items()}
    assert stores == {group: row["segments_read"] + row["segments_skipped"] for group, row in partial.items()}
    assert all(row["row_groups_read"] > 0 for group, row in partial.items() if stores[group])
    assert list(found[0]) == [
        "fragment",
        "node",
        "group",
        "driver",
        "segments_read",
        "segments_skipped",
        "row_groups_read",
        "rows",
        "ms",
    ]


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT host, x FROM {TABLE} WHERE host = 'host_1'",
        f"SELECT x FROM {TABLE}",
        f"WITH a AS MATERIALIZED (SELECT n FROM {TABLE}) SELECT n FROM a UNION ALL SELECT 1 FROM a",
        f"SELECT host, count(*) FROM {TABLE} GROUP BY host",
    ],
)
def test_explain_analyze_has_the_rows_of_the_answer(written: Written, sql: str) -> None:
    """Also of plain rows, which come through operators where DuckDB counts none."""
    (final,) = [row for row in explained(written, "n1", sql) if row["driver"] == "final"]
    assert 0 < final["rows"] == written.cluster.ask("n1", sql).num_rows


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT host, arg_max(host, time) AS h, max(time) AS t FROM tsbs.cpu GROUP BY host",
        "SELECT DISTINCT ON (host) * FROM tsbs.cpu ORDER BY host, time DESC",
        "SELECT host, time, x FROM tsbs.cpu QUALIFY row_number() OVER (PARTITION BY host, region ORDER BY time DESC) = 1",
        "SELECT max(time) AS t FROM tsbs.cpu WHERE host = 'host_1' AND time > TIMESTAMP '2026-01-01 01:00:00'",
        "SELECT DISTINCT region FROM tsbs.cpu",
    ],
)
def test_the_newest_rows_are_those_of_the_index(written: Written, sql: str) -> None:
    """No segment is read where the index has the newest row of every series, and the answer is the same."""
    written.check("n1", sql, ordered=False)
    found = [row for row in explained(written, "n1", sql) if row["driver"] != "final"]
    # A delete may have left a series of which the index does not know the newest row.
    assert all(row["segments_read"] == 0 for row in found if row["driver"] == "last")
    assert sum(row["driver"] == "last" for row in found) >= 3
    assert not [row for row in found if row["driver"] == "last" and row["row_groups_read"]]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT host, max(time) AS t FROM tsbs.cpu WHERE x > 0 GROUP BY host",
        "SELECT host, max(time) AS t FROM tsbs.cpu WHERE time < TIMESTAMP '2026-01-01 02:00:00' GROUP BY host",
        "SELECT host, max(x) AS t FROM tsbs.cpu GROUP BY host",
        "SELECT host, min(time) AS t FROM tsbs.cpu GROUP BY host",
        "SELECT host, count(*) AS t FROM tsbs.cpu GROUP BY host",
        "SELECT DISTINCT ON (host) * FROM tsbs.cpu ORDER BY host, time",
        "SELECT DISTINCT ON (b) * FROM tsbs.cpu ORDER BY b, time DESC",
    ],
)
def test_what_needs_older_rows_does_not_use_the_index(written: Written, sql: str) -> None:
    """A condition on a field, an upper bound of time, or an aggregate of all rows."""
    written.check("n1", sql, ordered=False)
    assert "last" not in {row["driver"] for row in explained(written, "n1", sql)}


def test_a_null_in_the_newest_row_is_not_the_newest_value(written: Written) -> None:
    """An aggregate ignores nulls, so groups with such a row are scanned."""
    written.check("n1", f"SELECT host, region, arg_max(x, time) AS x FROM {TABLE} GROUP BY ALL", ordered=False)


def test_a_limit_reads_few_row_groups(tmp_path: Path) -> None:
    """Ten of thousands of rows: each group reads two row groups at most, here and at other nodes."""
    with cluster_of_stores(tmp_path, SCHEMA) as cluster:
        tags = [{"host": f"host_{number}"} for number in range(20)]
        cluster.write([(each, BEGIN_NS + second, {"n": second}) for second in range(300) for each in tags])
        cluster.seal()
        found = cluster.ask("n0", f"EXPLAIN ANALYZE SELECT * FROM {TABLE} LIMIT 10").to_pylist()
        rows = [row for row in found if row["driver"] == "rows"]
        assert set(cluster.ring.headers) == {row["group"] for row in rows}
        assert all(row["row_groups_read"] <= 2 and row["rows"] <= 10 for row in rows)
        whole = cluster.ask("n0", f"EXPLAIN ANALYZE SELECT * FROM {TABLE}").to_pylist()
        read = [row for row in whole if row["driver"] == "rows" and row["segments_read"]]
        assert 6_000 == sum(row["rows"] for row in read)
        assert all(row["row_groups_read"] >= 1 for row in read)


MAX, MIN = (f"(SELECT {name}(x) AS v FROM {TABLE})" for name in ("max", "min"))


@pytest.mark.parametrize(
    ("form", "values"),
    [
        (f"SELECT {{}} AS k, {{}} AS l, a.v, b.v FROM {MAX} a, {MIN} b", [("'a'", "'x'"), ("'b'", "'x'")]),
        (f"SELECT (a.v - b.v) * 100 / {{}} + {{}} FROM {MAX} a, {MIN} b", [("2", "3"), ("5", "6"), ("12345", "7")]),
        (
            f"SELECT count(*) FROM {TABLE} WHERE host <> {{}} AND host <> {{}} AND x > {MIN} AND x < {MAX}",
            [("'a'", "'b'"), ("'c'", "'d'"), ("'host_1'", "'host_2'")],
        ),
        (
            f"SELECT n FROM (SELECT host, count(*) AS n FROM {TABLE} WHERE host <> {{}}"
            f" AND time > (SELECT min(time) FROM {TABLE}) GROUP BY host)",
            [("'a'",), ("'b'",), ("'a longer text than a probe'",)],
        ),
    ],
)
def test_statements_that_differ_in_literals_keep_their_subqueries(
    written: Written, form: str, values: list[tuple[str, ...]]
) -> None:
    """From the second text of a template on its tree is used again, and its subqueries are where they are in each text."""
    for _ in range(2):
        for literals in values:
            written.check("n1", form.format(*literals), ordered=False)


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT count(*) FROM {TABLE} PIVOT (sum(x) FOR region IN ('eu'))",
        f"SELECT max(eu) FROM {TABLE} PIVOT (sum(x) FOR region IN ('eu'))",
        f"SELECT time, eu FROM {TABLE} PIVOT (sum(x) FOR region IN ('eu'))",
        f"SELECT count(*) FROM {TABLE} AS p PIVOT (count(*) FOR (region, host) IN (('eu', 'host_1'))) WHERE eu_host_1 = 0",
        f"WITH p AS (SELECT count(*) AS c FROM {TABLE} PIVOT (sum(x) FOR region IN ('eu'))) SELECT c FROM p",
        f"SELECT count(*) FROM (SELECT 1) AS one JOIN {TABLE} PIVOT (sum(x) FOR region IN ('eu')) ON true",
        f"SELECT max(eu) FROM {TABLE} PIVOT (sum(x) FOR region IN ('eu') GROUP BY host)",
        f"SELECT sum(v) FROM {TABLE} UNPIVOT (v FOR name IN (x, n))",
    ],
)
def test_pivot_groups_by_what_it_does_not_name(written: Written, sql: str) -> None:
    """All other columns of the table decide how many rows there are, also where the statement names none of them."""
    written.check("n2", sql, ordered=False)


@pytest.mark.parametrize(
    "sql", ["SELECT time FROM {table} ORDER BY time {fetch}", "SELECT max(x) FROM {table} {fetch}"]
)
@pytest.mark.parametrize(
    "fetch", ["FETCH FIRST 3 ROWS ONLY", "OFFSET 1 ROWS FETCH NEXT 1 ROW ONLY", "FETCH FIRST ROW ONLY"]
)
def test_fetch_is_a_limit(written: Written, sql: str, fetch: str) -> None:
    """In the words of the standard."""
    written.check("n3", sql.format(table=TABLE, fetch=fetch), ordered=True)


@pytest.mark.parametrize("condition", ["WHERE \"Ä\" = 'one'", "HAVING \"Ä\" = 'one'", 'ORDER BY "Ä" DESC LIMIT 1'])
def test_names_that_differ_beyond_ascii_are_two(tmp_path: Path, condition: str) -> None:
    """An item of the select list is what a condition means, and not the column whose name has the other case."""
    schema = replace(SCHEMA, tags=("host", "ä"))
    with cluster_of_stores(tmp_path, schema) as cluster:
        cluster.write(
            [({"host": host, "ä": other}, BEGIN_NS, {"n": 1}) for host, other in [("one", "x"), ("on", "one")]]
        )
        where, group = (condition, "") if condition.startswith("WHERE") else ("", condition)
        found = cluster.ask("n1", f'SELECT host AS "Ä", count(*) AS c FROM {TABLE} {where} GROUP BY 1 {group}')
        assert [{"Ä": "one", "c": 1}] == found.to_pylist()
