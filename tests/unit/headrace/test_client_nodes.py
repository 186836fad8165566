"""The nodes and names that a client keeps while the members of its cluster change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace._nodes import NodeDirectory
from headrace.client import Client
from headrace.connectors.deadline import Deadline
from headrace.consumers.membership.slot_table import SlotTable
from headrace.producers.cluster import FixedRouting
from headrace.settings import load_settings


def test_a_node_that_gives_no_answer_is_not_asked_first_any_more() -> None:
    """It may have left the cluster. The one that answers is asked first, until it fails too."""
    closed: Any = SimpleNamespace(is_open=False)
    nodes = NodeDirectory(closed, ["http://a", "http://b"])
    nodes.note_answer("http://b")
    assert ["http://b", "http://a"] == nodes.urls(Deadline(0))
    nodes.note_failure("http://a")
    assert ["http://b", "http://a"] == nodes.urls(Deadline(0))
    nodes.note_failure("http://b")
    assert ["http://a", "http://b"] == nodes.urls(Deadline(0))
    nodes.note_answer("http://joined")
    assert ["http://joined", "http://a", "http://b"] == nodes.urls(Deadline(0))
    nodes.note_failure("http://joined")
    assert ["http://a", "http://b"] == nodes.urls(Deadline(0))


def test_offsets_of_a_group_that_ended_are_not_those_of_the_next_one_of_its_header() -> None:
    """A header that joined again has another log: an offset of the first one must not be taken for one of it."""
    table = SlotTable.create(("n1", "n2", "n3"), 2, 60).remove_node("n2").add_node("n2").remove_node("n3")
    connection: Any = SimpleNamespace(is_open=True, cluster=SimpleNamespace(routing=FixedRouting(table)))
    client = Client(connection, load_settings({}))
    offsets = {"n1": 1, "n2": 2, "n2@3": 3, "n3": 4}
    assert {"n1": 1, "n2@1": 2, "n2@3": 3, "n3@1": 4} == client._named(offsets)
