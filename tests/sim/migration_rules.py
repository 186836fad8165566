"""The rules by which a change of members is carried out, each broken on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from headrace.consumers.migration import barriers, change_tasks, copies_ahead, hand_over_sender
from headrace.consumers.migration.change_tasks import ChangeTasks
from headrace.consumers.migration.hand_over_sender import HandOverSender
from headrace.consumers.replication.actions import Action, ApplyRows
from headrace.consumers.replication.change_state import ChangeState
from headrace.consumers.replication.change_view import ChangeView
from headrace.consumers.replication.holdings import Holdings
from headrace.consumers.replication.producer_section import Origin, Section
from headrace.consumers.replication.replica import Replica
from headrace.consumers.replication.transfers import HandOver
from headrace.schemas.group_changes import Barrier, GroupKey, HandedOver, HandOverPosition, Rank, Takeover
from headrace.schemas.messages import Message, decode_message
from tests.sim import migration_reads
from tests.sim.membership_log import MemberAppender
from tests.sim.migration_node import TOPICS
from tests.sim.migration_reads import Reads
from tests.sim.migration_simulation import MigrationSimulation

Break = Callable[[pytest.MonkeyPatch], None]
LOST = 0.3
"""The share of hand-overs that `lose_hand_overs` loses."""


@dataclass(frozen=True)
class MigrationRule:
    """A rule, how it is broken, and whether a few schedules show it; `faults` make those frequent that do.

    `first` is the first seed that shows it, where that is not one of the first few.
    """

    rule: str
    breaks: Break
    quick: bool = True
    faults: Break = lambda _patch: None
    first: int = 0


def lose_hand_overs(patch: pytest.MonkeyPatch) -> None:
    """Faults: records of hand-overs get lost, and their delivery is reported all the same."""
    append = MemberAppender.append

    def lossy(self: MemberAppender, topic: str, value: bytes, **options: Any) -> None:
        log = self._log
        is_handed = topic != TOPICS.membership and isinstance(decode_message(value).body, HandedOver)
        if is_handed and log.faulty and log.world.random.random() < LOST:
            log.step("append")
            options["on_delivery"](0, None)
            return
        append(self, topic, value, **options)

    patch.setattr(MemberAppender, "append", lossy)


def _name_the_accepted_one(patch: pytest.MonkeyPatch) -> None:
    record_of = ChangeView.record_of

    def broken(self: ChangeView, origin: GroupKey, wanted: HandOver, message: Message | None) -> HandedOver:
        handed = record_of(self, origin, wanted, message)
        return replace(handed, previous=self.due[wanted.target][0].previous)

    patch.setattr(ChangeView, "record_of", broken)


def _take_hand_overs_in_any_order(patch: pytest.MonkeyPatch) -> None:
    def broken(self: ChangeState, handed: HandedOver) -> bool:
        return handed.origin in self.origins or isinstance(handed.body, Takeover)

    patch.setattr(ChangeState, "follows", broken)


def _report_before_new_members_follow(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChangeTasks, "_new_members_follow", lambda *_: True)


def _report_members_that_know_of_no_change(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChangeTasks, "_knows", lambda *_: True)


def _count_barriers_whenever_they_come(patch: pytest.MonkeyPatch) -> None:
    conflict = ChangeState.conflict

    def broken(self: ChangeState, barrier: Barrier) -> str | None:
        return None if barrier.change <= self.change else conflict(self, barrier)

    patch.setattr(ChangeState, "conflict", broken)


def _change_holders_of_slots_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChangeState, "_not_accepted", lambda *_: "")
    patch.setattr(barriers, "concerned_slots", lambda *_: ())


def _note_what_was_sent_as_accepted(patch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, key: GroupKey, _topic_id: str) -> HandOverPosition:
        newest: HandOverPosition = self._targets[key].sent.newest
        return newest

    patch.setattr(HandOverSender, "_accepted_by", broken)


def _send_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(hand_over_sender, "SEND_AGAIN_S", 1e9)


def _append_barriers_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(change_tasks, "READ_BACK_TIMEOUT_S", 1e9)


def _leave_cancelled_changes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(barriers, "_settling", lambda *_: None)


def _ignore_renamed_slots(patch: pytest.MonkeyPatch) -> None:
    def broken(self: ChangeState, takeover: Takeover) -> bool:
        coming = self.gains if takeover.table_version == self.table_version else ()
        return all(slot in coming or self.gained.get(slot, 0) >= takeover.table_version for slot in takeover.slots)

    patch.setattr(ChangeState, "expects", broken)


def _close_logs_at_the_end_of_the_change(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MigrationSimulation, "_all_settled", lambda *_: True)


def _rank_by_the_last_holder(patch: pytest.MonkeyPatch) -> None:
    handed_over = Replica._handed_over

    def broken(self: Replica, handed: HandedOver) -> list[Action]:
        here = Rank(self.state.changes.era, self.state.version)
        actions = handed_over(self, handed)
        return [replace(each, rank=here) if isinstance(each, ApplyRows) else each for each in actions]

    patch.setattr(Replica, "_handed_over", broken)


def _rank_late_rows_by_the_present_holding(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Holdings, "era", lambda *_: None)


def _report_with_files_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChangeTasks, "_is_prepared", lambda *_: True)


def _wait_for_copiers_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(copies_ahead, "NOTE_VALID_S", 1e9)


def _keep_the_era_until_the_barrier(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChangeState, "note_table", lambda *_: None)


def _leave_producers_with_the_former_holder(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Section, "add", lambda *_: None)


def _forget_late_batches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Origin, "note", lambda *_: None)


def _answer_by_the_former_table(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChangeView, "proven_version", property(lambda self: self.settled))


def _bring_slots_with_the_membership_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(migration_reads, "brings_slots", lambda change, group, _: change.formal and group in change.gained)


def _answer_without_hand_overs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(migration_reads, "missing", lambda _read: {})


def _answer_behind_a_deleted_group(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reads, "note_gone", lambda *_: None)


MIGRATION_RULES = (
    MigrationRule("rows that are handed over keep their rank", _rank_by_the_last_holder),
    MigrationRule("rows by an older table have the era of that holding", _rank_late_rows_by_the_present_holding),
    MigrationRule("rows by a new table outrank those of the former holder", _keep_the_era_until_the_barrier),
    MigrationRule("the newest batches move with the slots", _leave_producers_with_the_former_holder),
    MigrationRule("late batches are known at the next holder", _forget_late_batches, quick=False),
    MigrationRule("rows by a new table end answers by the former one", _answer_by_the_former_table),
    MigrationRule("slots come to a group with a record of its log", _bring_slots_with_the_membership_log),
    MigrationRule("an answer has what was handed over", _answer_without_hand_overs),
    MigrationRule("an answer has what a deleted group has handed over", _answer_behind_a_deleted_group, quick=False),
    MigrationRule("a hand-over names the one before it", _name_the_accepted_one, faults=lose_hand_overs, first=31),
    MigrationRule("a hand-over counts behind the one before it only", _take_hand_overs_in_any_order),
    MigrationRule("the first phase is reported when new members follow", _report_before_new_members_follow, first=18),
    MigrationRule(
        "a new member is reported when it knows of the change", _report_members_that_know_of_no_change, quick=False
    ),
    MigrationRule("the first phase is reported when files are copied ahead", _report_with_files_left),
    MigrationRule("a node that copies no more holds up no change", _wait_for_copiers_for_ever),
    MigrationRule("a barrier counts once, and none of an older change", _count_barriers_whenever_they_come, first=21),
    MigrationRule("slots get another holder when all is accepted", _change_holders_of_slots_at_once, quick=False),
    MigrationRule("accepted is what members show", _note_what_was_sent_as_accepted),
    MigrationRule("what is not accepted is sent again", _send_once),
    MigrationRule("what is not read back is appended again", _append_barriers_once),
    MigrationRule("what a log has begun is ended", _leave_cancelled_changes),
    MigrationRule("slots that are here may be renamed", _ignore_renamed_slots, quick=False),
    MigrationRule(
        "a log is closed when all groups have the new table", _close_logs_at_the_end_of_the_change, quick=False
    ),
)
