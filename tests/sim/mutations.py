"""Rules of the design, each broken on purpose: the simulation must find every one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from headrace.consumers.node import data_age
from headrace.consumers.node.data_age import DataAge
from headrace.consumers.node.log_positions import LogPositions
from headrace.consumers.replication import leader_tasks
from headrace.consumers.replication.actions import Action, Ignored
from headrace.consumers.replication.election import decide
from headrace.consumers.replication.failure_detector import FailureDetector
from headrace.consumers.replication.group_state import GroupState
from headrace.consumers.replication.heartbeat import Heartbeat
from headrace.consumers.replication.leader_tasks import LeaderTasks
from headrace.consumers.replication.log_consumer import LogConsumer
from headrace.consumers.replication.replica import Replica
from headrace.consumers.replication.store_jobs import StoreJobQueue
from headrace.consumers.wal import WriteAheadLog
from headrace.schemas.messages import Claim, Message
from headrace.schemas.receipts import WrittenRecords

Mutation = Callable[[pytest.MonkeyPatch], None]


def early_acknowledgement(patch: pytest.MonkeyPatch) -> None:
    """Six: a copy counts that is still some records behind, and has not shown the receipts."""
    counted = FailureDetector.durable_copies

    def early(self: FailureDetector, group: str, members: Iterable[str], topic_id: str, written: WrittenRecords) -> int:
        return counted(self, group, members, topic_id, replace(written, offset=max(0, written.offset - 5)))

    patch.setattr(FailureDetector, "durable_copies", early)
    patch.setattr(FailureDetector, "_has_receipts", lambda *_of: True)


def absent_members_count(patch: pytest.MonkeyPatch) -> None:
    """Six: the old status of a member that is away counts for a quorum."""

    holds = FailureDetector.holds

    def held(self: FailureDetector, group: str, node: str, topic_id: str, written: WrittenRecords) -> bool:
        found = self.received.get((group, node))
        if found is None:
            return False
        self.received[group, node] = replace(found, elapsed_ms=self.time.elapsed_ms)
        try:
            return holds(self, group, node, topic_id, written)
        finally:
            self.received[group, node] = found

    patch.setattr(FailureDetector, "holds", held)


def journal_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    """Five: records are reported as durable before the disk has them."""
    update = WriteAheadLog.update

    def unsynced(self: WriteAheadLog, records: Any, sync: bool = False, partition: int | None = None) -> int:
        del sync
        return update(self, records, False, partition)

    patch.setattr(WriteAheadLog, "update", unsynced)


def producers_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Four: a restart forgets which messages of a producer it has seen."""
    complete = GroupState.from_bytes

    def without_producers(data: bytes) -> GroupState:
        state = complete(data)
        state.producers = {}
        return state

    patch.setattr(GroupState, "from_bytes", without_producers)


def older_batches_are_applied(patch: pytest.MonkeyPatch) -> None:
    """Four: a zombie's message of an older batch counts."""
    check = Replica._check_repeat

    def lenient(self: Replica, message: Message) -> Ignored | None:
        found = check(self, message)
        return None if found is Ignored.SUPERSEDED else found

    patch.setattr(Replica, "_check_repeat", lenient)


def trimming_ignores_other_members(patch: pytest.MonkeyPatch) -> None:
    """Two: a leader trims what only it has in files."""

    def own(live: object, members: object, sealed_offset: int, keep_from: int) -> int:
        del live, members
        return max(0, min(sealed_offset + 1, keep_from))

    patch.setattr(leader_tasks, "trim_before", own)


def claims_of_any_epoch(patch: pytest.MonkeyPatch) -> None:
    """Two: a claim counts although another one came first."""

    def claim(self: Replica, body: Claim) -> list[Action]:
        self.state.epoch, self.state.leader = body.leadership.epoch, body.leadership
        self.state.seal_rows, self.state.seal_bytes = max(1, body.seal_rows), max(1, body.seal_bytes)
        return []

    patch.setattr(Replica, "_claim", claim)


def records_of_former_leaders(patch: pytest.MonkeyPatch) -> None:
    """Two: a Seal counts that a former leader appended."""
    patch.setattr(Replica, "leads", lambda _self, _leadership: True)


def age_of_what_is_read(patch: pytest.MonkeyPatch) -> None:
    """Stale answers: records count that are read and not applied yet."""

    def advance(self: DataAge, topic: str, ends: Any) -> None:
        while ends.ahead and self._log_consumer.position(topic) >= ends.ahead[0][0]:
            ends.reached_ns = ends.ahead.popleft()[1]

    patch.setattr(DataAge, "_advance", advance)


def age_of_the_data_before(patch: pytest.MonkeyPatch) -> None:
    """Stale answers: data that is replaced keeps the age of the data before."""

    patch.setattr(DataAge, "restart", lambda _self, _topic: None)

    def same(self: DataAge, topic: str) -> Any:
        return self._ends.setdefault(topic, data_age._Ends(self._groups[topic]))

    patch.setattr(DataAge, "_of", same)


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """Six: a process that was stopped serves before its own heartbeat was read back."""
    patch.setattr(Heartbeat, "fenced", property(lambda _self: False))


def no_majority(patch: pytest.MonkeyPatch) -> None:
    """Six: one member alone takes part in elections and serves."""
    patch.setattr(leader_tasks, "decide", _decide_alone(decide))


def _decide_alone(decide: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def alone(view: Any) -> Any:
        return decide(replace(view, members=tuple(each for each in view.members if each.alive) or view.members))

    return alone


def versions_are_given_twice(patch: pytest.MonkeyPatch) -> None:
    """Six: what a full disk refused is not read again."""
    patch.setattr(LogConsumer, "_rewind", lambda _self, _reader, _entries: None)


def journal_is_cut_before_the_seal(patch: pytest.MonkeyPatch) -> None:
    """Five: records leave the journal when their seal begins, and not when it is on the disk."""
    seal = StoreJobQueue.seal

    def early(self: StoreJobQueue, job: Any, offset: int, log_bytes: int, **named: Any) -> None:
        self._on_sealed(self._group, job.version)
        seal(self, job, offset, log_bytes, **named)

    patch.setattr(StoreJobQueue, "seal", early)


def batches_continue_under_one_name(patch: pytest.MonkeyPatch) -> None:
    """Four: a restarted leader counts its batches from one again, and all of them are dropped as repeats."""
    made = LeaderTasks.__init__

    def one_name(self: LeaderTasks, *args: Any, **named: Any) -> None:
        made(self, *args, **named)
        self._producer = self._node

    patch.setattr(LeaderTasks, "__init__", one_name)


def sync_at_an_old_end(patch: pytest.MonkeyPatch) -> None:
    """Six: sync is reached at an end of before the data was replaced."""
    restart = LogPositions.restart

    def at_any_end(self: LogPositions, topic: str) -> None:
        restart(self, topic)
        self._ends_known.add(topic)

    patch.setattr(LogPositions, "restart", at_any_end)
