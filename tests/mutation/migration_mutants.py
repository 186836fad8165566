"""Mutants of migration: which barrier is due, when the first phase is reported, and what is handed over."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

BARRIERS, TASKS, SENDER = "migration/barriers.py", "migration/change_tasks.py", "migration/hand_over_sender.py"
OF_BARRIERS, OF_TASKS, OF_SENDER = ("test_barriers.py",), ("test_change_tasks.py",), ("test_hand_over_sender.py",)

MIGRATION = (
    Mutant(
        "slots_get_another_holder_at_once",
        BARRIERS,
        "    return due if all(changed.isdisjoint(concerned_slots(each, view.cuts)) for each in waiting) else None\n",
        "    return due\n",
        OF_BARRIERS,
    ),
    Mutant(
        "formal_before_the_change_is",
        BARRIERS,
        "        formal = change.formal and view.phase is BarrierPhase.PRE\n",
        "        formal = view.phase is BarrierPhase.PRE\n",
        OF_BARRIERS,
    ),
    Mutant(
        "next_change_before_the_end_of_this_one",
        BARRIERS,
        "    if view.phase is BarrierPhase.PRE:\n        return _settling",
        "    if change is None and view.phase is BarrierPhase.PRE:\n        return _settling",
        OF_BARRIERS,
    ),
    Mutant(
        "lost_first_phase_again",
        BARRIERS,
        "return _formal_of(change, key, view, topics) if change.formal else _pre_of(",
        "return _pre_of(",
        OF_BARRIERS,
    ),
    Mutant(
        "group_of_another_birth",
        BARRIERS,
        "    return key.group in table.headers and table.birth(key.group) == key.birth\n",
        "    return key.group in table.headers\n",
        OF_BARRIERS,
    ),
    Mutant(
        "who_knows_less_settles",
        BARRIERS,
        "    if table is None or not state.formal_change <= view.change <= state.changes:\n",
        "    if table is None:\n",
        OF_BARRIERS,
    ),
    Mutant(
        "slots_of_a_holder_that_ends_keep_it",
        BARRIERS,
        "    for slot in sorted({*leaving, *orphaned}):\n",
        "    for slot in sorted(leaving):\n",
        OF_BARRIERS,
    ),
    Mutant(
        "group_that_ends_loses_its_members",
        BARRIERS,
        "    members = change.pre_members(key.group) if ends else change.table.group(key.group)\n",
        "    members = () if ends else change.table.group(key.group)\n",
        OF_BARRIERS,
    ),
    Mutant(
        "reported_without_the_new_members",
        TASKS,
        "            and len(statuses) == len(added)\n",
        "",
        OF_TASKS,
    ),
    Mutant(
        "reported_before_the_barrier_is_read",
        TASKS,
        "and status.change >= change.number\n",
        "\n",
        OF_TASKS,
    ),
    Mutant(
        "reported_while_the_change_is_unknown",
        TASKS,
        "and each.records >= change.began for each in present",
        "for each in present",
        OF_TASKS,
    ),
    Mutant(
        "acceptance_read_back_at_once",
        TASKS,
        "        return all(record.position != each.position for each in view.due.get(record.target, ()))\n",
        "        return True\n",
        OF_TASKS,
    ),
    Mutant(
        "accepted_by_a_topic_of_before",
        SENDER,
        "            if (status.group, status.topic_id) == (key.group, topic_id) and not status.log_lost\n",
        "            if status.group == key.group and not status.log_lost\n",
        OF_SENDER,
    ),
    Mutant(
        "never_sent_again",
        SENDER,
        "        waited = bool(self.sizes) and now_s - self.since_s >= SEND_AGAIN_S\n",
        "        waited = False\n",
        OF_SENDER,
    ),
    Mutant(
        "sent_without_a_limit",
        SENDER,
        "        for each, value, needed_format in self._records(view, behind[:room], room_bytes):\n",
        "        for each, value, needed_format in self._records(view, behind, room_bytes):\n",
        OF_SENDER,
    ),
    Mutant(
        "failed_delivery_forgotten",
        SENDER,
        "        target.failure = str(error)\n",
        "        pass\n",
        OF_SENDER,
    ),
)
