"""`headrace cluster` on a log in memory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from headrace import _member_views, cluster_change
from headrace.cli import cluster
from headrace.cli.main import build_app
from headrace.cli.session import ClusterSession
from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import read_membership
from headrace.consumers.membership.slot_table import SlotTable
from headrace.schemas.framing import FORMAT, format_headers
from headrace.schemas.membership_records import Change, ChangeKind, Formal, MetadataClaim, PreDone, SlotDone
from headrace.schemas.messages import Leadership
from headrace.schemas.presence import Presence, encode_presence
from headrace.schemas.records import (
    Create,
    MembershipRecord,
    Role,
    encode_membership,
    encode_schema_change,
    encode_status,
    format_of_membership,
)
from headrace.schemas.series import slot_of
from headrace.schemas.tables import DatabaseChange
from tests.unit.statuses import STATUS

TOPICS = Topics("c")
NODES = tuple(f"plant-{number}" for number in range(1, 6))
BASE = SlotTable.create(NODES, 3, 60)
LEADERSHIP = Leadership(1, "plant-1", "a")
GROUP_BYTES = 1_205


class Scene:
    """A cluster that exists only in a log: five nodes, of which `online` send statuses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = MemoryLog()
        for topic in (TOPICS.membership, TOPICS.status, TOPICS.table):
            self.log.create_topic(topic, {})
        self.append(Create(NODES, 3, 60), MetadataClaim(LEADERSHIP))
        self.log.store(TOPICS.table, encode_schema_change("w", DatabaseChange("plant", 3_600_000_000_000, 4)), None, [])
        monkeypatch.setattr(cluster, "cluster_session", self._session)
        monkeypatch.setattr(_member_views, "LISTEN_S", 0.05)

    @contextmanager
    def _session(self, *_options: object) -> Iterator[ClusterSession]:
        log: Any = self.log
        yield ClusterSession(log, TOPICS, *read_membership(self.log, TOPICS))

    def append(self, *records: MembershipRecord) -> None:
        """Append records to the membership log."""
        for record in records:
            headers = format_headers(format_of_membership(record))
            self.log.store(TOPICS.membership, encode_membership("w", record), None, headers)

    def send_statuses(self, nodes: Sequence[str] = NODES, format_: int = FORMAT) -> None:
        """A status of each node in each of its groups."""
        for node in nodes:
            for group in BASE.groups_of(node):
                role = Role.LEADER if node == group else Role.FOLLOWER
                status = replace(STATUS, node=node, group=group, role=role, format=format_, http=f"http://{node}:80")
                value = encode_status(replace(status, segment_bytes=GROUP_BYTES))
                self.log.store(TOPICS.status, value, None, [])

    def begin_join(self, *records: MembershipRecord) -> None:
        """A node joins, and more happens."""
        table = BASE.add_node("plant-6").to_bytes()
        self.append(Change(LEADERSHIP, "r1", ChangeKind.ADD, "plant-6", "s", table), *records)

    def run(self, *words: str) -> Result:
        """The result of a command."""
        return CliRunner().invoke(build_app(["cluster"]), ["cluster", *words])

    def json(self, *words: str) -> Any:
        """The document of a command that succeeds."""
        done = self.run(*words, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def error(self, *words: str) -> tuple[int, str]:
        """Exit code and type of the error of a command."""
        done = self.run(*words, "--json")
        return done.exit_code, json.loads(done.stderr)["error"]["type"]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A cluster of five nodes whose logs are in memory."""
    return Scene(monkeypatch)


PRE_DONE = [PreDone(1, node, node, 1, 1) for node in NODES]


def test_show_has_nodes_groups_and_no_change(scene: Scene) -> None:
    """Positions, births, members, leaders, slots and bytes; a node without a status is offline."""
    scene.send_statuses(NODES[:-1])
    found = scene.json("show")
    assert {"version": 1, "replication": 3, "slots": 60, "change": None} == {
        name: found[name] for name in ("version", "replication", "slots", "change")
    }
    assert [(node, position) for node, position in zip(BASE.nodes, BASE.positions, strict=True)] == [
        (node["id"], node["position"]) for node in found["nodes"]
    ]
    assert {"plant-5": False} == {node["id"]: False for node in found["nodes"] if not node["online"]}
    first, last = (next(each for each in found["groups"] if each["group"] == name) for name in ("plant-1", "plant-5"))
    assert {
        "group": "plant-1",
        "birth": 1,
        "members": ["plant-1", "plant-2", "plant-3"],
        "leader": "plant-1",
        "slots": 12,
        "bytes": GROUP_BYTES,
    } == first
    # Its header is offline: nobody leads it, and a follower has its size.
    assert (None, GROUP_BYTES) == (last["leader"], last["bytes"])


def test_show_without_any_status_has_the_table(scene: Scene) -> None:
    """What is unknown is -1 in JSON and unknown to people."""
    assert {-1} == {each["bytes"] for each in scene.json("show")["groups"]}
    assert "unknown" in scene.run("show").stdout


def test_show_has_the_metadata_leader_while_it_is_online(scene: Scene) -> None:
    """The run that claimed, and not a later one of the same node."""
    assert {"leader": None, "epoch": 1} == scene.json("show")["metadata"]
    assert "metadata leader: none, epoch 1" in scene.run("show").stdout
    present = Presence("plant-1", "later", "store", "http://plant-1:81", 3, 60, True, 1, 2, False)
    scene.log.store(TOPICS.status, encode_presence(present), None, [])
    found = scene.json("show")
    assert {"leader": None, "epoch": 1} == found["metadata"]
    assert ["http://plant-1:81"] == [node["http"] for node in found["nodes"] if node["online"]]
    scene.log.store(TOPICS.status, encode_presence(replace(present, incarnation="a")), None, [])
    assert {"leader": "plant-1", "epoch": 1} == scene.json("show")["metadata"]
    assert "metadata leader: plant-1, epoch 1" in scene.run("show").stdout


def test_show_follows_a_change_step_by_step(scene: Scene) -> None:
    """The members of the figure's groups, and what the change waits for."""
    scene.send_statuses()
    scene.begin_join(*PRE_DONE[:2])
    found = scene.json("show")
    assert ["plant-1", "plant-2", "plant-6", "plant-3"] == next(
        each["members"] for each in found["groups"] if each["group"] == "plant-1"
    )
    change = found["change"]
    assert (2, "add", "plant-6", "pre", 2, 5) == tuple(
        change[name] for name in ("version", "kind", "node", "phase", "groups_done", "groups_total")
    )
    assert ["group plant-3", "group plant-4", "group plant-5"] == change["waiting_for"]
    scene.append(*PRE_DONE[2:])
    assert ["leader of the metadata group"] == scene.json("show")["change"]["waiting_for"]
    moved = tuple(slot for slot, _ in BASE.add_node("plant-6").moved)
    scene.append(Formal(LEADERSHIP, 1), *(SlotDone(1, node, moved) for node in ("plant-6", "plant-3")))
    scene.append(SlotDone(1, "plant-4", moved[:4]))
    change = scene.json("show")["change"]
    assert ("migrating", 4, 10, 400, 1_000, -1, ["node plant-4: 6 slots of group plant-6"]) == tuple(
        change[name] for name in list(change)[3:4] + list(change)[6:]
    )
    text = scene.run("show").stdout
    assert "phase migrating" in text
    assert "4 of 10" in text
    assert "\nwaiting for node plant-4: 6 slots of group plant-6\n" in text
    found = scene.json("slots")
    assert ["done"] * 4 + ["pulling"] * 6 == [found[slot]["state"] for slot in moved]
    assert {"none": 50} == Counter(each["state"] for each in found if each["previous"] is None)
    scene.append(SlotDone(1, "plant-4", moved))
    assert scene.json("show")["change"] is None


def shown_groups(scene: Scene) -> str:
    """The groups of `cluster show`, each as the digits of its nodes, in the order of their headers."""
    found = {each["group"]: each["members"] for each in scene.json("show")["groups"]}
    return " ".join("".join(member[-1] for member in found[group]) for group in sorted(found))


def test_show_has_the_groups_of_the_figures_step_by_step(scene: Scene) -> None:
    """With three copies and the ring 1 2 (6) 3 4 5: node 6 joins, and node 3 leaves five nodes."""
    scene.send_statuses()
    assert "123 234 345 451 512" == shown_groups(scene)
    scene.begin_join()
    assert "123 234 345 451 512" == shown_groups(scene)
    scene.append(PRE_DONE[0])
    assert "1263 234 345 451 512" == shown_groups(scene)
    scene.append(*PRE_DONE[1:])
    assert "1263 2634 345 451 512" == shown_groups(scene)
    scene.append(Formal(LEADERSHIP, 1))
    assert "126 263 345 451 512 634" == shown_groups(scene)
    joined = BASE.add_node("plant-6")
    moved = tuple(slot for slot, _ in joined.moved)
    scene.append(*(SlotDone(1, node, moved) for node in joined.group("plant-6")))
    assert None is scene.json("show")["change"]
    assert "126 263 345 451 512 634" == shown_groups(scene)


def test_show_has_the_groups_of_a_removal_step_by_step(scene: Scene) -> None:
    """Node 3 leaves the ring 1 2 3 4 5: groups 1 and 2 replace it, and group 3 ends."""
    scene.send_statuses()
    left = BASE.remove_node("plant-3")
    scene.append(Change(LEADERSHIP, "r1", ChangeKind.REMOVE, "plant-3", "", left.to_bytes()))
    assert "123 234 345 451 512" == shown_groups(scene)
    scene.append(*PRE_DONE)
    assert "1234 2345 345 451 512" == shown_groups(scene)
    scene.append(Formal(LEADERSHIP, 1))
    assert "124 245 451 512" == shown_groups(scene)


def test_slots_by_number_and_by_time(scene: Scene) -> None:
    """One slot, the slots of a database at a time, one bucket of them, or all."""
    scene.send_statuses()
    assert [{"slot": 7, "group": BASE.holder(7), "previous": None, "state": "none", "bytes": 100}] == scene.json(
        "slots", "--slot", "7"
    )
    found = scene.json("slots", "--database", "plant", "--time", "2026-01-01T05:30")
    hour = 1_767_225_600 // 3_600 + 5
    assert sorted({slot_of("plant", bucket, hour, 60) for bucket in range(4)}) == [each["slot"] for each in found]
    (one,) = scene.json("slots", "--database", "plant", "--time", "2026-01-01T05:30", "--bucket", "3")
    assert slot_of("plant", 3, hour, 60) == one["slot"]
    found = scene.json("slots")
    assert list(range(60)) == [each["slot"] for each in found]
    # The bytes of all slots are those of all groups, although a group cannot be divided evenly.
    assert 5 * GROUP_BYTES == sum(each["bytes"] for each in found)
    # People get one line for a range.
    assert "0-11" in scene.run("slots").stdout


def test_a_plan_of_a_join_has_moves_and_groups(scene: Scene) -> None:
    """The plan changes nothing, and the node need not run."""
    scene.send_statuses()
    found = scene.json("add", "plant-6", "--dry-run")
    assert [{"from": node, "to": "plant-6", "slots": 2, "bytes": 200} for node in BASE.nodes] == sorted(
        found["moves"], key=lambda move: BASE.nodes.index(move["from"])
    )
    assert {
        "group": "plant-2",
        "before": ["plant-2", "plant-3", "plant-4"],
        "pre": ["plant-2", "plant-6", "plant-3", "plant-4"],
        "after": ["plant-2", "plant-6", "plant-3"],
    } in found["groups"]
    assert 1 == scene.json("show")["version"]
    assert "phase one" in scene.run("add", "plant-6", "--dry-run").stdout


def test_a_plan_of_a_removal_ends_a_group(scene: Scene) -> None:
    """Its slots go to all others, in turn."""
    scene.send_statuses()
    found = scene.json("remove", "plant-3", "--dry-run", "--by", "bytes")
    assert {"plant-1": 3, "plant-2": 3, "plant-4": 3, "plant-5": 3} == {
        move["to"]: move["slots"] for move in found["moves"]
    }
    assert {"group": "plant-3", "before": ["plant-3", "plant-4", "plant-5"]} == {
        name: found["groups"][-1][name] for name in ("group", "before")
    }
    assert [] == found["groups"][-1]["after"]


def test_a_balanced_cluster_has_nothing_to_move(scene: Scene) -> None:
    """By slots or bytes."""
    scene.send_statuses()
    for measure in ("slots", "bytes"):
        assert [] == scene.json("balance", "--by", measure, "--dry-run")["moves"]
    assert "no slot moves" in scene.run("balance", "--dry-run").stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("remove plant-9 --dry-run", (1, "UnknownNode")),
        ("add plant-3 --dry-run", (1, "NodeExists")),
        ("add a/b --dry-run", (2, "ClusterInvalid")),
        ("slots --slot 60", (1, "UnknownSlot")),
        ("slots --slot -1", (1, "UnknownSlot")),
        ("slots --database plants --time 2026-01-01", (1, "UnknownDatabase")),
        ("slots --database plant --time 2026-01-01 --bucket 4", (1, "UnknownBucket")),
        ("slots --slot 1 --bucket 1", (2, "UsageInvalid")),
        ("slots --database plant", (2, "UsageInvalid")),
        ("slots --bucket 1", (2, "UsageInvalid")),
        ("slots --database plant --time soon", (2, "UsageInvalid")),
        ("slots --database plant --time 99999999999999999999999", (2, "UsageInvalid")),
        ("remove plant-3 --timeout 0", (2, "UsageInvalid")),
        ("remove plant-3 --timeout nan", (2, "UsageInvalid")),
        ("remove plant-3 --timeout inf", (2, "UsageInvalid")),
        ("cancel", (1, "NoChange")),
        ("balance --by rows --dry-run", (2, "UsageInvalid")),
    ],
)
def test_bad_input_has_a_type(scene: Scene, words: str, expected: tuple[int, str]) -> None:
    """As one JSON object on stderr."""
    scene.send_statuses()
    assert expected == scene.error(*words.split())


@pytest.mark.parametrize("words", [("add",), ("remove",), ("remove", "--dry-run")])
def test_a_node_without_a_name_is_refused(scene: Scene, words: tuple[str, ...]) -> None:
    """A script's variable that is not set; nothing is asked of the cluster."""
    done = scene.run(words[0], "", *words[1:], "--json")
    assert (2, "UsageInvalid") == (done.exit_code, json.loads(done.stderr)["error"]["type"])


def test_a_plan_is_refused_where_the_change_would_be(scene: Scene) -> None:
    """Without statuses no group has a majority; old builds cannot read the records; one change at a time."""
    words = ("add", "plant-7", "--dry-run")
    assert (1, "NoMajority") == scene.error(*words)
    scene.send_statuses(format_=2)
    assert (1, "NodesTooOld") == scene.error(*words)
    scene.send_statuses()
    scene.begin_join()
    assert (1, "ChangeRunning") == scene.error(*words)
    scene.append(*PRE_DONE, Formal(LEADERSHIP, 1))
    assert (1, "MigrationUnfinished") == scene.error(*words)


def test_a_change_needs_a_leader_of_the_metadata_group(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim alone is not enough: the run of the node that claimed must be online."""
    monkeypatch.setattr(cluster_change, "LEADER_TIMEOUT_S", 0.1)
    scene.send_statuses()
    assert (1, "NoMajority") == scene.error("add", "plant-6")
