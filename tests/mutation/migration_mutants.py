"""Mutants of migration: which barrier is due, when the first phase is reported, and what is handed over."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

BARRIERS, TASKS, SENDER = "migration/barriers.py", "migration/change_tasks.py", "migration/hand_over_sender.py"
NOTES, EARLY = "migration/copies_ahead.py", "migration/early_copies.py"
PULLER, OF_PULLER = "migration/puller.py", ("test_listed_files.py",)
CUT_ROWS = "store/cut_rows.py"
OF_FORMER, OF_FORMER_IN_STORE = ("test_former_rows.py",), ("../migration/test_former_rows.py",)
OF_EARLY = ("test_copy_requests.py", "test_early_copies.py")
OF_BARRIERS, OF_TASKS, OF_SENDER = ("test_barriers.py",), ("test_change_tasks.py",), ("test_hand_over_sender.py",)

BUNDLE, PEER, FILES = "migration/file_bundle.py", "migration/peer_cut.py", "migration/file_puller.py"
OF_BUNDLES = ("test_file_bundle.py", "test_early_copies.py")

MIGRATION = (
    Mutant(
        "small_files_of_an_answer_not_compared",
        PEER,
        "                if (len(segment), xxhash.xxh3_128_hexdigest(segment)) != (found.size_bytes, found.file_digest):\n",
        "                if len(segment) != found.size_bytes:\n",
        OF_BUNDLES,
    ),
    Mutant(
        "files_that_nobody_asked_for_are_staged",
        PEER,
        "                if digest not in known:\n",
        "                if False:\n",
        OF_BUNDLES,
    ),
    Mutant(
        "an_answer_of_small_files_has_no_end",
        BUNDLE,
        "        if size_bytes > BUNDLE_BYTES_MAX:\n",
        "        if False:\n",
        OF_BUNDLES,
    ),
    Mutant(
        "a_full_disk_does_not_end_the_files_of_a_request",
        FILES,
        "        return [file for file in files if file not in left[1:]]\n",
        "        return list(files)\n",
        OF_BUNDLES,
    ),
    Mutant(
        "small_files_are_fetched_alone_though_staged",
        FILES,
        '_Staged(file, "", verified=False) for file in wanted if file.is_staged}',
        '_Staged(file, "", verified=False) for file in wanted if False}',
        OF_BUNDLES,
    ),
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
    Mutant(
        "notes_of_another_change",
        NOTES,
        "            if noted == key and note.change == change and now_s - at_s < NOTE_VALID_S\n",
        "            if noted == key and now_s - at_s < NOTE_VALID_S\n",
        OF_TASKS,
    ),
    Mutant(
        "notes_of_another_group",
        NOTES,
        "            if noted == key and note.change == change and now_s - at_s < NOTE_VALID_S\n",
        "            if note.change == change and now_s - at_s < NOTE_VALID_S\n",
        OF_TASKS,
    ),
    Mutant(
        "notes_without_an_end",
        NOTES,
        "            if noted == key and note.change == change and now_s - at_s < NOTE_VALID_S\n",
        "            if noted == key and note.change == change\n",
        OF_TASKS,
    ),
    Mutant(
        "notes_without_a_limit",
        NOTES,
        "            while len(self._notes) > NOTES_MAX:\n",
        "            while False:\n",
        ("test_cut_service.py",),
    ),
    Mutant(
        "first_phase_reported_with_files_left",
        TASKS,
        "        if left:\n            return False\n",
        "",
        OF_TASKS,
    ),
    Mutant(
        "first_note_not_waited_for",
        TASKS,
        "            return now_s >= sealing.begun_s + FIRST_NOTE_S or not _gives(change, group.name)\n",
        "            return True\n",
        OF_TASKS,
    ),
    Mutant(
        "no_seal_behind_the_copies",
        TASKS,
        "        sealing = self._seal(topic, group, leadership, replace(sealing, last=True))\n"
        "        return now_s >= sealing.until_s\n",
        "        return True\n",
        OF_TASKS,
    ),
    Mutant(
        "nothing_left_before_the_first_list",
        EARLY,
        "ahead.left + (not ahead.is_listed))",
        "ahead.left)",
        OF_EARLY,
    ),
    Mutant(
        "one_donor_is_told",
        EARLY,
        "                source.note(note)\n"
        "                found = source.present(ahead.pair, slots_total) if found is None else found\n",
        "                if found is None:\n"
        "                    source.note(note)\n"
        "                    found = source.present(ahead.pair, slots_total)\n",
        OF_EARLY,
    ),
    Mutant(
        "files_forgotten_when_nobody_answers",
        EARLY,
        "        return found\n",
        "        return found or ()\n",
        OF_EARLY,
    ),
    Mutant(
        "member_of_both_groups_copies",
        EARLY,
        "        return [_Ahead(pair, donors) for pair, donors in pairs if node not in donors]\n",
        "        return [_Ahead(pair, donors) for pair, donors in pairs]\n",
        OF_EARLY,
    ),
    Mutant(
        "copied_ahead_after_the_cut",
        EARLY,
        "        number = change.number if change is not None and not change.formal else 0\n",
        "        number = change.number if change is not None else 0\n",
        OF_EARLY,
    ),
    Mutant(
        "files_listed_once",
        EARLY,
        "        ahead.asked, ahead.ask_at_s = None, now_s + LIST_EVERY_S\n",
        "        ahead.asked, ahead.ask_at_s = None, 1e12\n",
        OF_EARLY,
    ),
    Mutant(
        "a_load_that_ends_meanwhile_awaits_nothing",
        PULLER,
        "        settled = listing is not None and not missing and is_settled(pull, group)\n"
        "        awaited = [entry for entry in group.store.awaited() if slots.hold_segment(entry)]\n",
        "        awaited = [entry for entry in group.store.awaited() if slots.hold_segment(entry)]\n"
        "        settled = listing is not None and not missing and is_settled(pull, group)\n",
        OF_PULLER,
    ),
    Mutant(
        "what_a_load_has_attached_is_fetched_again",
        "migration/wanted_file.py",
        "return not store.has_loaded(self.entry) if self.ahead",
        "return True if self.ahead",
        OF_BUNDLES,
    ),
    Mutant(
        "slots_of_awaited_files_are_here",
        PULLER,
        "        return frozenset(awaited) | unloaded\n",
        "        return unloaded\n",
        OF_PULLER,
    ),
    Mutant(
        "rows_of_a_cut_without_those_in_memory",
        CUT_ROWS,
        "    live = [batch for batch in within if batch is not None]\n",
        "    live = []\n",
        OF_FORMER_IN_STORE,
    ),
    Mutant(
        "rows_of_a_cut_with_those_of_other_slots",
        CUT_ROWS,
        "    within = (batch_within(batch, database, slots) for batch in left if batch is not None)\n",
        "    within = (batch for batch in left if batch is not None)\n",
        OF_FORMER_IN_STORE,
    ),
    Mutant(
        "rows_of_a_cut_before_it",
        CUT_ROWS,
        "        if not any(each.version == hold.version and hold.slots.numbers <= each.slots.numbers for each in view.holds):\n",
        "        if False:\n",
        OF_FORMER_IN_STORE,
    ),
    Mutant(
        "rows_of_a_cut_that_were_deleted_before_it",
        CUT_ROWS,
        "        (of_file,) = without_deleted([of_file], view.tombstones.unapplied(entry), [0])\n",
        "",
        OF_FORMER_IN_STORE,
    ),
    Mutant(
        "rows_of_a_former_holder_without_their_ranks",
        "store/former_rows.py",
        "yield LiveBatch(each.era, each.version, each.rows",
        "yield LiveBatch(10**6, each.version, each.rows",
        OF_FORMER_IN_STORE,
    ),
    Mutant(
        "deletes_of_a_table_without_rows_are_forgotten",
        "store/former_rows.py",
        "        known = TableView(former.metadata, (), (), deletes)\n",
        "        known = TableView(former.metadata, (), (), TombstoneSet())\n",
        OF_FORMER_IN_STORE,
    ),
    Mutant(
        "a_donor_that_is_behind_answers",
        "migration/cut_source.py",
        "    if group.applied.changes.settled_version < table_version:\n        raise CutUnready",
        "    if False:\n        raise CutUnready",
        OF_FORMER,
    ),
    Mutant(
        "rows_of_some_of_the_slots",
        PULLER,
        "        if not {slot for pull in pulls for slot in pull.pair.slots}.issuperset(slots):\n",
        "        if not pulls:\n",
        OF_FORMER,
    ),
    Mutant(
        "rows_of_a_newer_schema",
        "migration/former_holders.py",
        " or answer.schema_version > metadata.schema.version:",
        ":",
        OF_FORMER,
    ),
)
