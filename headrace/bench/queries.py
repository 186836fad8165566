"""`headrace bench queries`: the queries of TSBS over HTTP, beside DuckDB on the same files with as many threads.

One run on one node. Both workloads are written and sealed; then each query is asked in turn of the node and of DuckDB
over the node's own Parquet files, in alternating order. A query counts by its least time, as other work of a shared
machine only adds to it. Every answer is compared. chDB is asked too, where its package is installed.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from headrace.bench.chdb_peer import ChdbPeer, chdb_peer
from headrace.bench.content import ContentDiffers
from headrace.bench.measurement import (
    DATABASE,
    POLL_S,
    VISIBLE_TIMEOUT_S,
    Note,
    connected,
    running_broker,
    running_cluster,
    seal,
    settings_text,
    silent,
    versions,
)
from headrace.bench.options import FROM_ZERO, Options
from headrace.bench.tsbs_queries import LAST_ROW_QUERIES, BenchQuery, cpu_queries, iot_queries
from headrace.connectors.deadline import Deadline
from headrace.connectors.http import request_node
from headrace.local_cluster import LocalCluster
from headrace.producers.writer import TableWriter
from headrace.schemas.errors import HeadraceError
from headrace.workload import Workload, cpu, iot

OPTIONS = Options(
    {"hosts": 400, "trucks": 1_000, "hours": 24, "rounds": 5, "threads": 2, "seed": 1, "dir": ""},
    from_zero=(*FROM_ZERO, "trucks"),
)
START_NS = 1_767_225_600_000_000_000
TABLE_ROWS = 100_000
QUERY_TIMEOUT_S = 300.0
SETTLED_S = 5.0
TOLERANCE = 1e-9
Ask = Callable[[], pa.Table]


def run(options: Mapping[str, str], note: Note = silent) -> dict[str, Any]:
    """Options: hosts, trucks (0 leaves the workload out), hours, rounds, threads, seed, dir. Raises ContentDiffers."""
    settings = OPTIONS.chosen(options)
    hours, seed = settings["hours"], settings["seed"]
    directory = Path(tempfile.mkdtemp(prefix="headrace-queries-", dir=settings.pop("dir") or None))
    loads = [cpu(hosts=settings["hosts"], start_ns=START_NS, duration_s=hours * 3_600, seed=seed)]
    asked = cpu_queries(settings["hosts"], START_NS, hours, seed)
    if settings["trucks"]:
        loads.append(iot(trucks=settings["trucks"], start_ns=START_NS, duration_s=hours * 3_600, seed=seed))
        asked += iot_queries(settings["trucks"], START_NS, hours, seed)
    try:
        with (
            running_broker(directory / "broker") as broker,
            running_cluster(directory / "node", broker, 1, query_threads=str(settings["threads"])) as local,
        ):
            for load in loads:
                note(f"writing {load.rows} rows of {load.kind}")
                _write(local, load)
            (node,) = local.file.nodes
            settled = _settled_files(directory / "node", [name for load in loads for name in load.tables])
            files = _linked(settled, directory / "peers")
            with _loaded_peer(directory / "chdb", settings["threads"], loads, files, note) as peer:
                bench = Bench(local.url(node.name), files, settings["threads"], settings["rounds"], peer)
                bench.check_rows(loads)
                figures = [bench.measured(query, note) for query in asked]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    # Behind all of them: an error names each that differs.
    if differing := [each["name"] for each in figures if not each["equal"]]:
        raise ContentDiffers(f"these queries have other answers elsewhere: {', '.join(differing)}")
    data = {"rows": sum(load.rows for load in loads), "segments": sum(map(len, files.values()))}
    return {
        "data": data,
        "queries": figures,
        **_summary(figures),
        "settings": settings,
        "versions": versions() | (peer.versions if peer else {}),
    }


def table(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The figures for people."""
    shown = [(each["name"], _line(each)) for each in result["queries"]]
    shown += [(name, f"{result[name]:.2f}") for name in ("geomean_ratio", "slowest_ratio", "last_row_speedup")]
    return [*shown, *settings_text(result)]


def _line(each: Mapping[str, Any]) -> str:
    chdb = "" if each["chdb_ms"] is None else f", chDB {each['chdb_ms']:.1f} ms"
    return f"{each['ours_ms']:.1f} ms, DuckDB {each['duckdb_ms']:.1f} ms{chdb}, ratio {each['ratio']:.2f}"


def _write(local: LocalCluster, load: Workload) -> None:
    with connected(local.bootstrap, local.cluster) as cluster:
        writers = {name: TableWriter(cluster, DATABASE, name) for name in load.tables}
        for name, rows in load.batches(TABLE_ROWS):
            writers[name].write(rows, list(load.tags))
        offsets: dict[str, int] = {}
        for writer in writers.values():
            offsets |= writer.close()
        seal(local, offsets)


def _settled_files(directory: Path, tables: Sequence[str]) -> dict[str, list[str]]:
    """The segments by table, once no merge has changed them for a while: peers read the very files."""
    deadline, found, since_s = Deadline(VISIBLE_TIMEOUT_S), _files(directory, tables), time.monotonic()
    while time.monotonic() - since_s < SETTLED_S:
        if deadline.passed():
            raise HeadraceError(f"the node has merged files for {VISIBLE_TIMEOUT_S:g} s", action="use fewer rows")
        time.sleep(POLL_S)
        if (now := _files(directory, tables)) != found:
            found, since_s = now, time.monotonic()
    return found


def _linked(files: Mapping[str, Sequence[str]], directory: Path) -> dict[str, list[str]]:
    """The same files under names of their own, which no later merge takes away."""
    found: dict[str, list[str]] = {}
    for name, paths in files.items():
        target = directory / name
        target.mkdir(parents=True)
        links = [target / f"{number:06}.parquet" for number in range(len(paths))]
        for path, link in zip(paths, links, strict=True):
            os.link(path, link)
        found[name] = list(map(str, links))
    return found


def _files(directory: Path, tables: Sequence[str]) -> dict[str, list[str]]:
    """The segments of the node by table."""
    return {name: sorted(map(str, directory.glob(f"**/segments/*/{DATABASE}/{name}/*/*.parquet"))) for name in tables}


@contextmanager
def _loaded_peer(
    directory: Path, threads: int, loads: Sequence[Workload], files: Mapping[str, Sequence[str]], note: Note
) -> Iterator[ChdbPeer | None]:
    """chDB with all tables; None where it is not installed."""
    peer = chdb_peer(directory, threads)
    if peer is None:
        yield None
        return
    with closing(peer):
        for load in loads:
            note(f"loading {load.kind} into chDB")
            for name in load.tables:
                peer.load(name, load.tags, files[name])
        yield peer


@dataclass(frozen=True, slots=True)
class Bench:
    """Whom the queries are asked of: a node, DuckDB over its files by table, and chDB if there is one."""

    url: str
    files: Mapping[str, Sequence[str]]
    threads: int
    rounds: int
    peer: ChdbPeer | None

    def check_rows(self, loads: Sequence[Workload]) -> None:
        """All rows are there: fewer would be answered sooner, and alike by all. Raises ContentDiffers."""
        for load in loads:
            for name in load.tables:
                [row] = _over_http(self.url, f"SELECT count(*) AS rows FROM {DATABASE}.{name}").to_pylist()
                if row["rows"] != load.rows_of(name):
                    raise ContentDiffers(f"{name} has {row['rows']} rows instead of {load.rows_of(name)}")

    def measured(self, query: BenchQuery, note: Note) -> dict[str, Any]:
        """The figures of one query."""
        note(query.name)
        with duckdb.connect(config={"threads": self.threads}) as connection:
            for name, paths in self.files.items():
                listed = ", ".join(f"'{path}'" for path in paths)
                connection.execute(f"CREATE VIEW {name} AS FROM read_parquet([{listed}], union_by_name = true)")
            connection.execute("SET parquet_metadata_cache = true")
            named, bare = _sql(query, self.files, f"{DATABASE}."), _sql(query, self.files, "")
            asks: list[Ask] = [
                lambda: _over_http(self.url, named),
                lambda: connection.sql(bare).to_arrow_table(),
                *([partial(self.peer.ask, bare)] if self.peer is not None else []),
            ]
            answers = [ask() for ask in asks]
            taken: list[list[float]] = [[] for _ in asks]
            for number in range(self.rounds):
                # In alternating order: none always runs on the caches that the same other one left.
                for place in sorted(range(len(asks)), reverse=number % 2 == 0):
                    begun = time.perf_counter()
                    asks[place]()
                    taken[place].append((time.perf_counter() - begun) * 1_000)
        least = list(map(min, taken))
        equal = all(same(answers[0], other, query.ordered) for other in answers[1:])
        figures = {"name": query.name, "ours_ms": least[0], "duckdb_ms": least[1], "chdb_ms": None}
        figures |= {"chdb_ms": least[2]} if self.peer is not None else {}
        return figures | {"ratio": least[0] / least[1], "equal": equal, "rows": answers[0].num_rows}


def _sql(query: BenchQuery, files: Mapping[str, object], prefix: str) -> str:
    sql = query.sql
    for name in files:
        sql = sql.replace(f"{{{name}}}", f"{prefix}{name}")
    return sql


def _over_http(url: str, sql: str) -> pa.Table:
    document = {"sql": sql, "format": "arrow"}
    answer = request_node(f"{url}/api/v1/query", method="POST", document=document, timeout_s=QUERY_TIMEOUT_S)
    with answer, pa.ipc.open_stream(answer.stream) as reader:
        return reader.read_all()


def same(one: pa.Table, other: pa.Table, ordered: bool) -> bool:
    """Whether two answers have the same columns and rows, doubles to TOLERANCE."""
    if one.column_names != other.column_names or one.num_rows != other.num_rows:
        return False
    if not one.num_columns or not one.num_rows:
        return True
    tables = [_plain(each) for each in (one, other)]
    if not ordered:
        exact = [name for name in one.column_names if not pa.types.is_floating(tables[0].schema.field(name).type)]
        order = [(name, "ascending") for name in [*exact, *(set(one.column_names) - set(exact))]]
        tables = [each.sort_by(order) for each in tables]
    return all(_equal(*(each.column(name) for each in tables)) for name in one.column_names)


def _plain(rows: pa.Table) -> pa.Table:
    """Times as integers of nanoseconds: both sides may have them at other precisions."""
    columns = [
        column.cast(pa.timestamp("ns")).cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for column in rows.columns
    ]
    return pa.table(dict(zip(rows.column_names, columns, strict=True)))


def _equal(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    if not pa.types.is_floating(one.type):
        return bool(one.to_pylist() == other.to_pylist())
    pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
    return all(
        mine == theirs
        or (
            mine is not None and theirs is not None and math.isclose(mine, theirs, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        )
        for mine, theirs in pairs
    )


def _summary(figures: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    ratios = [each["ratio"] for each in figures]
    newest = [1 / each["ratio"] for each in figures if each["name"] in LAST_ROW_QUERIES]
    return {
        "geomean_ratio": statistics.geometric_mean(ratios),
        "slowest_ratio": max(ratios),
        "last_row_speedup": statistics.geometric_mean(newest),
    }
