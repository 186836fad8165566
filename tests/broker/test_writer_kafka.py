"""Python writers against a real broker: the forward logs hold exactly the rows given, in every container and
after every fault.
"""

from __future__ import annotations

import gc
import http.server
import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import headrace
from headrace.connectors.formats.interface import ColumnMissing, ColumnTypeError, TimeRangeError
from headrace.connectors.http import QUERY_ID_HEADER
from headrace.connectors.kafka.broker import BrokerInfo, EmbeddedBroker
from headrace.connectors.log.append import append_one
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.topics import Topics
from headrace.producers.deletes import DeleteInvalid
from headrace.schemas.messages import Delete, Write
from headrace.schemas.records import Role, Status, encode_status
from headrace.schemas.tables import TimeResolution
from headrace.settings import SettingsInvalid
from headrace.workload import Workload, iot
from headrace.workload.checksum import compare, workload_checksums
from tests.forward_logs import NODES, create_cluster, dicts, messages, stored_checksums

pytestmark = pytest.mark.broker
T0 = datetime(2026, 1, 1, tzinfo=UTC)
T0_NS = 1_767_225_600_000_000_000


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests use neither the `headrace.toml` of this directory nor the settings of this environment.

    Tables are made with nanoseconds, so that small numbers can be times.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE__WRITE__TIME_RESOLUTION", "ns")


@dataclass(frozen=True)
class Shared:
    """A cluster with one client, shared by many tests; each writes its own table."""

    client: headrace.Client
    bootstrap: str
    cluster: str

    def rows(self, table: str) -> list[dict[str, Any]]:
        """All rows of a table in the forward logs, by time."""
        self.client.flush()
        return dicts(self.bootstrap, self.cluster, table)


@pytest.fixture(scope="module")
def shared(broker: BrokerInfo) -> Iterator[Shared]:
    """One cluster and client for many tests."""
    name = f"t{uuid.uuid4().hex[:12]}"
    create_cluster(broker.bootstrap, name)
    with pytest.MonkeyPatch.context() as patch:
        # The settings are read here, before those of a test.
        patch.setenv("HEADRACE__WRITE__TIME_RESOLUTION", "ns")
        client = headrace.connect(broker.bootstrap, name)
    with client:
        yield Shared(client, broker.bootstrap, name)


@pytest.fixture
def table(cluster_name: str) -> str:
    """A table that no other test writes."""
    return cluster_name


@pytest.fixture
def cluster(broker: BrokerInfo, cluster_name: str) -> str:
    """A cluster of three nodes that were never started."""
    create_cluster(broker.bootstrap, cluster_name)
    return cluster_name


@pytest.mark.parametrize("disorder", [False, True])
def test_a_fleet_arrives_complete(broker: BrokerInfo, cluster: str, disorder: bool) -> None:
    """Row counts and checksums of every series are those of the workload, also with missing and late rows."""
    workload = iot(40, duration_s=1_800, seed=7, disorder=disorder)
    with headrace.connect(broker.bootstrap, cluster) as client:
        write_workload(client, workload)
    expected = workload_checksums(workload)
    for table in workload.tables:
        assert [] == compare(expected[table], stored_checksums(broker.bootstrap, cluster, table, workload.tags))


def test_writers_that_are_dropped_lose_no_row_and_are_not_kept(shared: Shared, table: str) -> None:
    """As in `client.writer(…).write(rows)`, a thousand times in a service: the next flush awaits their rows."""
    for number in range(50):
        shared.client.writer("db", table, ["host"]).write([{"time": number, "host": "a", "v": number}])
    gc.collect()
    assert shared.client.flush()
    assert list(range(50)) == [row["v"] for row in shared.rows(table)]
    assert not [each for each in shared.client._writers if each.table == table]


def write_workload(client: headrace.Client, workload: Workload) -> None:
    """Write both tables of a workload, in small batches."""
    writers = {table: client.writer("fleet", table, tags=workload.tags) for table in workload.tables}
    for table, batch in workload.batches(2_000):
        writers[table].write(batch)
    for writer in writers.values():
        writer.close()


FIRST = {"time": T0, "host": "a", "load": 1.5, "cores": 4, "up": True, "note": "hello"}
SECOND = {"time": T0 + timedelta(seconds=1), "host": "b", "load": None, "cores": 8, "up": False, "note": None}
COLUMNS = {name: [FIRST[name], SECOND[name]] for name in FIRST}
POLARS = pl.DataFrame(COLUMNS)
PANDAS = POLARS.to_pandas()


@pytest.mark.parametrize(
    "data",
    [
        [FIRST, SECOND],
        COLUMNS,
        {**COLUMNS, "time": [T0_NS, T0_NS + 1_000_000_000]},
        POLARS,
        POLARS.with_columns(pl.col("host").cast(pl.Categorical), pl.col("time").dt.cast_time_unit("ms")),
        PANDAS,
        PANDAS.set_index("time"),
        PANDAS.set_index(pd.DatetimeIndex(PANDAS["time"], name=None)).drop(columns="time"),
        PANDAS.assign(host=PANDAS["host"].astype("category")),
        POLARS.to_arrow(),
        POLARS.to_arrow().to_batches()[0],
        pa.table({**COLUMNS, "host": pa.array(["a", "b"]).dictionary_encode()}),
        pa.concat_tables([pa.table(COLUMNS).slice(0, 1), pa.table(COLUMNS).slice(1)]),
    ],
    ids=[
        "dicts", "columns", "nanoseconds", "polars", "categorical", "pandas", "named-index", "time-index", "category",
        "large-strings", "batch", "dictionary", "chunks",
    ],
)  # fmt: skip
def test_every_container_gives_the_same_rows(shared: Shared, table: str, data: Any) -> None:
    """Arrow, polars, pandas and plain Python objects give the same rows."""
    with shared.client.writer("db", table, ["host"]) as writer:
        writer.write(data)
        assert (2, 6) == (writer.rows, writer.points)
    expected = [
        {"time": T0_NS, "host": "a", "load": 1.5, "cores": 4, "up": True, "note": "hello"},
        {"time": T0_NS + 1_000_000_000, "host": "b", "load": None, "cores": 8, "up": False, "note": None},
    ]
    assert expected == shared.rows(table)


def test_plain_rows_may_differ_in_their_columns(shared: Shared, table: str) -> None:
    """Dicts with different keys; nanoseconds of pandas timestamps are kept; one dict is one row."""
    with shared.client.writer("db", table, "host") as writer:
        writer.write([{"time": pd.Timestamp("2026-01-01T00:00:00.000000007Z"), "host": "a", "x": 1}])
        writer.write([{"time": 1, "host": "a", "y": 2.5}, {"time": 2, "host": "b", "x": 3}])
        writer.write({"time": 3, "host": "c", "x": float("nan")})
        writer.write([])
    rows = shared.rows(table)
    assert [1, 2, 3, T0_NS + 7] == [row["time"] for row in rows]
    assert [(None, 2.5), (3, None), (None, None), (1, None)] == [
        (None if row.get("x") != row.get("x") else row.get("x"), row.get("y")) for row in rows
    ]


@pytest.mark.parametrize(
    ("data", "error", "expected"),
    [
        ([{"host": "a", "v": 1}], ColumnMissing, "'time'"),
        ([{"time": 1, "v": 1}], ColumnMissing, "'host'"),
        ([{"time": None, "host": "a"}], TimeRangeError, "'time'"),
        ([{"time": "noon", "host": "a"}], TimeRangeError, "'time'.*'noon'"),
        ([{"time": datetime(9999, 1, 1), "host": "a"}], TimeRangeError, "'time'"),
        ([{"time": 1, "host": "a", "v": 1}, {"time": 2, "host": "a", "v": "x"}], ColumnTypeError, "'v' cannot be read"),
        ([{"time": 1, "host": "a", "v": 2**70}], ColumnTypeError, "'v' cannot be read"),
        ([{"time": 1, "host": "a", "v": [1]}], ColumnTypeError, "'v' has type list"),
        ([{"time": 1, "host": "a", "v": b"x"}], ColumnTypeError, "'v' has type binary"),
        ({"time": [1, 2], "host": ["a"]}, headrace.HeadraceError, "time 2, host 1"),
        (["time"], headrace.HeadraceError, "a row is a str"),
        (5, headrace.HeadraceError, "no rows can be read from int"),
        (POLARS.lazy(), headrace.HeadraceError, "polars LazyFrame"),
    ],
)
def test_rows_that_cannot_be_read_are_refused(
    shared: Shared, table: str, data: Any, error: type[Exception], expected: str
) -> None:
    """The error names the column or the object, and nothing of the call is written."""
    with shared.client.writer("db", table, ["host"]) as writer, pytest.raises(error, match=expected):
        writer.write(data)
    assert (0, table in {schema.table for schema in shared.client.tables()}) == (writer.rows, False)


def test_a_table_that_exists_knows_its_tags(shared: Shared, table: str) -> None:
    """A later writer need not repeat the tags; `tables` lists the table."""
    with shared.client.writer("db", table, ["host"]) as writer:
        writer.write([{"time": 1, "host": "a", "v": 1}])
    with shared.client.writer("db", table) as writer:
        writer.write([{"time": 2, "host": "a", "v": 1.5}])
    fields = (("v", headrace.FieldType.FLOAT64),)
    expected = headrace.TableSchema("db", table, 2, ("host",), fields, None, TimeResolution.NS)
    assert expected in shared.client.tables()
    assert [1, 2] == [row["time"] for row in shared.rows(table)]


def test_two_clients_that_add_columns_at_once_lose_nothing(broker: BrokerInfo, cluster: str) -> None:
    """Concurrent schema changes through the schema log: each writer's rows arrive under a schema with all
    their columns.
    """
    failures: list[BaseException] = []
    begin = threading.Barrier(2)

    def work(name: str) -> None:
        try:
            with headrace.connect(broker.bootstrap, cluster) as client, client.writer("db", "t", ["host"]) as writer:
                begin.wait(30)
                for number in range(3):
                    writer.write([{"time": number, "host": name, f"{name}{number}": number}])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [] == failures
    with headrace.connect(broker.bootstrap, cluster) as client:
        (schema,) = client.tables()
    assert {f"{name}{number}" for name in "ab" for number in range(3)} == set(schema.field_types())
    rows = dicts(broker.bootstrap, cluster)
    assert {(row["host"], row["time"], row["time"]) for row in rows} == {
        (row["host"], row["time"], row[f"{row['host']}{row['time']}"]) for row in rows
    }
    assert 6 == len(rows)


@pytest.mark.slow(13)
def test_writers_wait_during_a_broker_outage(own_broker: EmbeddedBroker, cluster_name: str) -> None:
    """Writes enter the queue while the broker is away, and all arrive once, in order, when it is back."""
    bootstrap = own_broker.start().bootstrap
    create_cluster(bootstrap, cluster_name)
    with headrace.connect(bootstrap, cluster_name) as client, client.writer("db", "t", ["host"]) as writer:
        writer.write([{"time": 0, "host": "a", "v": 0}])
        writer.flush()
        own_broker.stop()
        for number in range(1, 50):
            writer.write([{"time": number, "host": "a", "v": number}])
        own_broker.start()
        writer.flush()
        writer.write([{"time": 50, "host": "a", "v": 50}])
    assert list(range(51)) == [row["time"] for row in dicts(bootstrap, cluster_name)]
    sent = [message.position for _, message in messages(bootstrap, cluster_name)]
    assert 51 == len(set(sent)) == len(sent)


def test_a_quorum_needs_live_members(shared: Shared, table: str) -> None:
    """A quorum above the replication is refused at once; two copies without a node are an unknown state,
    never an acknowledgement.
    """
    with pytest.raises(headrace.QuorumTooLarge):
        shared.client.writer("db", table, quorum=4)
    with (
        shared.client.writer("db", table, ["host"], quorum=2, quorum_timeout_ms=300) as writer,
        pytest.raises(headrace.QuorumTimeout, match="1 rows are in the log") as raised,
    ):
        writer.write([{"time": 1, "host": "a", "v": 1}])
    assert isinstance(raised.value, headrace.StateUnknown)
    assert {"has sent no status"} == {state for group in raised.value.lagging.values() for state in group.values()}


def test_a_delete_reaches_every_group_after_the_rows_before_it(broker: BrokerInfo, cluster: str) -> None:
    """Tags by value or values, times of any type; the delete is ordered after this client's earlier
    writes.
    """
    with headrace.connect(broker.bootstrap, cluster) as client:
        with client.writer("db", "t", ["host"]) as writer:
            writer.write([{"time": number, "host": f"h{number}", "v": 1} for number in range(20)])
            client.delete("db", "t", {"host": "a"}, start=T0, end="2026-01-01T00:00:01Z")
        client.delete("db", "t", tags={"host": ["a", "b"]}, start=5)
        with pytest.raises(DeleteInvalid):
            client.delete("db", "unknown")
    for name in NODES:
        bodies = [message.body for group, message in messages(broker.bootstrap, cluster) if group == name]
        assert [
            Delete("db", "t", {"host": ("a",)}, T0_NS, T0_NS + 1_000_000_000),
            Delete("db", "t", {"host": ("a", "b")}, 5, None),
        ] == bodies[-2:]
        assert all(isinstance(body, Write) for body in bodies[:-2])


def test_settings_come_from_the_environment(broker: BrokerInfo, cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`connect()` without arguments takes cluster and bootstrap from the settings of the commands."""
    monkeypatch.setenv("HEADRACE__CLUSTER__NAME", cluster)
    monkeypatch.setenv("HEADRACE__CLUSTER__BOOTSTRAP", broker.bootstrap)
    with headrace.connect() as client:
        assert [] == client.tables()


def test_missing_clusters_and_properties_are_typed_errors(broker: BrokerInfo) -> None:
    """A missing cluster, an invalid cluster name and a property that librdkafka does not know are typed
    errors.
    """
    with pytest.raises(headrace.NoCluster, match="'nowhere'"):
        headrace.connect(broker.bootstrap, "nowhere")
    with pytest.raises(headrace.HeadraceError, match="'No Name'"):
        headrace.connect(broker.bootstrap, "No Name")
    with pytest.raises(SettingsInvalid, match=r"linger\.mss"):
        headrace.connect(broker.bootstrap, "nowhere", linger_mss=5)


class Node(http.server.BaseHTTPRequestHandler):
    """The HTTP interface of a node: answers every query with one row, or with a given error."""

    answer: tuple[int, bytes] = (200, b"")
    queries: list[dict[str, Any]]

    def do_POST(self) -> None:
        """Answer a query."""
        self.queries.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        status, body = self.answer
        self.send_response(status)
        if status == 200:
            self.send_header(QUERY_ID_HEADER, "q1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def node(answer: tuple[int, bytes]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A node's URL, and the queries it received."""
    queries: list[dict[str, Any]] = []
    handler = type("Handler", (Node,), {"answer": answer, "queries": queries})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", queries
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def arrow_bytes(table: pa.Table) -> bytes:
    """A table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def refusal(kind: str, *, retriable: bool) -> bytes:
    """The JSON of a node's error."""
    return json.dumps({"error": {"kind": kind, "message": "no", "action": "do", "retriable": retriable}}).encode()


def status_of(**given: Any) -> Status:
    """A status with the given fields and defaults for the rest."""
    defaults: dict[str, Any] = {"str": "", "int": 0, "bool": True, "bytes": bytes(16), "Role": Role.FOLLOWER}
    defaults["tuple[Acceptance, ...]"] = ()
    return Status(**{field.name: given.get(field.name, defaults[str(field.type)]) for field in fields(Status)})


def announce(bootstrap: str, cluster: str, name: str, url: str, role: Role) -> None:
    """Send a node's heartbeat."""
    status = status_of(node=name, http=url, group="n1", role=role)
    log = KafkaLog(bootstrap)
    append_one(log, Topics(cluster).status, encode_status(status), key=f"n1/{name}".encode())
    log.close()


def test_a_query_goes_to_a_live_node_and_waits_for_earlier_writes(broker: BrokerInfo, cluster: str) -> None:
    """Nodes that do not answer or are not ready are skipped; the result has every format, and the query
    carries `after`.
    """
    table = pa.table({"time": pa.array([1], pa.timestamp("ns")), "v": [2]})
    with (
        node((200, arrow_bytes(table))) as (good, received),
        node((503, refusal("NotReady", retriable=True))) as (busy, _),
        headrace.connect(broker.bootstrap, cluster) as client,
        client.writer("db", "t", ["host"]) as writer,
    ):
        writer.write([{"time": 1, "host": "a", "v": 2}])
        announce(broker.bootstrap, cluster, "n1", "http://127.0.0.1:9", Role.FOLLOWER)
        announce(broker.bootstrap, cluster, "n2", busy, Role.UNSYNCED)
        announce(broker.bootstrap, cluster, "n3", good, Role.FOLLOWER)
        result = client.query("SELECT 1", timeout_ms=5_000)
        # The others have used some of its time.
        assert 0 < received[0].pop("timeout_ms") <= 5_000
        assert {"sql": "SELECT 1", "format": "arrow", "after": writer.flush()} == received[0]
        assert received[0]["after"]
    assert (table, 1) == (result.to_arrow(), len(result))
    assert [2] == result.to_polars()["v"].to_list() == result.to_pandas()["v"].tolist()
    assert [2] == [row["v"] for row in result.to_dicts()] == pl.DataFrame(result)["v"].to_list()
    assert "<QueryResult of 1 rows: time, v>" == repr(result)


@pytest.mark.parametrize(
    ("answer", "error", "expected"),
    [
        ((400, refusal("UnknownTable", retriable=False)), headrace.QueryError, r"^no \(do\)$"),
        ((400, refusal("RequestInvalid", retriable=False)), headrace.HeadraceError, r"^no \(do\)$"),
        ((404, b"<html>"), headrace.HeadraceError, "HTTP 404"),
    ],
)
def test_a_refused_query_raises_the_error_of_the_node(
    shared: Shared, answer: tuple[int, bytes], error: type[Exception], expected: str
) -> None:
    """An error of the query itself is raised at once: every other node would return the same."""
    with node(answer) as (url, received):
        with pytest.raises(error, match=expected):
            shared.client.query("SELECT", node=url)
        assert 1 == len(received)


def test_a_missing_live_node_is_a_typed_error(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names a cluster whose nodes never sent a heartbeat."""
    monkeypatch.setattr("headrace._asking.FIND_TIMEOUT_S", 0.5)
    with pytest.raises(headrace.NoNode, match=shared.cluster):
        shared.client.query("SELECT 1")
