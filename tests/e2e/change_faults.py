"""Faults while a cluster's members change: a sixth node is added, removed and added again with an empty directory.

In each change nodes are killed and started again, or stopped for a while, one at a time: the leader of the metadata group or of a
data group, the node that joins or leaves, or one that gives slots. Writes, deletes and queries run meanwhile. Every
change must end by itself, and every answer must be exact. Every event is one readable line.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from headrace.client import Client
from headrace.cluster_change import ClusterChanges
from headrace.connectors.http import NodeUnreachable, call_node
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.port import Log
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.cluster_report import ClusterReport
from headrace.consumers.membership.membership_follower import MembershipFollower
from headrace.consumers.membership.running_change import Phase, RunningChange
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.replication.heartbeat import StatusReader
from headrace.local_cluster import LocalCluster
from headrace.node_probe import probe
from headrace.node_process import NodeProcess
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_names import FIRST_BIRTH, parse_group
from headrace.schemas.series import slot_of
from tests.e2e.actions import verify_by_command
from tests.e2e.change_load import ChangeLoad, Pace, running
from tests.e2e.faults import EventLog, FaultRunFailed
from tests.waiting import eventually

JOINER = "n6"
CHANGE_TIMEOUT_S = 240.0
"""How long a change may show nothing new after its newest fault."""
SETTLE_TIMEOUT_S = 120.0
LOOK_S = 0.02
ROWS_BEFORE = 400
ROWS_BETWEEN = 100
FAULTS_PER_CHANGE = 2


class Role(StrEnum):
    """Whom a fault hits."""

    METADATA_LEADER = "metadata leader"
    GROUP_LEADER = "group leader"
    CHANGING = "changing node"
    DONOR = "donor"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: the node of a role is away for `seconds` from the moment at which a change has come to a phase."""

    role: Role
    phase: Phase
    stopped: bool
    seconds: float
    later_s: float = 0.0

    def __str__(self) -> str:
        """As it is in the events."""
        verb = "stop" if self.stopped else "kill"
        return f"{verb} the {self.role} in {self.phase} for {self.seconds:.1f} s"


def drawn_faults(seed: int, number: int) -> list[Fault]:
    """Faults from a seed: each combination once in a shuffled order, before any of them comes again."""
    chosen, drawing, faults = list[tuple[Role, Phase, bool]](), random.Random(seed), list[Fault]()
    while len(faults) < number:
        if not chosen:
            phases = (Phase.PRE, Phase.FORMAL, Phase.MIGRATING)
            chosen = [(role, phase, stopped) for role in Role for phase in phases for stopped in (False, True)]
            drawing.shuffle(chosen)
        role, phase, stopped = chosen.pop()
        seconds = 10.0 if stopped else drawing.uniform(1.0, 6.0)
        faults.append(Fault(role, phase, stopped, seconds, drawing.choice((0.0, 0.0, drawing.uniform(0.0, 0.8)))))
    return faults


def by_change(faults: Sequence[Fault], per_change: int) -> list[list[Fault]]:
    """The faults of each change, in the order of their phases."""
    order = [Phase.PRE, Phase.FORMAL, Phase.MIGRATING]
    parts = [faults[place : place + per_change] for place in range(0, len(faults), per_change)]
    return [sorted(part, key=lambda each: order.index(each.phase)) for part in parts]


class ChangeFaultRun:
    """One schedule of faults. `run` returns when everything was compared."""

    def __init__(
        self, cluster: LocalCluster, client: Client, events: EventLog, seed: int, pace: Pace | None = None
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._events = events
        self._random = random.Random(seed)
        self._topics = Topics(cluster.cluster)
        self._changes: ClusterChanges
        self._follower: MembershipFollower
        self._statuses: StatusReader
        self._log: Log
        self.load = ChangeLoad(client, self._asked, seed, pace)

    def run(self, faults: Sequence[Fault], per_change: int = FAULTS_PER_CHANGE) -> None:
        """Change the members, with some faults in each change. Raises FaultRunFailed."""
        try:
            with closing(KafkaLog(self._cluster.bootstrap)) as self._log:
                self._changes = ClusterChanges(self._log, self._topics)
                self._follower = MembershipFollower(self._log, self._topics.membership)
                self._statuses = StatusReader(self._log, self._topics.status)
                with closing(self._changes), closing(self._follower), closing(self._statuses):
                    with running(self.load):
                        self._await_rows(ROWS_BEFORE)
                        for number, chosen in enumerate(by_change(faults, per_change)):
                            self._change("remove" if number % 2 else "add", chosen)
                    self._compare()
        except Exception as error:
            logs = self._cluster.directory
            raise FaultRunFailed(f"{error!r}\nlogs in {logs}\n{self._events.text()}") from error

    def _asked(self) -> dict[str, str]:
        nodes = self._cluster.file.nodes
        return {node.name: self._cluster.url(node.name) for node in nodes if node.name != JOINER and node.http}

    def _await_rows(self, more: int) -> None:
        wanted = self.load.rows_written + more
        eventually(lambda: self.load.rows_written >= wanted or bool(self.load.faults), f"{more} rows more", 90)
        assert not self.load.faults, self.load.faults[:5]

    # One change.

    def _change(self, kind: str, faults: Sequence[Fault]) -> None:
        if kind == "add":
            self._start_joiner()
        request = uuid.uuid4().hex
        began_s = time.monotonic()
        self._events.add(f"{kind} {JOINER}: {'; '.join(map(str, faults))}")
        leaders = self._leaders()
        eventually(lambda: self._has_begun({"id": request, "kind": kind, "node": JOINER}), "the change has begun")
        self._follow(request, faults, leaders)
        outcome = self._follower.state.outcome(request)
        assert outcome is not None
        took_s = time.monotonic() - began_s
        self._events.add(f"{outcome.phase} after {took_s:.1f} s; {self.load.rows_written} rows, {self.load.answers}")
        assert outcome.phase is Phase.DONE, outcome
        if kind == "remove":
            self._await_end_of_joiner()
        self._cluster.wait_ready(timeout_s=SETTLE_TIMEOUT_S)
        self._events.add(f"all are in sync {time.monotonic() - began_s - took_s:.1f} s later")
        self._await_rows(ROWS_BETWEEN)

    def _has_begun(self, request: Mapping[str, str]) -> bool:
        """Send a request; false while the presence of a node that has just started is on its way to the leader."""
        try:
            self._changes.begin(request, timeout_s=60)
        except NodeUnreachable as error:
            self._events.add(str(error))
            return False
        return True

    def _start_joiner(self) -> None:
        if JOINER not in {node.name for node in self._cluster.file.nodes}:
            self._cluster.file.nodes.append(NodeProcess(JOINER, ""))
        shutil.rmtree(self._cluster.data_directory(JOINER), ignore_errors=True)
        self._cluster.start_node(JOINER)
        joining = f"{self._cluster.url(JOINER)}/health/ready"
        eventually(lambda: "joining" in str(probe(joining)[1]), f"{JOINER} joining")

    def _leaders(self) -> dict[str, str]:
        found = {}
        for name, url in self._asked().items():
            for each in call_node(f"{url}/api/v1/status")["groups"]:
                if each["role"] == "leader":
                    found[each["group"]] = name
        return found

    def _follow(self, request: str, faults: Sequence[Fault], leaders: dict[str, str]) -> None:
        """Inject each fault at its moment, undo it later, and wait for the end of the change."""
        remaining, deadline_s = list(faults), time.monotonic() + CHANGE_TIMEOUT_S
        shown: Mapping[str, Any] = {}
        while True:
            state, now_s = self._looked(), time.monotonic()
            outcome = state.outcome(request)
            ended = outcome is not None and outcome.phase in (Phase.DONE, Phase.CANCELLED)
            if ended and not remaining:
                return
            if remaining and (ended or has_come_to(state.change, remaining[0].phase)) and self._others_are_ready():
                self._inject(remaining.pop(0), leaders)
            assert not self.load.faults, self.load.faults[:5]
            if (progress := self._progress(state)) != shown:
                # On a machine with other work a change is slow, and that is no fault of it.
                shown, deadline_s = progress, now_s + CHANGE_TIMEOUT_S
            assert now_s < deadline_s, f"nothing new for {CHANGE_TIMEOUT_S:g} s: {shown}; {self._report()}"
            time.sleep(LOOK_S)

    def _progress(self, state: MembershipState) -> Mapping[str, Any]:
        """How far the running change is, and what it waits for; without the estimate of its end."""
        self._statuses.follow(LOOK_S)
        if state.table is None:
            return {}
        report = ClusterReport(state, self._statuses.detector, self._follower.formal_ms).cluster()["change"]
        return {name: value for name, value in (report or {}).items() if name != "eta_s"}

    def _inject(self, fault: Fault, leaders: dict[str, str]) -> None:
        """One fault, from its beginning to its end."""
        time.sleep(fault.later_s)
        state = self._looked()
        victim = self._victim(state, fault.role, leaders)
        if not self._cluster.node(victim).running:
            self._events.add(f"{victim} has ended by itself")
            return
        phase = "the end" if state.change is None else str(state.change.phase)
        self._events.add(f"{'stop' if fault.stopped else 'kill'} {victim} in {phase}: {fault}")
        self._cluster.kill(victim, signal.SIGSTOP if fault.stopped else signal.SIGKILL)
        time.sleep(fault.seconds)
        self._events.add(f"{'continue' if fault.stopped else 'start'} {victim}")
        if fault.stopped:
            self._cluster.kill(victim, signal.SIGCONT)
        else:
            self._cluster.start_node(victim)

    def _others_are_ready(self) -> bool:
        """Whether all nodes but the one that joins or leaves serve: a second fault must not take a majority."""
        return all(probe(f"{url}/health/ready")[0] for url in self._asked().values())

    def _looked(self) -> MembershipState:
        if self._follower.state.change is None:
            self._follower.look_soon()
        else:
            self._follower.expect()
        self._follower.turn()
        return self._follower.state

    def _victim(self, state: MembershipState, role: Role, leaders: dict[str, str]) -> str:
        if role is Role.METADATA_LEADER and state.leader is not None:
            return state.leader.node
        if role is Role.CHANGING:
            return JOINER
        table = state.table
        assert table is not None
        donors = {group for _, group in table.moved} if table.version > 1 else set()
        change = state.change
        if change is not None:
            donors = {group for _, group in change.table.moved}
        if role is Role.DONOR and change is not None:
            members = {member for group in donors for member in change.base.group(group)} - {JOINER}
            return self._random.choice(sorted(members))
        return self._random.choice(sorted(set(leaders.values()) - {JOINER}))

    def _report(self) -> str:
        for url in self._asked().values():
            try:
                return str(call_node(f"{url}/api/v1/cluster/change"))
            except HeadraceError as error:
                self._events.add(str(error))
        return "no node answers"

    def _await_end_of_joiner(self) -> None:
        node = self._cluster.node(JOINER)
        eventually(lambda: not node.running, f"the removed {JOINER} ends", SETTLE_TIMEOUT_S)
        # It raises NodeDied unless the exit code is 0 and the log names the removal.
        self._cluster.wait_ready([JOINER])
        assert node.removed

    # The end.

    def _compare(self) -> None:
        assert not self.load.faults, self.load.faults[:5]
        table = self._looked().table
        assert table is not None
        for node in table.nodes:
            assert self.load.check(node, self._cluster.url(node)), self.load.errors[-5:]
        assert not self.load.faults, self.load.faults[:5]
        for node in table.nodes:
            remains_gone = lambda node=node: not self._foreign(table, node)  # noqa: E731
            eventually(remains_gone, f"nothing foreign at {node}: {self._foreign(table, node)[:3]}", SETTLE_TIMEOUT_S)
        verify_by_command(self._cluster)
        self._events.add(f"equal: {self.load.rows_written} rows, {self.load.answers}, errors {self.load.errors[-3:]}")

    def _foreign(self, table: SlotTable, node: str) -> list[str]:
        return list(foreign_segments(table, node, self._cluster.data_directory(node) / "segments"))


def has_come_to(change: RunningChange | None, phase: Phase) -> bool:
    """Whether a change is in a phase or behind it. The formal record follows the last report at once."""
    if change is None or phase is Phase.PRE:
        return change is not None
    return change.phase is not Phase.PRE if phase is Phase.FORMAL else change.formal


def foreign_segments(table: SlotTable, node: str, segments: Path) -> Iterator[str]:
    """The segments of a node that are of groups which it is no member of, or of slots of other groups."""
    for path in segments.glob("*/*/*/*/*.parquet"):
        directory, database, _table, place = path.relative_to(segments).parts[:4]
        group, birth = parse_group(unquote(directory))
        slice_number, bucket = place.rpartition("-")[::2]
        slot = slot_of(database, int(bucket), int(slice_number), table.slots)
        mine = group in table.headers and node in table.group(group) and table.birth(group) == (birth or FIRST_BIRTH)
        if not mine or table.holder(slot) != group:
            yield str(path)
