"""Mutants of replication: what a record changes, how it is applied, and what a group refuses."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

REPLICA = "test_replica.py"
STATE = "test_group_state.py"
JOBS = "test_store_jobs.py"
ADMISSION = "test_admission.py"
HEALTH = "test_group_health.py"
SLOT_STORES = "test_slot_stores.py"

STATE_MACHINE = (
    Mutant(
        "claim_of_a_later_epoch_counts",
        "replication/replica.py",
        "if wanted.epoch != state.epoch + 1 or wanted.node not in state.changes.members:",
        "if wanted.epoch <= state.epoch or wanted.node not in state.changes.members:",
        (REPLICA,),
    ),
    Mutant(
        "claim_of_a_stranger_counts",
        "replication/replica.py",
        "if wanted.epoch != state.epoch + 1 or wanted.node not in state.changes.members:",
        "if wanted.epoch != state.epoch + 1:",
        (REPLICA,),
    ),
    Mutant(
        "leadership_of_a_node_without_its_run",
        "replication/replica.py",
        "        return self.state.leader == leadership\n",
        "        leader = self.state.leader\n        return leader is not None and leader.node == leadership.node\n",
        (REPLICA,),
    ),
    Mutant(
        "older_batch_applied",
        "replication/actions.py",
        "    if position.batch < known.batch:\n        return Ignored.SUPERSEDED\n",
        "",
        (REPLICA,),
    ),
    Mutant(
        "load_behind_deletes_counts",
        "replication/sync_rules.py",
        "    return fence is not None and fence.batch >= deletes_batch(load.number)\n",
        "    return False\n",
        ("test_synced_loads.py",),
    ),
    Mutant(
        "other_content_of_a_sequence_dropped",
        "replication/actions.py",
        "if (position.sequence, message.digest) in known.seen else None",
        "if position.sequence in {sequence for sequence, _ in known.seen} else None",
        (REPLICA,),
    ),
    Mutant(
        "repeat_makes_no_producer_younger",
        "replication/replica.py",
        "        state.note_record(position.producer)\n",
        "",
        (STATE,),
    ),
    Mutant(
        "any_gap_passed",
        "replication/group_state.py",
        "        if found != base and not late:\n",
        "        if False:\n",
        (REPLICA,),
    ),
    Mutant(
        "gap_of_another_topic_is_late",
        "replication/group_state.py",
        "late = base.topic_id == found.topic_id and found.offset <= base.offset",
        "late = found.offset <= base.offset",
        (REPLICA,),
    ),
    Mutant(
        "gap_does_not_seal",
        "replication/replica.py",
        "            return [self._seal(), *([HandOversLost(",
        "            return [*([HandOversLost(",
        (REPLICA,),
    ),
    Mutant(
        "seal_one_row_too_late",
        "replication/replica.py",
        "if state.unsealed_rows >= state.seal_rows or",
        "if state.unsealed_rows > state.seal_rows or",
        (REPLICA,),
    ),
    Mutant(
        "ignored_records_never_seal",
        "replication/replica.py",
        'return self._seal_if_full(self.reject(*(fault or (Ignored.UNDECODABLE, ""))))',
        'return self.reject(*(fault or (Ignored.UNDECODABLE, "")))',
        (REPLICA,),
    ),
    Mutant(
        "decoded_bytes_not_counted",
        "replication/replica.py",
        "        state.unsealed_bytes += max(0, size_bytes - len(write.rows))\n",
        "",
        (REPLICA,),
    ),
    Mutant(
        "older_schema_in_a_seal",
        "replication/replica.py",
        "tables[database, table] = max(tables.get((database, table), 0), schema_version)",
        "tables[database, table] = schema_version",
        (REPLICA,),
    ),
    Mutant(
        "state_of_a_seal_counts_sealed_rows",
        "replication/replica.py",
        "        state.unsealed_rows = 0\n        state.unsealed_bytes = 0\n        tables = dict(state.tables)\n"
        "        return SealNow(state.version, state.to_bytes(), tables, state.offset, state.log_bytes, before_load)\n",
        "        tables = dict(state.tables)\n"
        "        found = SealNow(state.version, state.to_bytes(), tables, state.offset, state.log_bytes, before_load)\n"
        "        state.unsealed_rows = 0\n        state.unsealed_bytes = 0\n        return found\n",
        (REPLICA,),
    ),
    Mutant(
        "producers_forgotten_whatever_their_kind",
        "replication/group_state.py",
        "            return cls.QUERY\n",
        "            return cls.SINGLE\n",
        (STATE,),
    ),
    Mutant(
        "restored_producers_in_order_of_name",
        "replication/group_state.py",
        "key=lambda item: (item[1].version, item[0]))",
        "key=lambda item: item[0])",
        (STATE,),
    ),
    Mutant(
        "job_that_failed_is_counted_as_done",
        "replication/store_jobs.py",
        "            self._fail(job, str(error))\n            return None\n",
        "            self._fail(job, str(error))\n",
        (JOBS,),
    ),
    Mutant(
        "journal_cut_before_the_seal_is_done",
        "replication/store_jobs.py",
        "        self._seals[job.version] = (offset, log_bytes)\n",
        "        self._seals[job.version] = (offset, log_bytes)\n        self._on_sealed(self._group, job.version)\n",
        (JOBS,),
        simulated=True,
    ),
    Mutant(
        "files_of_a_running_job_shown",
        "replication/store_jobs.py",
        "            return -1 if self._open else self._version\n",
        "            return self._version\n",
        (JOBS,),
    ),
    Mutant(
        "digest_of_files_that_changed_meanwhile_kept",
        "replication/store_jobs.py",
        "        if self.version != version:\n            return NO_CONTENT\n",
        "",
        (JOBS,),
    ),
    Mutant(
        "full_disk_fails_a_job",
        "replication/store_jobs.py",
        "            if error.retriable:\n",
        "            if False:\n",
        (JOBS,),
    ),
    Mutant(
        "damage_found_by_a_job_not_reported",
        "replication/store_jobs.py",
        "                self._health.damage(error.message)\n",
        "                pass\n",
        (JOBS,),
    ),
    Mutant(
        "applied_is_shown_before_the_store_has_it",
        "replication/group.py",
        "        for action in actions:\n            self._act(action)\n        log_rejection(self.name, self.replica)\n",
        "        self.applied = AppliedState.of(state, entry.timestamp_ms, self.applied)\n"
        "        for action in actions:\n            self._act(action)\n        log_rejection(self.name, self.replica)\n",
        (ADMISSION, JOBS),
    ),
    Mutant(
        "queries_learn_of_a_cut_behind_it",
        "replication/group.py",
        "        self.decided = ChangeView.of(state.changes, self.applied.changes)\n",
        "        self.decided = self.applied.changes\n",
        (SLOT_STORES,),
    ),
    Mutant(
        "record_that_failed_is_skipped",
        "replication/group.py",
        '            self.fail(f"record {entry.version} at offset {entry.offset}: {error!r}")\n',
        "            pass\n",
        (JOBS,),
    ),
    Mutant(
        "digest_of_the_record_before_a_gap_kept",
        "replication/group.py",
        "state.offset, state.record_digest = base.offset - 1, NO_CHAIN",
        "state.offset = base.offset - 1",
        (JOBS,),
    ),
    Mutant(
        "files_that_end_before_a_gap_offered",
        "replication/group.py",
        "return (0, -1) if version < base.version or unread else (version, offset)",
        "return (0, -1) if unread else (version, offset)",
        (JOBS,),
    ),
    Mutant(
        "older_schema_is_good_enough",
        "replication/admission.py",
        "        if not fits(schema, rows):\n",
        "        if False:\n",
        (ADMISSION,),
    ),
    Mutant(
        "rows_of_a_write_not_counted",
        "replication/admission.py",
        "        if rows.num_rows != write.row_count:\n",
        "        if False:\n",
        (ADMISSION,),
    ),
    Mutant(
        "series_keys_of_another_table_known",
        "replication/admission.py",
        "known = (dictionary_digest(keys), schema.database, schema.table, schema.tags)",
        'known = (dictionary_digest(keys), "", "", ())',
        (ADMISSION,),
    ),
    Mutant(
        "wrong_data_serves_until_it_is_recorded",
        "replication/group_health.py",
        "    State.WRONG: frozenset(Use),\n",
        "    State.WRONG: frozenset({Use.LEADERSHIP}),\n",
        (HEALTH,),
    ),
    Mutant(
        "damaged_copy_counts_for_a_quorum",
        "replication/group_health.py",
        "    State.DAMAGED: _SERVES_NOTHING | {Use.QUORUM},\n",
        "    State.DAMAGED: _SERVES_NOTHING,\n",
        (HEALTH,),
    ),
    Mutant(
        "trust_of_the_newest_mark",
        "replication/group_health.py",
        "            kept = trusted if first else _trusted_behind(gap, before)\n",
        "            kept = trusted\n",
        (HEALTH,),
    ),
    Mutant(
        "delay_of_an_excluded_topic_stays",
        "replication/excluded_topics.py",
        "min(2 * before.delay_s, DELAY_S_MAX)",
        "before.delay_s",
        ("test_excluded_topics.py",),
    ),
)
