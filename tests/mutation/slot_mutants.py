"""Mutants of members and slots in a group's log: which barriers count, and what becomes of late records."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

TESTS = ("test_group_changes.py", "test_slot_model.py")
AGAIN = ("test_slots_again.py",)
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
        "self.holdings.era(slot, table_version) or given.era\n",
        "self.era\n",
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
        "        return handed.previous <= origin.position < handed.position\n",
        "        return handed.position > origin.position\n",
        TESTS,
    ),
    Mutant(
        "hand_over_applied_again",
        STATE,
        "        return handed.previous <= origin.position < handed.position\n",
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
        "        origin.note(body.slots, body.position, body.digest)\n",
        "",
        TESTS,
    ),
    Mutant(
        "deletes_stay_at_the_former_holder",
        STATE,
        "            self.deletes.keep(HandedDelete(Rank(era, version), tuple(sorted(slots)), delete))\n",
        "            pass\n",
        TESTS,
    ),
    Mutant(
        "deletes_of_slots_that_left_forgotten",
        STATE,
        "            by_era.setdefault(given.era, []).append(slot)\n",
        "            pass\n",
        AGAIN,
    ),
    Mutant(
        "deletes_stay_when_slots_are_renamed",
        "replication/group_state.py",
        '            return CutMemory(barrier.table_version, targets, b"", (), deletes)\n',
        '            return CutMemory(barrier.table_version, targets, b"", ())\n',
        AGAIN,
    ),
    Mutant(
        "deletes_of_a_takeover_stay_here",
        REPLICA,
        "        return [*own, *self._divide(handed.slots, handed.rank)]\n",
        "        return own\n",
        AGAIN,
    ),
    Mutant(
        "renamed_slots_that_left_again_unexpected",
        STATE,
        "(slot not in self.given or takeover.table_version < self.era)",
        "slot not in self.given",
        AGAIN,
    ),
    Mutant(
        "deletes_that_go_round_come_late",
        REPLICA,
        "            for each in self.state.changes.deletes.of(back)\n",
        "            for each in ()\n",
        ("test_slot_stores.py",),
    ),
    Mutant(
        "lost_records_stay_due",
        REPLICA,
        "lost = self.state.changes.lose(body) if",
        "lost = {} if",
        AGAIN,
    ),
    Mutant(
        "records_before_a_cut_of_the_log_lost",
        STATE,
        "                or not (behind or each.transfer.offset >= gap.resume_offset)\n",
        "",
        AGAIN,
    ),
    Mutant(
        "writer_of_the_newest_table_trusted",
        REPLICA,
        "        if not changes.concerns(message.position, message.digest, table):\n",
        "        newest = write.slot_table_version >= changes.settled_version\n"
        "        if newest or not changes.concerns(message.position, message.digest, table):\n",
        AGAIN,
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
    Mutant(
        "earlier_holding_forgotten",
        STATE,
        "            self.holdings.end(slot, table_version, self.given[slot].era)\n",
        "",
        AGAIN,
    ),
    Mutant(
        "late_rows_with_the_era_of_the_last_holding",
        STATE,
        "self.holdings.era(slot, table_version) or given.era\n",
        "given.era\n",
        AGAIN,
    ),
    Mutant(
        "the_newest_holding_counts_as_an_earlier_one",
        "replication/holdings.py",
        "if table_version < each.until), None)",
        "if table_version <= each.until), None)",
        AGAIN,
    ),
)
