"""A client behind its end, and in processes that did not make it."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import headrace
from headrace._connection import ClusterConnection
from headrace._lifetime import ClientClosed, ClientNotShared
from headrace.client import Client
from headrace.producers.cluster import Cluster
from headrace.producers.writer import WriterClosed
from tests.unit.headrace.test_node_access import SCHEMAS, answering

ROWS = [{"time": 0, "v": 1}]
CALLS: dict[str, Callable[[Client], Any]] = {
    "writer": lambda client: client.writer("d", "t"),
    "delete": lambda client: client.delete("d", "t", {"host": "a"}),
    "drop_table": lambda client: client.drop_table("d", "t"),
    "set_retention": lambda client: client.set_retention("d", "t", None),
    "query": lambda client: client.query("SELECT 1"),
    "tables": lambda client: client.tables(),
    "table": lambda client: client.table("d", "t"),
    "flush": lambda client: client.flush(),
}


@pytest.fixture(params=["one node", "named nodes"])
def client(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of each kind; what answers is no node, so a call that gets there fails otherwise than expected."""
    monkeypatch.chdir(tmp_path)
    with answering([(200, {}, SCHEMAS)]) as url:
        if request.param == "one node":
            yield headrace.connect(node=url)
        else:
            yield headrace.connect("127.0.0.1:1", "c", nodes=url, timeout_s=0.1)


@pytest.mark.parametrize("name", CALLS)
def test_each_method_is_refused_behind_the_end(client: Client, name: str) -> None:
    """With Kafka or without, by the same error; closing again does nothing."""
    client.close()
    with pytest.raises(ClientClosed):
        CALLS[name](client)
    client.close()


def test_a_writer_ends_with_its_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says which of the two was closed."""
    monkeypatch.chdir(tmp_path)
    with answering([(200, {}, SCHEMAS)]) as url, headrace.connect(node=url) as client:
        writer, closed = client.writer("d", "t"), client.writer("d", "t")
        closed.close()
        with pytest.raises(WriterClosed):
            closed.write(ROWS)
        client.close()
        for call in (lambda: writer.write(ROWS), writer.flush, lambda: closed.write(ROWS)):
            with pytest.raises(ClientClosed):
                call()
        # It was closed already, so this loses nothing: blocks of writers may end behind their client.
        writer.close()


@pytest.mark.parametrize("name", [*CALLS, "close"])
def test_each_method_is_refused_behind_a_fork(client: Client, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any lock: the child does not have the thread that may hold it."""
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        with client._writers._lock, pytest.raises(ClientNotShared, match="before the fork") as raised:
            {**CALLS, "close": Client.close}[name](client)
        # A block that ends in the child has nothing to close there.
        client.__exit__(None, None, None)
    assert "connect again in the child" == raised.value.action
    # The parent's is as it was.
    client.flush()
    client.close()


def test_clients_and_writers_are_not_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to do, and no word of locks."""
    monkeypatch.chdir(tmp_path)
    with answering([(200, {}, SCHEMAS)]) as url, headrace.connect(node=url) as client:
        for each in (client, client.writer("d", "t")):
            for use in (pickle.dumps, copy.copy):
                with pytest.raises(ClientNotShared, match="cannot be pickled .connect in each process"):
                    use(each)


def opened(closed: list[str]) -> tuple[ClusterConnection, threading.Event]:
    """An open connection whose parts note in `closed` that they are closed; the event is set with the last one."""
    last = threading.Event()

    def part(name: str) -> Any:
        def close() -> None:
            closed.append(name)
            if name == "log":
                last.set()

        return SimpleNamespace(close=close)

    cluster = Cluster(*(part(name) for name in ("log", "topics", "routing", "tables", "watch", "appender")))
    connection = ClusterConnection(lambda: cluster)
    connection.open()
    return connection, last


def test_a_connection_that_is_dropped_is_closed() -> None:
    """Its threads would run, and keep their sockets, as long as the process; each part once, also behind `close`."""
    closed: list[str] = []
    connection, last = opened(closed)
    del connection
    gc.collect()
    assert last.wait(10)
    assert ["appender", "watch", "tables", "routing", "log"] == closed
    connection, _ = opened(closed)
    connection.close()
    del connection
    gc.collect()
    assert 10 == len(closed)


def test_a_connection_that_a_fork_drops_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the parent's, and none of its threads is in the child."""
    closed: list[str] = []
    connection, last = opened(closed)
    monkeypatch.setattr("headrace._connection.os.getpid", lambda: -1)
    del connection
    gc.collect()
    assert not last.wait(0.2)
