"""Mutants of members and slots in a group's log: which barriers count, and what becomes of late records."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

TESTS = ("test_group_changes.py", "test_slot_model.py")
REPLICA, STATE, SECTION = "replication/replica.py", "replication/change_state.py", "replication/producer_section.py"

SLOTS = (
    Mutant(
        "barrier_of_an_older_change_counts",
        STATE,
        "        if barrier.change < self.change:\n",
        "        if False:\n",
        TESTS,
    ),
    Mutant(
        "pre_after_formal_counts",
        STATE,
        "            if self.phase is not BarrierPhase.PRE or barrier.phase is BarrierPhase.PRE:\n",
        "            if False:\n",
        TESTS,
    ),
    Mutant(
        "next_table_before_the_cut",
        STATE,
        "        elif self._waits_for_cut and barrier.table_version > self.table_version:\n",
        "        elif False:\n",
        TESTS,
    ),
    Mutant(
        "leader_that_is_no_member_stays",
        REPLICA,
        "            state.leader = None\n",
        "            pass\n",
        TESTS,
    ),
    Mutant(
        "late_rows_with_the_present_era",
        STATE,
        "rank.era if rank else given.era)",
        "rank.era if rank else self.era)",
        TESTS,
    ),
    Mutant(
        "rank_of_the_last_holder",
        REPLICA,
        "*self._divide(body.slots, body.rank)]",
        "*self._divide(body.slots)]",
        TESTS,
    ),
    Mutant(
        "hand_over_in_any_order",
        STATE,
        "        return handed.previous == origin.position\n",
        "        return handed.position > origin.position\n",
        TESTS,
    ),
    Mutant(
        "hand_over_applied_again",
        STATE,
        "        return handed.previous == origin.position\n",
        "        return handed.previous <= origin.position\n",
        TESTS,
    ),
    Mutant(
        "new_table_is_no_proof",
        STATE,
        "        if self.phase is BarrierPhase.PRE and not self.gives and table_version == self.table_version > self.era:\n",
        "        if False:\n",
        TESTS,
    ),
    Mutant(
        "old_takeover_brings_slots_back",
        STATE,
        "        if takeover.table_version >= self.era and not self._waits_for_cut:\n",
        "        if not self._waits_for_cut:\n",
        TESTS,
    ),
    Mutant(
        "producers_stay_at_the_former_holder",
        REPLICA,
        "        if known and known.issuperset(slots):\n",
        "        known = set()\n        if known and known.issuperset(slots):\n",
        TESTS,
    ),
    Mutant(
        "late_producers_not_remembered",
        REPLICA,
        "            origin.note(body.slots, body.position, body.digest)\n",
        "",
        TESTS,
    ),
    Mutant(
        "deletes_stay_at_the_former_holder",
        STATE,
        "            self.keep_delete(HandedDelete(rank, taken, delete))\n",
        "            pass\n",
        TESTS,
    ),
    Mutant(
        "late_deletes_stay_here",
        REPLICA,
        "return [ApplyDelete(version, body), *self._divide(sorted(changes.given))]",
        "return [ApplyDelete(version, body)]",
        TESTS,
    ),
    Mutant(
        "formal_does_not_seal",
        REPLICA,
        "        return [self._seal(), *([CutSlots(",
        "        return [*([CutSlots(",
        TESTS,
    ),
    Mutant(
        "refused_record_ends_a_hand_over",
        REPLICA,
        "                state.changes.note_position(message.body)\n",
        "                pass\n",
        TESTS,
    ),
    Mutant(
        "older_batch_counts_at_the_new_holder",
        SECTION,
        "return position.batch < known.batch or (position",
        "return (position",
        TESTS,
    ),
)
