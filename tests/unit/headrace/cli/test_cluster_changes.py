"""`headrace cluster add|remove|cancel` against a real metadata group: requests over HTTP, a log in memory."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from typer.testing import CliRunner, Result

from headrace import _member_views, cluster_change
from headrace.cli import cluster
from headrace.cli.change_display import ProgressView
from headrace.cli.main import build_app
from headrace.cli.session import ClusterSession
from headrace.cluster_change import ChangeUnfinished, ClusterChanges
from headrace.connectors.http import NodeRefused
from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import LogUnavailable
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import read_membership
from headrace.consumers.membership.change_requests import ChangeUnconfirmed
from headrace.consumers.membership.membership_follower import MembershipFollower
from headrace.consumers.membership.metadata_group import MetadataGroup, StartSettings
from headrace.consumers.membership.running_change import Phase, RunningChange
from headrace.consumers.replication.failure_detector import FailureDetector
from headrace.consumers.serve.change_service import change_routes
from headrace.consumers.serve.server import Server
from headrace.node_client import NodeClient
from headrace.schemas.framing import format_headers
from headrace.schemas.membership_records import Change, PreDone, SlotDone
from headrace.schemas.presence import Presence, encode_presence
from headrace.schemas.records import (
    Create,
    MembershipRecord,
    decode_membership,
    encode_membership,
    format_of_membership,
)
from tests.waiting import eventually

TOPICS = Topics("c")
NODES = ("n1", "n2", "n3")
STEP_S = 0.02


class Member:
    """A node: its place in the metadata group, and a server with the route of requests."""

    def __init__(self, log: MemoryLog, node: str) -> None:
        self.heartbeats: Any = SimpleNamespace(
            node=node, incarnation=f"run-{node}", detector=FailureDetector(), fenced=False
        )
        follower, started = MembershipFollower(log, TOPICS.membership), StartSettings(f"store-{node}", 2, 12, True)
        self.group = MetadataGroup(log, TOPICS.membership, follower, self.heartbeats, started)
        node_api: Any = SimpleNamespace(metadata=self.group)
        self.server = Server(Starlette(routes=change_routes(node_api)))


class Cluster:
    """Three running nodes, one that waits to join, and groups that carry out what `carries_out` allows."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        for topic in (TOPICS.membership, TOPICS.status, TOPICS.table):
            self.log.create_topic(topic, {})
        self.append(Create(NODES, 2, 12))
        self.members = {node: Member(self.log, node) for node in NODES}
        self.joiner: Presence | None = Presence("n4", "run-n4", "store-n4", "http://n4", 2, 12, False, 0, 0, True)
        self.twins: list[Presence] = []
        self.carries_out: set[Phase] = {Phase.PRE, Phase.MIGRATING}
        self._done: set[object] = set()
        self._stopping = threading.Event()

    @property
    def leader(self) -> Member | None:
        """The node that leads, if any."""
        return next((each for each in list(self.members.values()) if each.group.leads), None)

    def append(self, record: MembershipRecord) -> None:
        """Append a record as some node."""
        headers = format_headers(format_of_membership(record))
        self.log.store(TOPICS.membership, encode_membership("w", record), None, headers)

    def changes(self) -> list[Change]:
        """The `Change` records of the log."""
        bodies = [decode_membership(record.value)[1] for record in self.log.topic(TOPICS.membership).records]
        return [body for body in bodies if isinstance(body, Change)]

    def run(self) -> None:
        """The threads of all nodes, as one."""
        while not self._stopping.wait(STEP_S):
            members, now_ms = list(self.members.values()), int(time.time() * 1_000)
            reports = [each.group.presence(each.server.url) for each in members]
            waiting = [self.joiner, *self.twins] if self.joiner else []
            reports += [replace(each, sent_boot_ns=time.monotonic_ns()) for each in waiting]
            for report in reports:
                self.log.store(TOPICS.status, encode_presence(report), None, [])
                for each in members:
                    each.heartbeats.detector.observe_presence(now_ms, report)
            for each in members:
                each.group.follower.look_soon()
                each.group.turn()
            state = members[0].group.state
            if state.change is not None and state.change.phase in self.carries_out:
                self._carry_out(state.change)

    def _carry_out(self, change: RunningChange) -> None:
        """What the groups and the nodes with new slots append, once."""
        if (step := (change.number, change.phase)) in self._done:
            return
        self._done.add(step)
        if change.phase is Phase.PRE:
            for group in change.groups_waiting:
                self.append(PreDone(change.number, group, group, 1, 1))
            return
        for header in change.gained:
            slots = tuple(slot for slot, _ in change.table.moved if change.table.holder(slot) == header)
            for node in change.table.group(header):
                self.append(SlotDone(change.number, node, slots))

    def kill(self, member: Member) -> None:
        """A node is gone, with its address."""
        self.members.pop(member.heartbeats.node, None)
        member.server.stop()

    def stop(self) -> None:
        """End the threads."""
        self._stopping.set()

    @contextmanager
    def session(self, *_options: object) -> Iterator[ClusterSession]:
        """See `cluster_session`."""
        log: Any = self.log
        yield ClusterSession(log, TOPICS, *read_membership(self.log, TOPICS))


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster whose metadata group has a leader."""
    found = Cluster()
    monkeypatch.setattr(cluster, "cluster_session", found.session)
    monkeypatch.setattr(_member_views, "LISTEN_S", 0.05)
    monkeypatch.setattr(cluster_change, "JOINER_TIMEOUT_S", 0.2)
    with ExitStack() as opened:
        for member in found.members.values():
            member.server.start()
            opened.callback(member.server.stop)
        thread = threading.Thread(target=found.run, name="nodes", daemon=True)
        thread.start()
        opened.callback(thread.join)
        opened.callback(found.stop)
        eventually(lambda: found.leader is not None, "a metadata leader")
        yield found


def invoke(*words: str) -> Result:
    """The result of a command."""
    return CliRunner().invoke(build_app(["cluster"]), ["cluster", *words])


def error(*words: str) -> tuple[int, str]:
    """Exit code and type of the error of a command."""
    done = invoke(*words, "--json")
    return done.exit_code, json.loads(done.stderr)["error"]["type"]


def document(*words: str) -> dict[str, Any]:
    """What a command that succeeds prints."""
    done = invoke(*words, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_change_is_begun_and_followed_to_its_end(running: Cluster) -> None:
    """The command ends with the last slot, and its document has the names that scripts rely on."""
    done = document("add", "n4")
    assert {"version": 2, "phase": "done", "slots_moved": 3} == {
        key: done[key] for key in ("version", "phase", "slots_moved")
    }
    assert {"version", "phase", "slots_moved", "bytes_moved", "seconds"} == set(done)
    removed = invoke("remove", "n3")
    assert removed.exit_code == 0, removed.output
    assert "remove n3: table 3 counts" in removed.output
    assert "n3" not in document("show")["nodes"]
    assert 2 == len(running.changes())


def test_each_node_shows_the_cluster_over_http(running: Cluster) -> None:
    """A client without Kafka gets there what the command shows, and so learns addresses of nodes that joined."""
    document("add", "n4")
    eventually(lambda: document("show")["change"] is None, "the end of the change")
    command = document("show")
    assert ["n4"] == [node["id"] for node in command["nodes"] if node["http"] == "http://n4"]
    for member in running.members.values():
        eventually(lambda url=member.server.url: NodeClient(url).cluster() == command, "the same document")


def test_a_change_is_begun_and_cancelled(running: Cluster) -> None:
    """`--no-wait` ends with the beginning. A second change is refused, and a cancelled one leaves the table as it was."""
    running.carries_out = set()
    begun = document("add", "n4", "--no-wait")
    assert {"change": 1, "version": 2, "phase": "pre"} == {key: begun[key] for key in ("change", "version", "phase")}
    assert (1, "ChangeRunning") == error("remove", "n2")
    advice = invoke("remove", "n2").stderr
    assert "headrace cluster show has its progress, headrace cluster cancel ends it" in advice
    assert {"phase": "cancelled"} == document("cancel")
    shown = document("show")
    assert (1, None) == (shown["version"], shown["change"])
    assert (1, "NoChange") == error("cancel")


def test_a_follower_learns_that_its_change_was_cancelled(running: Cluster) -> None:
    """Whoever waits for the end gets an error that names the cancellation."""
    running.carries_out = set()

    def cancel() -> None:
        eventually(lambda: len(running.changes()) == 1, "a change")
        with closing(ClusterChanges(running.log, TOPICS)) as changes:
            changes.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    assert (1, "ChangeCancelled") == error("add", "n4")
    thread.join()


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_ctrl_c_shows_that_a_change_continues(
    running: Cluster, monkeypatch: pytest.MonkeyPatch, option: list[str]
) -> None:
    """The command ends with its code, and the change does not: it is shown, and what ends it."""
    running.carries_out = set()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ProgressView, "show", interrupted)
    done = invoke("add", "n4", *option)
    assert 130 == done.exit_code
    advice = json.loads(done.stderr)["error"]["action"] if option else done.stderr.split("interrupted\n")[1]
    assert "the change continues: see headrace cluster show; headrace cluster cancel ends it" in advice
    assert {"phase": "cancelled"} == document("cancel")


def test_ctrl_c_before_the_answer_of_the_cluster(running: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request may be in the log by then."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ClusterChanges, "begin", interrupted)
    done = invoke("add", "n4")
    assert 130 == done.exit_code
    assert "the change may have begun: see headrace cluster show" in done.stderr


def test_a_cancellation_names_the_change_as_all_do(running: Cluster) -> None:
    """By the version of its table, which `cluster show` and the progress have, for both who cancel and who wait."""
    running.carries_out = set()
    document("add", "n4", "--no-wait")
    assert "change to table 2 is cancelled\n" == invoke("cancel").stdout


def test_a_change_that_lasts_longer_than_the_command(running: Cluster) -> None:
    """Its state is unknown, the message names where it is, and it ends later. Then it is too late to cancel it."""
    running.carries_out = {Phase.PRE}
    done = invoke("add", "n4", "--timeout", "2")
    assert done.exit_code != 0
    assert "the change is in phase" in done.stderr
    assert "it continues: see headrace cluster show; headrace cluster cancel ends it" in done.stderr
    eventually(lambda: document("show")["version"] == 2, "the new table")
    assert (1, "CancelTooLate") == error("cancel")
    assert (1, "MigrationUnfinished") == error("remove", "n3")
    running.carries_out = {Phase.MIGRATING}
    eventually(lambda: document("show")["change"] is None, "the end of the change")


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("add", "n2"), "NodeExists"),
        (("add", "n9"), "NodeUnreachable"),
        (("remove", "n9"), "UnknownNode"),
        (("add", "n4"), "SettingsDiffer"),
    ],
)
def test_a_refusal_has_the_type_that_the_leader_raised(running: Cluster, words: tuple[str, ...], kind: str) -> None:
    """With exit code 1, and nothing is appended."""
    assert running.joiner is not None
    running.joiner = replace(running.joiner, slots=24)
    time.sleep(5 * STEP_S)
    assert (1, kind) == error(*words)
    assert [] == running.changes()


def test_a_node_that_was_just_started_is_waited_for(running: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first status may come after the command, which names what it waits for."""
    monkeypatch.setattr(cluster_change, "JOINER_TIMEOUT_S", 30.0)
    joiner, running.joiner = running.joiner, None
    # Statuses of before are forgotten once they are old, so the node has another id than theirs.
    assert joiner is not None
    late = replace(joiner, node="n5", store="store-n5")
    waited: list[str] = []

    def start(line: str) -> None:
        waited.append(line)
        running.joiner = late

    with closing(ClusterChanges(running.log, TOPICS)) as changes:
        outcome = changes.begin({"id": "r1", "kind": "add", "node": "n5"}, on_wait=start)
    assert 2 == outcome.version
    assert 1 == len(waited)
    # Whoever reads it has the whole time of the wait to do what it says.
    assert waited[0].startswith("node n5 has sent no status: waiting up to 30 s; start it: headrace node run --id n5, ")


def test_statuses_make_no_command_look_more_often(running: Cluster) -> None:
    """They come dozens of times a second, and each look costs the broker three requests."""
    looks = 5
    with closing(ClusterChanges(running.log, TOPICS)) as changes:
        begun_s = time.monotonic()
        for _ in range(looks):
            changes.waits_to_join("n4")
    assert time.monotonic() - begun_s >= looks * cluster_change.LOOK_INTERVAL_S


def test_an_id_whose_former_store_was_here_a_moment_ago_is_waited_for(
    running: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removed node whose directory was created again joins once the status of the former one is old."""
    monkeypatch.setattr(cluster_change, "JOINER_TIMEOUT_S", 30.0)
    assert running.joiner is not None
    running.twins.append(replace(running.joiner, incarnation="run-before", store="before"))
    time.sleep(5 * STEP_S)

    with closing(ClusterChanges(running.log, TOPICS)) as changes:
        outcome = changes.begin({"id": "r1", "kind": "add", "node": "n4"}, on_wait=lambda _: running.twins.clear())
    assert 2 == outcome.version


def test_a_node_that_was_stopped_is_named_as_such(running: Cluster) -> None:
    """It has sent statuses, so a wrong id or address is not what to look for."""
    running.joiner = None
    time.sleep(3.2)
    assert (1, "NodeUnreachable") == error("add", "n4")
    refused = invoke("add", "n4")
    assert re.search(r"node n4 is offline, its last status came [0-9.]+ s ago", refused.stderr), refused.stderr
    assert "headrace node run --id n4" in refused.stderr


def test_a_balance_without_moves_is_done_at_once(running: Cluster) -> None:
    """Nothing is appended, and the next request is taken."""
    done = document("balance")
    assert {"version": 1, "phase": "done", "slots_moved": 0, "bytes_moved": 0, "seconds": 0.0} == done
    assert "no slot moves" in invoke("balance", "--by", "bytes").stdout
    assert [] == running.changes()
    assert 2 == document("add", "n4")["version"]


def test_a_request_that_nobody_decides_names_where_to_look(running: Cluster) -> None:
    """Its state is unknown. People cannot repeat it under its id, so they are sent to what the cluster shows."""
    leader = running.leader
    assert leader is not None

    def lost(*_given: Any) -> Any:
        raise ChangeUnconfirmed("not read back", action="send it again under the same id")

    leader.group.requests.begin = lost  # type: ignore[assignment, method-assign]
    with closing(ClusterChanges(running.log, TOPICS)) as changes, pytest.raises(ChangeUnconfirmed) as found:
        changes.begin({"id": "r1", "kind": "add", "node": "n4"}, timeout_s=0.5)
    assert "headrace cluster show" in found.value.action
    assert [] == running.changes()


@pytest.mark.parametrize("denied", [True, False])
def test_a_log_that_is_not_read_to_its_end_does_not_hide_a_change(running: Cluster, denied: bool) -> None:
    """Nobody reads that no change runs when it is only not known: it would continue, as if it had been cancelled."""
    running.carries_out.clear()
    document("add", "n4", "--no-wait")
    running.stop()
    time.sleep(5 * STEP_S)
    with closing(ClusterChanges(running.log, TOPICS)) as changes:
        running.log.denied = {TOPICS.membership} if denied else set()
        with pytest.raises(LogUnavailable, match="refuses this account" if denied else "there is more") as found:
            changes.cancel(timeout_s=0.3 if denied else 0.0)
    assert found.value.retriable


def test_a_change_that_is_not_read_any_more_waits_for_the_log(running: Cluster) -> None:
    """What it waited for before may be over: the log is shown first."""
    running.carries_out.clear()
    name = document("add", "n4", "--no-wait")["id"]
    with closing(ClusterChanges(running.log, TOPICS)) as changes:

        def denied(_shown: object) -> None:
            running.log.denied = {TOPICS.membership}

        with pytest.raises(ChangeUnfinished, match="in phase pre .* waits for .*refuses this account"):
            changes.follow(name, denied, timeout_s=2.5)


def test_two_stores_under_one_id_are_refused(running: Cluster) -> None:
    """Which of them would join is not known; the table stays."""
    assert running.joiner is not None
    running.twins.append(replace(running.joiner, incarnation="run-twin", store="another"))
    time.sleep(5 * STEP_S)
    assert (1, "NodeExists") == error("add", "n4")
    assert [] == running.changes()


def test_the_last_copies_are_not_removed(running: Cluster) -> None:
    """Two nodes with two copies of each row stay, and the table does."""
    assert 2 == document("remove", "n3")["version"]
    assert (1, "ClusterTooSmall") == error("remove", "n2")
    assert 2 == document("show")["version"]
    assert 1 == len(running.changes())


@pytest.mark.parametrize(
    "kind",
    [
        *("UnknownNode", "NodeExists", "NodeUnreachable", "SettingsDiffer", "ClusterTooSmall", "ChangeRunning"),
        *("MigrationUnfinished", "OnlyCopy", "CancelTooLate", "NoMajority", "NothingToMove"),
    ],
)
def test_each_refusal_of_a_leader_keeps_its_type(kind: str) -> None:
    """Scripts look at the type, and people at what to do."""
    document = {"kind": kind, "message": "why", "action": "what to do", "retriable": True}
    found = cluster_change.raised_by_leader(NodeRefused("refused", document=document))
    assert (kind, "why", "what to do", True) == (type(found).__name__, found.message, found.action, found.retriable)


@pytest.mark.parametrize(("leader", "kind"), [("", "NoMajority"), ("n2", "NodeRefused")])
def test_a_metadata_group_without_a_leader_has_no_majority(leader: str, kind: str) -> None:
    """The node that was asked says so; where another one leads, the request is sent there."""
    document = {"kind": "NotMetadataLeader", "message": "1 of 3", "leader": {"node": leader, "http": ""}}
    found = cluster_change.raised_by_leader(NodeRefused("refused", document=document))
    assert kind == type(found).__name__
    assert leader or ("metadata group" in found.message and "1 of 3" in found.message and found.action)


@pytest.mark.parametrize(
    ("causes", "shown"),
    [((), ""), (("a",), "a"), (("a", "b", "c"), "a, and for 2 more"), (("x" * 500,), "x" * 119 + "…")],
)
def test_what_a_change_waits_for_is_one_short_line(causes: tuple[str, ...], shown: str) -> None:
    """A node that fetches many files names each: the first thing is enough for a line."""
    assert shown == cluster_change.first_cause(causes)


@pytest.mark.parametrize("appended", [True, False])
def test_a_request_is_decided_once_although_its_leader_dies(running: Cluster, appended: bool) -> None:
    """The command asks the next leader under the same id, whether or not the first one had appended it."""
    first = running.leader
    assert first is not None
    begin: Callable[..., Any] = first.group.requests.begin

    def dies(*given: Any) -> Any:
        if appended:
            begin(*given)
        threading.Thread(target=running.kill, args=(first,)).start()
        raise ChangeUnconfirmed("the node ends")

    first.group.requests.begin = dies  # type: ignore[assignment, method-assign]
    done = document("add", "n4")
    assert (2, "done") == (done["version"], done["phase"])
    [change] = running.changes()
    assert "n4" == change.node


class LeaderIsGone:
    """Looks at the log like the command; once the leader has the request, no node reports to it any more."""

    def __init__(self, changes: ClusterChanges, paused: threading.Event) -> None:
        self._look: Callable[[], None] = changes._look
        self._changes = changes
        self._paused = paused

    def __call__(self) -> None:
        """See ClusterChanges."""
        self._look()
        if self._paused.is_set():
            self._changes._statuses.detector = FailureDetector()


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("kind", ["add", "cancel"])
def test_a_request_that_a_paused_leader_has_is_undecided(
    running: Cluster, monkeypatch: pytest.MonkeyPatch, kind: str, silent: bool
) -> None:
    """It counts when the leader continues: nobody may read that it has failed, also when nobody leads meanwhile."""
    monkeypatch.setattr(cluster_change, "ANSWER_TIMEOUT_S", 0.5)
    monkeypatch.setattr(cluster_change, "LEADER_TIMEOUT_S", 0.2)
    running.carries_out.clear()
    if kind == "cancel":
        document("add", "n4", "--no-wait")
    paused, continued = threading.Event(), threading.Event()
    leader = running.leader
    assert leader is not None
    asked = leader.group.requests
    name = "cancel" if kind == "cancel" else "begin"
    decide: Callable[..., Any] = getattr(asked, name)

    def pauses(*given: Any) -> Any:
        paused.set()
        continued.wait(30.0)
        return decide(*given)

    monkeypatch.setattr(asked, name, pauses)
    with closing(ClusterChanges(running.log, TOPICS)) as changes:
        if silent:
            monkeypatch.setattr(changes, "_look", LeaderIsGone(changes, paused))
        with pytest.raises(ChangeUnconfirmed):
            changes.cancel(1.2) if kind == "cancel" else changes.begin({"id": "r", "kind": "add", "node": "n4"}, 1.2)
    assert paused.is_set()
    continued.set()
    eventually(
        lambda: bool(running.changes()) and (kind == "add") == (leader.group.state.change is not None),
        "the leader decides",
    )
