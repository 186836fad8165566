"""The names of logs in `after`: topics and groups, former groups, and names that mean nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.query.ended_groups import EndedLogs
from headrace.consumers.query.log_names import LogNames
from headrace.consumers.query.query_errors import UnknownLog
from headrace.schemas.group_changes import GroupKey

TOPICS = Topics("plant")
TABLE = SlotTable.create(("n1", "n2", "n3"), 2, 60).remove_node("n2").add_node("n2").remove_node("n3")
"""Version 4: n1 with birth 1, n2 with birth 3, and n3 removed."""
COMING = GroupKey("n9", 5)
"""Its topic is there, and the node has not read the table that has it."""


def names() -> LogNames:
    members: Any = SimpleNamespace(table=TABLE, removed=("n3",))
    return LogNames(TOPICS, EndedLogs(lambda: members, lambda key: key != COMING))


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("plant.forward.n1.1", "n1"),
        ("n1", "n1"),
        ("n1@1", "n1"),
        ("plant.forward.n2.3", "n2@3"),
        ("n2", "n2@3"),
        ("plant.forward.n2.1", "n2"),
        ("plant.forward.n3.1", "n3"),
        ("n3", "n3"),
        ("plant.forward.n9.5", "n9@5"),
    ],
)
def test_topics_and_groups_name_the_same_logs(name: str, group: str) -> None:
    """Those of the table, those that have ended, and one of a table that the node has not read yet."""
    assert {group: 7} == names().groups({name: 7}, TABLE)


@pytest.mark.parametrize(
    "name",
    [
        "other.forward.n1.1",
        "plant.forward.n1.2",
        "plant.forward.n1.99",
        "plant.forward.n2.4",
        "plant.forward.n3.5",
        "plant.forward.n7.1",
        "plant.forward.n1",
        "plant.membership",
        "n7",
        "n1@2",
        "",
    ],
)
def test_a_name_of_no_log_is_an_error_that_shows_it(name: str) -> None:
    """It is never left out: the answer might lack the write that the client waits for."""
    with pytest.raises(UnknownLog, match="no forward log of this cluster") as caught:
        names().groups({"plant.forward.n1.1": 1, name: 7}, TABLE)
    assert repr(name) in str(caught.value)
    assert not caught.value.retriable


def test_of_two_names_of_one_log_the_higher_offset_counts() -> None:
    """A client may hold a topic's offset from one source and a group's from another."""
    assert {"n1": 9, "n2@3": 2} == names().groups({"n1": 4, "plant.forward.n1.1": 9, "n2": 2}, TABLE)
