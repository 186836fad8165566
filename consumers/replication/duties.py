"""What a leader does, and what a node does to become one: appends, and acts only on what it reads back.

Every turn compares what the log says by now with what was asked of it. An append that is not read back as accepted within some seconds was lost or
did not count, and is asked for again.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from connectors.log.port import Log
from consumers.replication.broadcast import boot_ns
from consumers.replication.group import Group
from consumers.replication.roles import TAKE_BACK_MS, Decision, GroupView, decide
from consumers.replication.status import OFFLINE_MS
from schemas.errors import HeadraceError
from schemas.framing import format_headers
from schemas.messages import (
    Anchor,
    Body,
    Claim,
    Compact,
    Drop,
    Leadership,
    Message,
    ProducerPosition,
    Seal,
    encode_message,
)
from schemas.records import Role

TURN_S = 0.1
READ_BACK_TIMEOUT_S = 5.0
UPKEEP_INTERVAL_S = 5.0
COMPACTIONS_MAX = 4
WAKING = Decision(Role.UNSYNCED, False, "this node has not looked after its groups for 3 s")
_log = structlog.get_logger(__name__)


class NotLeader(HeadraceError):
    """The group is led by another node; names it."""


@dataclass(frozen=True, slots=True)
class SealPolicy:
    """When a leader seals: at a size, which its claim writes into the log, and at an age."""

    rows: int = 2_000_000
    bytes: int = 256 * 1024 * 1024
    age_ms: int = 300_000


@dataclass(frozen=True, slots=True)
class RolePolicy:
    """How long the header of a group is in sync before it claims leadership back."""

    take_back_ms: int = TAKE_BACK_MS


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the log said when something was appended, and until when to wait for it to say something else."""

    applied: tuple[int, int] = (-1, -1)
    until_s: float = 0.0


class Duties:
    """The thread that claims and seals. `decision` may be asked by any thread."""

    def __init__(
        self,
        log: Log,
        groups: Mapping[str, Group],
        node: str,
        incarnation: str,
        policy: SealPolicy,
        view: Callable[[str, int], GroupView],
        on_change: Callable[[], None],
        retention_ns: Callable[[str, str], int | None],
        trim: Callable[[str, Group], None] = lambda _topic, _group: None,
    ) -> None:
        self._log = log
        self._groups = groups
        self._node = node
        self._incarnation = incarnation
        self._policy = policy
        self._view = view
        self._on_change = on_change
        self._retention_ns = retention_ns
        self._trim = trim
        self._upkeep_after_s = dict.fromkeys(groups, 0.0)
        self._batch = 0
        self._producer = f"{node}/{incarnation}"
        self._asked: dict[str, _Asked] = {topic: _Asked() for topic in groups}
        self._unsealed_since_s: dict[str, tuple[int, float]] = {}
        self._decisions = dict.fromkeys(groups, Decision(Role.UNSYNCED, False, "no role yet"))
        self._looked_ns = 0
        self._follower_since_s: dict[str, float] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="duties", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._appender = self._log.appender()
        self._thread.start()

    def stop(self) -> None:
        """Stop after the turn in hand."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(10.0)
            self._appender.close()

    def decision(self, topic: str) -> Decision:
        """The newest decision on the group of a topic, or one made now if that is 3 s old: this process may have been stopped since."""
        return self._decisions[topic] if self._awake(boot_ns()) else decide(self._view(topic, 0))

    def seal(self, topic: str) -> None:
        """Append a Seal now. Raises NotLeader, also in a process that was stopped as a leader and has just gone on."""
        group, decision = self._groups[topic], decide(self._view(topic, 0))
        if decision.role is not Role.LEADER:
            leader = group.applied.leader.node if group.applied.leader else "nobody"
            why = decision.reason or (f"{leader} leads" if leader != self._node else "another node has claimed it")
            raise NotLeader(
                f"group {group.name} is not led by {self._node}: {why}", action="ask its leader", retriable=True
            )
        self._append_seal(topic, group)

    def _run(self) -> None:
        while not self._stopping.wait(TURN_S):
            self._look()

    def _awake(self, now_ns: int) -> bool:
        return now_ns - self._looked_ns < OFFLINE_MS * 1_000_000

    def _look(self) -> None:
        """One turn for every group; after a stop one without a role, in which the others are heard. A stop in the middle counts too."""
        now_ns = boot_ns()
        awake, self._looked_ns = self._awake(now_ns), now_ns
        for topic, group in self._groups.items():
            try:
                self._turn(topic, group, awake)
            except HeadraceError as error:
                _log.warning("duty not done", group=group.name, error=str(error))
            except Exception:
                # A thread that ends here would leave the group without a leader for good.
                _log.exception("duty failed", group=group.name)

    def _turn(self, topic: str, group: Group, awake: bool) -> None:
        decision = self._decide(topic, awake)
        before, self._decisions[topic] = self._decisions[topic], decision
        if decision.role is not before.role:
            _log.info("role", group=group.name, role=str(decision.role), reason=decision.reason)
            self._on_change()
        asked, now = self._asked[topic], (group.applied.epoch, group.applied.frontier)
        old = self._is_old(topic, group)
        if asked.applied == now and time.monotonic() < asked.until_s:
            return
        if decision.claim:
            self._asked[topic] = _Asked(now, time.monotonic() + READ_BACK_TIMEOUT_S)
            self._append_claim(topic, group)
        elif decision.role is Role.LEADER and old:
            self._asked[topic] = _Asked(now, time.monotonic() + READ_BACK_TIMEOUT_S)
            self._append_seal(topic, group)
        elif decision.role is Role.LEADER:
            self._upkeep(topic, group)

    def _upkeep(self, topic: str, group: Group) -> None:
        """Merge small segments, drop slices past their table's retention and trim the log, one round at a time."""
        if time.monotonic() < self._upkeep_after_s[topic] or group.store.pending_jobs():
            return
        self._upkeep_after_s[topic] = time.monotonic() + UPKEEP_INTERVAL_S
        leadership = group.applied.leader
        assert leadership is not None, "a leader without leadership"
        entries = group.store.segments()
        by_name = {entry.name: entry for entry in entries}
        for plan in group.store.plan_compaction()[:COMPACTIONS_MAX]:
            if first := by_name.get(plan.inputs[0]):
                self._append(topic, Compact(leadership, first.database, first.table, plan.inputs))
        for database, table in sorted({(entry.database, entry.table) for entry in entries}):
            before_ns = expired_before(self._retention_ns(database, table), time.time_ns())
            known = group.store.database(database, table)
            oldest_ns = min(
                entry.max_time_ns for entry in entries if (entry.database, entry.table) == (database, table)
            )
            if before_ns is not None and known is not None and oldest_ns < before_ns // known.slice_ns * known.slice_ns:
                self._append(topic, Drop(leadership, database, table, before_ns))
        self._trim(topic, group)

    def _decide(self, topic: str, awake: bool) -> Decision:
        since_s = self._follower_since_s.get(topic)
        steady_ms = 0 if since_s is None else int((time.monotonic() - since_s) * 1_000)
        decision = decide(self._view(topic, steady_ms)) if awake else WAKING
        if decision.role is not Role.FOLLOWER:
            self._follower_since_s.pop(topic, None)
        elif since_s is None:
            self._follower_since_s[topic] = time.monotonic()
        return decision

    def _is_old(self, topic: str, group: Group) -> bool:
        """Whether rows have lain unsealed for the age of the policy."""
        frontier, unsealed = group.applied.frontier, group.applied.unsealed_rows
        if not unsealed:
            self._unsealed_since_s.pop(topic, None)
            return False
        known, since_s = self._unsealed_since_s.get(topic, (-1, 0.0))
        if known != frontier:
            self._unsealed_since_s[topic] = (frontier, time.monotonic())
            return False
        return (time.monotonic() - since_s) * 1_000 >= self._policy.age_ms

    def _append_claim(self, topic: str, group: Group) -> None:
        leadership = Leadership(group.applied.epoch + 1, self._node, self._incarnation)
        _log.info("claiming", group=group.name, epoch=leadership.epoch)
        self._append(topic, Claim(leadership, _anchor(group), self._policy.rows, self._policy.bytes))

    def _append_seal(self, topic: str, group: Group) -> None:
        leadership = group.applied.leader
        assert leadership is not None, "a leader without leadership"
        self._append(topic, Seal(leadership, _anchor(group)))

    def _append(self, topic: str, body: Body) -> None:
        with self._lock:
            self._batch += 1
            message = Message(ProducerPosition(self._producer, self._batch, 0), body)
            self._appender.append(topic, encode_message(message), headers=format_headers())


def expired_before(retention_ns: int | None, now_ns: int) -> int | None:
    """Rows older than this are past their table's retention; None when it keeps everything."""
    return None if retention_ns is None else now_ns - retention_ns


def _anchor(group: Group) -> Anchor:
    applied = group.applied
    return Anchor(applied.offset, applied.version, applied.chain)


def new_incarnation() -> str:
    """A name for one run of a process, never used before."""
    return uuid.uuid4().hex[:16]
