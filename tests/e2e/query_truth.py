"""The queries of TSBS over rows that never change, while everything below them does.

The rows come with disorder, some of them twice with other values, and some are deleted. From then on a writer writes
rows again that are there already, deletes again what is gone, and seals. So one DuckDB over the generated rows has the
answer to every query at every moment, whatever seals, merges, moves or dies meanwhile.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import duckdb
import pyarrow as pa
import pyarrow.flight as flight

from headrace.bench.queries import START_NS, same
from headrace.bench.tsbs_queries import HOUR_NS, BenchQuery, cpu_queries, iot_queries
from headrace.client import Client, Writer
from headrace.node_client import NodeClient
from headrace.schemas.errors import HeadraceError
from headrace.workload import Workload

DATABASE = "tsbs"
HOURS, INTERVAL_S, SERIES, SEED = 30, 180, 10, 7
PART_ROWS = 700
TIMEOUT_MS = 30_000
RETRY_S = 0.2
ATTEMPTS_MAX = 100
DIFFERENT_ROWS_MAX = 3
FLIGHT_EVERY = 3
"""Every so many questions go over Arrow Flight."""
DELETED = (("cpu", {"hostname": "host_3"}, 2, 9), ("readings", {"name": "truck_4"}, 20, 30))
"""Table, tags, first hour and end of what is deleted before the last third of the rows is written."""
OTHERS = (
    BenchQuery("everything", "cpu", "SELECT * FROM {cpu}"),
    BenchQuery("counts", "cpu", "SELECT count(*) AS c, sum(usage_user) AS s, count(DISTINCT hostname) AS h FROM {cpu}"),
    BenchQuery(
        "join",
        "iot",
        "SELECT r.name, count(*) AS c, sum(d.current_load) AS l FROM {readings} r JOIN {diagnostics} d "
        "ON r.name = d.name AND r.time = d.time WHERE r.velocity > 20 GROUP BY r.name",
    ),
)


class Truth:
    """All rows in one DuckDB, and the answer to every query."""

    def __init__(self) -> None:
        self.queries = [
            *cpu_queries(SERIES, START_NS, HOURS, SEED),
            *iot_queries(SERIES, START_NS, HOURS, SEED),
            *OTHERS,
        ]
        self.tables: dict[str, Sequence[str]] = {}
        self._connection = duckdb.connect(config={"threads": 1})
        self._numbers = itertools.count()
        self._answers: dict[str, pa.Table] = {}

    def add(self, table: str, rows: pa.Table, tags: Sequence[str]) -> None:
        """Rows that replace those of the same series and time."""
        plain = pa.table({name: _plain(name, rows.column(name)) for name in rows.column_names})
        numbered = plain.append_column("__order", pa.array([next(self._numbers)] * rows.num_rows, pa.int64()))
        self._connection.register("__rows", numbered)
        self._connection.execute(f"CREATE TABLE IF NOT EXISTS all_{table} AS FROM __rows LIMIT 0")
        self._connection.execute(f"INSERT INTO all_{table} BY NAME FROM __rows")
        self.tables[table] = tags

    def delete(self, table: str, tags: Mapping[str, str], start_ns: int, end_ns: int) -> None:
        """Remove what is there by now."""
        of_tags = " AND ".join(f"{name} = '{value}'" for name, value in tags.items())
        within = f"epoch_ns(time) >= {start_ns} AND epoch_ns(time) < {end_ns}"
        self._connection.execute(f"DELETE FROM all_{table} WHERE {of_tags} AND {within}")

    def finish(self) -> dict[str, pa.Table]:
        """Compute every answer; the rows of each table, each series and time once."""
        for table, tags in self.tables.items():
            self._connection.execute(
                f"CREATE TABLE {table} AS SELECT * EXCLUDE (__order) FROM all_{table} "
                f"QUALIFY row_number() OVER (PARTITION BY {', '.join(tags)}, time ORDER BY __order DESC) = 1"
            )
        for query in self.queries:
            self._answers[query.name] = self._connection.sql(self.sql(query, "")).to_arrow_table()
        return {table: self._connection.sql(f"FROM {table}").to_arrow_table() for table in self.tables}

    def sql(self, query: BenchQuery, prefix: str) -> str:
        """A query over the tables behind a prefix."""
        text = query.sql
        for table in self.tables:
            text = text.replace(f"{{{table}}}", f"{prefix}{table}")
        return text

    def is_right(self, query: BenchQuery, found: pa.Table) -> bool:
        """Whether an answer is that of DuckDB."""
        wanted = self._answers[query.name]
        if set(found.column_names) != set(wanted.column_names):
            return False
        return same(found.select(wanted.column_names), wanted, query.ordered)

    def difference(self, query: BenchQuery, found: pa.Table) -> str:
        """Some rows that only one of the two answers has, with the number of rows of both."""
        wanted = self._answers[query.name]
        there, here = ({repr(tuple(row.values())) for row in table.to_pylist()} for table in (wanted, found))
        shown = [sorted(rows)[:DIFFERENT_ROWS_MAX] for rows in (here - there, there - here)]
        return f"{found.num_rows} of {wanted.num_rows} rows, found {shown[0]} for {shown[1]}"


def _plain(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if name == "time":
        return column.cast(pa.timestamp("ns"))
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def workloads() -> tuple[Workload, ...]:
    """The rows of both kinds, of more than a day, so of several slices."""
    sizes = (SERIES, START_NS, HOURS * 3_600, INTERVAL_S, SEED)
    return Workload("cpu", *sizes, disorder=True), Workload("iot", *sizes, disorder=True)


def write_all(client: Client, truth: Truth, between: Callable[[], object]) -> None:
    """Write all rows: some twice, some of them deleted. `between` is called at two thirds."""
    chance = random.Random(SEED)
    writers: dict[str, Writer] = {}
    for load in workloads():
        parts = list(load.batches(PART_ROWS))
        for number, (table, rows) in enumerate(parts):
            if number == len(parts) * 2 // 3:
                between()
                _delete_all(client, truth, load.tables)
            if table not in writers:
                writers[table] = client.writer(DATABASE, table, tags=load.tags, quorum=1)
            _write(writers[table], truth, table, rows, load.tags)
            if number and chance.random() < 0.2:
                # Rows that were there before, with other values: those of the same places of another part.
                _write(writers[table], truth, table, _replaced(parts, number, table), load.tags)


def _delete_all(client: Client, truth: Truth, tables: Sequence[str]) -> None:
    for table, tags, first, end in DELETED:
        if table in tables:
            bounds = START_NS + first * HOUR_NS, START_NS + end * HOUR_NS
            client.delete(DATABASE, table, tags, *bounds, quorum=1)
            truth.delete(table, tags, *bounds)


def _write(writer: Writer, truth: Truth, table: str, rows: pa.Table, tags: Sequence[str]) -> None:
    writer.write(rows)
    truth.add(table, rows, tags)


def _replaced(parts: Sequence[tuple[str, pa.Table]], number: int, table: str) -> pa.Table:
    """Rows of an earlier part of the table with their fields in another order of rows."""
    earlier = [rows for name, rows in parts[:number] if name == table]
    rows = earlier[-1] if earlier else parts[number][1]
    fields = [name for name in rows.column_names if not _is_key(rows.schema.field(name))]
    turned = rows.take(pa.array(range(rows.num_rows - 1, -1, -1)))
    return pa.table({name: (turned if name in fields else rows).column(name) for name in rows.column_names})


def _is_key(field: pa.Field) -> bool:
    return bool(field.name == "time" or pa.types.is_dictionary(field.type) or pa.types.is_string(field.type))


class QueryLoad:
    """One asking thread for each node, and a writer of what is there already. `faults` are wrong answers."""

    def __init__(
        self, truth: Truth, after: Mapping[str, int], urls: Callable[[], Mapping[str, str]], pause_s: float = 0.0
    ) -> None:
        self.faults: list[str] = []
        self.retriable: list[str] = []
        self.answers: dict[str, int] = {}
        self._truth = truth
        self._after = dict(after)
        self._urls = urls
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._asked: set[str] = set()
        self._threads: list[threading.Thread] = []

    def ask(self, *names: str) -> None:
        """Begin to ask nodes."""
        for name in names:
            self._asked.add(name)
            self._spawn(partial(self._ask_always, name), f"asks-{name}")

    def ask_no_more(self, name: str) -> None:
        """A node leaves."""
        self._asked.discard(name)

    def rewrite(self, client: Client, rows: Mapping[str, pa.Table], pause_s: float) -> None:
        """Begin to write rows that are there already, and to delete what is gone."""
        self._spawn(lambda: self._rewrite(client, rows, pause_s), "writes-again")

    def stop(self) -> None:
        """End all threads."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(90)
            assert not thread.is_alive(), thread.name

    def check_all(self, name: str, part: int = 0, parts: int = 1) -> None:
        """Ask one node every query, or a part of them; each is answered, if need be behind a retriable error."""
        for number, query in list(enumerate(self._truth.queries))[part::parts]:
            for _ in range(ATTEMPTS_MAX):
                if self.check(name, query, number):
                    break
                time.sleep(RETRY_S)
            else:
                raise AssertionError(f"{name} never answered {query.name}: {self.retriable[-3:]}")

    def check(self, name: str, query: BenchQuery, number: int) -> bool:
        """Ask one node once. False behind an error that may be retried; another one is a fault."""
        url, sql = self._urls()[name], self._truth.sql(query, f"{DATABASE}.")
        try:
            found = (self._over_flight if number % FLIGHT_EVERY == 0 else self._over_http)(url, sql)
        except (HeadraceError, flight.FlightError, pa.ArrowException) as error:
            # A process that is gone cuts the stream, which both surfaces show as an error that may be retried.
            is_retriable = getattr(error, "retriable", isinstance(error, RETRIABLE))
            (self.retriable if is_retriable else self.faults).append(f"{name} {query.name}: {error!r}"[:600])
            return False
        self.answers[name] = self.answers.get(name, 0) + 1
        if not self._truth.is_right(query, found):
            self.faults.append(f"{name} gave a wrong answer to {query.name}: {self._truth.difference(query, found)}")
        return True

    def _over_http(self, url: str, sql: str) -> pa.Table:
        answer = b"".join(NodeClient(url).query(sql, format="arrow", after=self._after, timeout_ms=TIMEOUT_MS))
        return pa.ipc.open_stream(answer).read_all()

    def _over_flight(self, url: str, sql: str) -> pa.Table:
        headers = [(b"after", json.dumps(self._after).encode()), (b"timeout_ms", str(TIMEOUT_MS).encode())]
        with flight.connect(NodeClient(url).status()["flight"]) as client:
            return client.do_get(flight.Ticket(sql), flight.FlightCallOptions(headers=headers)).read_all()

    def _spawn(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=self._guarded, args=(target,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _guarded(self, target: Callable[[], None]) -> None:
        try:
            target()
        except Exception as error:
            self.faults.append(f"{threading.current_thread().name} ended: {error!r}")

    def _ask_always(self, name: str) -> None:
        chance = random.Random(name)
        for number in itertools.count():
            if self._stopping.is_set() or name not in self._asked:
                return
            if not self.check(name, chance.choice(self._truth.queries), number):
                self._stopping.wait(0.1)
            self._stopping.wait(self._pause_s)

    def _rewrite(self, client: Client, rows: Mapping[str, pa.Table], pause_s: float) -> None:
        chance = random.Random(SEED)
        writers = {
            table: client.writer(DATABASE, table, tags=self._truth.tables[table], quorum=1) for table in sorted(rows)
        }
        while not self._stopping.wait(pause_s):
            table = chance.choice(sorted(writers))
            first = chance.randrange(rows[table].num_rows)
            try:
                writers[table].write(rows[table].slice(first, PART_ROWS))
                if chance.random() < 0.1:
                    # Of the first alone: others have been written again since.
                    name, tags, begin, end = DELETED[0]
                    client.delete(DATABASE, name, tags, START_NS + begin * HOUR_NS, START_NS + end * HOUR_NS)
            except HeadraceError as error:
                # Written again later: nothing counts on it.
                self.retriable.append(f"write: {error!r}"[:300])


RETRIABLE = (
    flight.FlightUnavailableError,
    flight.FlightTimedOutError,
    flight.FlightInternalError,
    flight.FlightCancelledError,
)


@contextmanager
def running(load: QueryLoad) -> Iterator[QueryLoad]:
    """The load until the end of the body."""
    try:
        yield load
    finally:
        load.stop()
