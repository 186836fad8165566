"""Rules by which deletes and files of sync senders keep their order while slots move, each broken on purpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.consumers.replication import cut_memory, sync_rules
from headrace.consumers.replication.actions import Action
from headrace.consumers.replication.change_state import ChangeState
from headrace.consumers.replication.group_state import ProducerState
from headrace.consumers.replication.replica import Replica
from headrace.schemas.messages import Delete, Load, Message, deletes_batch
from tests.sim import moving_sync
from tests.sim.moving_sync import MovingSyncSimulation

Break = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class MovingSyncRule:
    """A rule, how it is broken, and schedules that show it."""

    rule: str
    breaks: Break
    seeds: Sequence[int]


def _deletes_count_again_at_the_next_holder(patch: pytest.MonkeyPatch) -> None:
    delete = Replica._delete

    def broken(self: Replica, message: Message, body: Delete) -> list[Action]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(ChangeState, "slots_that_knew", lambda *_: frozenset())
            return delete(self, message, body)

    patch.setattr(Replica, "_delete", broken)


def _files_below_deletes_of_the_former_holder_count(patch: pytest.MonkeyPatch) -> None:
    is_void = sync_rules.is_void

    def broken(load: Load, producers: Any) -> bool:
        # Those of a section are no ProducerState.
        own = all(isinstance(each, ProducerState) for each in producers.values())
        return own and is_void(load, producers)

    patch.setattr(sync_rules, "is_void", broken)


def _the_first_part_of_a_takeover_has_no_fences(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cut_memory, "sync_fences", lambda *_: ())


def _slots_that_have_not_come_take_files(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MovingSyncSimulation, "may_load", lambda *_: True)


def _deletes_are_done_whatever_changed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MovingSyncSimulation, "is_newest", lambda *_: True)


def _deletes_count_once_whatever_table_they_are_sent_by(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(moving_sync, "deletes_batch", lambda number, _table=0, place=0: deletes_batch(number, 1, place))


def _deletes_have_no_last_fence(patch: pytest.MonkeyPatch) -> None:
    # Of the batch of the first one, which is here already.
    patch.setattr(moving_sync, "last_deletes_batch", lambda number: deletes_batch(number, 1))


RULES = (
    MovingSyncRule("deletes count once for rows that have moved", _deletes_count_again_at_the_next_holder, (38,)),
    MovingSyncRule(
        "a file below deletes of the former holder is void", _files_below_deletes_of_the_former_holder_count, (2_962,)
    ),
    MovingSyncRule("a takeover begins with the fences", _the_first_part_of_a_takeover_has_no_fences, (2_087,)),
    MovingSyncRule("a slot takes over before it loads", _slots_that_have_not_come_take_files, (731,)),
    MovingSyncRule("deletes are done by the newest table", _deletes_are_done_whatever_changed, (314,)),
    MovingSyncRule(
        "by a newer table deletes count again", _deletes_count_once_whatever_table_they_are_sent_by, (1_161,)
    ),
    MovingSyncRule("deletes end with a fence", _deletes_have_no_last_fence, (88,)),
)
