"""Arguments that no method of a client takes: one typed error each, which names the argument."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace._arguments import (
    ArgumentInvalid,
    given_nanoseconds,
    given_number,
    given_offsets,
    given_tags,
    given_texts,
    writer_settings,
)
from headrace.client import Client
from headrace.producers.acks import QuorumInvalid
from headrace.producers.settings import WriteSettings
from headrace.producers.writer import WriterInvalid, WriterSettings
from headrace.schemas.durations import DurationInvalid
from tests.unit.headrace.test_node_access import SCHEMAS, answering

CALLS: dict[str, Callable[[Any], Any]] = {
    "tags['p'] is 5, which is of type int": lambda client: client.delete("d", "t", {"p": 5}),
    "tags['p'] is None": lambda client: client.delete("d", "t", {"p": None}),
    "tags['p'] is ['a', 5], ": lambda client: client.delete("d", "t", {"p": ["a", 5]}),
    "tags['p'] is b'a', ": lambda client: client.delete("d", "t", {"p": b"a"}),
    "tags is ['p'], ": lambda client: client.delete("d", "t", ["p"]),
    "keep is 30, ": lambda client: client.set_retention("d", "t", 30),
    "quorum is '2', ": lambda client: client.writer("d", "t", quorum="2"),
    "quorum is True, ": lambda client: client.drop_table("d", "t", quorum=True),
    "quorum is 1.5, ": lambda client: client.delete("d", "t", {"p": "a"}, quorum=1.5),
    "quorum_timeout_ms is 0, ": lambda client: client.writer("d", "t", quorum=2, quorum_timeout_ms=0),
    "quorum_timeout_ms is '5', ": lambda client: client.writer("d", "t", quorum_timeout_ms="5"),
    "tags is [1], ": lambda client: client.writer("d", "t", tags=[1]),
    "tags is 7": lambda client: client.writer("d", "t", tags=7),
    "tags is {'a': 1}, ": lambda client: client.writer("d", "t", tags={"a": 1}),
    "database is None": lambda client: client.writer(None, "t"),
    "table is 5, ": lambda client: client.table("d", 5),
    "timeout_ms is '5', ": lambda client: client.query("SELECT 1", timeout_ms="5"),
    "timeout_ms is 0, ": lambda client: client.query("SELECT 1", timeout_ms=0),
    "after['n1'] is 'x', ": lambda client: client.query("SELECT 1", after={"n1": "x"}),
    "after['n1'] is -1, ": lambda client: client.query("SELECT 1", after={"n1": -1}),
    "after is 'x', ": lambda client: client.query("SELECT 1", after="x"),
    "parameters is [1], ": lambda client: client.query("SELECT $a", [1]),
    "a name in parameters is 1, ": lambda client: client.query("SELECT $a", {1: 1}),
    "sql is None": lambda client: client.query(None),
    "sql is empty": lambda client: client.query(" "),
    "node is 8080, ": lambda client: client.query("SELECT 1", node=8080),
}


@pytest.fixture(params=["one node", "named nodes"])
def client(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of each kind; the second one would need Kafka, which is not there."""
    monkeypatch.chdir(tmp_path)
    with answering([(200, {}, SCHEMAS)]) as url:
        if request.param == "one node":
            yield headrace.connect(node=url)
        else:
            yield headrace.connect("127.0.0.1:1", "c", nodes=url, timeout_s=0.1)


@pytest.mark.parametrize("message", CALLS)
def test_a_wrong_argument_is_named(client: Client, message: str) -> None:
    """By every kind of client, before anything is sent or written, with what to give instead."""
    with pytest.raises(ArgumentInvalid) as raised:
        CALLS[message](client)
    assert raised.value.message.startswith(message)
    assert raised.value.action


def test_a_wrong_argument_of_connecting_is_named() -> None:
    """Before anything is connected to, also where a node is named."""
    with pytest.raises(ArgumentInvalid, match="nodes is 8080"):
        headrace.connect("127.0.0.1:1", "c", nodes=8080)  # type: ignore[arg-type]
    for wrong in ("soon", -1, None):
        with pytest.raises(DurationInvalid):
            headrace.connect(node="127.0.0.1:1", timeout_s=wrong)  # type: ignore[arg-type]


def test_what_methods_take_is_passed_on() -> None:
    """Texts and lists of them, numbers of numpy, and nothing where that is allowed."""
    assert {"p": ("a",), "q": ("a", "b")} == given_tags({"p": "a", "q": iter(["a", "b"])})
    assert ({}, {}) == (given_tags(None), given_offsets(None))
    assert (("a",), ("a", "b"), ()) == (given_texts("t", "a"), given_texts("t", iter("ab")), given_texts("t", []))
    number = pa.array([7]).to_numpy()[0]
    assert 7 == given_number("n", number, 1)
    assert {"t": 7} == given_offsets({"t": number})
    assert (1_500_000, None) == (given_nanoseconds("keep", timedelta(microseconds=1_500)), given_nanoseconds("k", None))


def test_an_argument_is_shown_in_one_short_line() -> None:
    """Also one of a million rows."""
    with pytest.raises(ArgumentInvalid) as raised:
        given_number("n", [0] * 1_000_000, 1)
    assert len(str(raised.value)) < 200


def test_settings_of_writers_are_checked_alike() -> None:
    """What is not given comes from the settings; a wait of no time confirms nothing, whoever asks for it."""
    settings = writer_settings(WriteSettings(quorum=2, quorum_timeout_ms=7), timeout_ms=9, resolution="ns")
    assert (2, 9, True) == (settings.quorum, settings.quorum_timeout_ms, settings.resolution_required)
    with pytest.raises(QuorumInvalid, match="negative"):
        writer_settings(WriteSettings(), -1)
    with pytest.raises(WriterInvalid, match="resolution 'ms' is unknown"):
        writer_settings(WriteSettings(), resolution="ms")
    with pytest.raises(WriterInvalid, match="quorum_timeout_ms 0"):
        WriterSettings(quorum=2, quorum_timeout_ms=0)
