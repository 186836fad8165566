"""The rules of replication, and for each the mutation that breaks it on purpose.

`seeds` is how many schedules it took to find the mutation when it was measured last, from seed 0 on. Those found
quickly run in `make test`, all of them in `make soak`. docs/internals/replication.md has this as a table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.sim import mutations as first
from tests.sim import mutations_of_members as more
from tests.sim.faults import ACCEPTED, COMMON

Mutation = Callable[[pytest.MonkeyPatch], None]
CUT = ("truncate", "kill", "pause inside", "cut reads")
LOST = ("recreate", "kill", "pause inside")
GAPS = ("recreate", "kill", ACCEPTED)
DAMAGE = ("tamper", "corrupt", "kill", "kill", "kill inside", "kill inside", "wipe")
RESTARTS = ("kill", "kill", "cut sends")
STRANGERS = ("garbage",)
STOPPED = ("pause", "pause inside", "cut both")
ZOMBIES = ("zombie", "kill", "zombie", "power loss")
BEHIND = ("wipe", "pause", "kill")
REPLACED = ("wipe", "kill", "corrupt")
AWAY = ("cut sends", "cut both", "kill")
DIFFERENT = ("tamper",)
LED = ("kill", ACCEPTED, "no topics")
ROTTEN = ("corrupt",)
COPIES = ("tamper", "corrupt", "wipe", "kill")
SLOW = ("slow answers", "slow answers", "slow answers", "corrupt", "corrupt")
FULL = ("full", "full later", "sync fails")
QUICK_SEEDS = 10


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, how it is broken, the faults of the schedules, and how many it took."""

    section: str
    rule: str
    mutation: Mutation
    seeds: int = 0
    faults: tuple[str, ...] = COMMON
    quick: bool = False


RULES: tuple[Rule, ...] = (
    Rule("2", "the version is a count, never computed from an offset", more.versions_from_offsets, 1, quick=True),
    Rule("2", "what a replica does follows from the log alone", more.limits_of_this_process, 1, quick=True),
    Rule(
        "2",
        "a record of a later format stops the group",
        more.newer_formats_are_ignored,
        1,
        faults=("too new", "kill"),
        quick=True,
    ),
    Rule("2", "a local error stops the group, and skips nothing", more.errors_are_skipped, 5, quick=True),
    Rule("2", "a record that cannot be read is never passed", more.undeliverable_records_are_skipped, 44),
    Rule("2", "a claim counts only with the next epoch", first.claims_of_any_epoch, 2, quick=True),
    Rule("2", "a claim counts only of a member", more.claims_of_strangers, 1, faults=STRANGERS, quick=True),
    Rule(
        "2",
        "a leader's record counts only under the accepted claim",
        first.records_of_former_leaders,
        7,
        faults=STOPPED,
        quick=True,
    ),
    Rule("2", "a leader that was restarted claims again", more.leaders_outlive_their_process, 1, quick=True),
    Rule("2", "a claimant leads once it has read its claim back", more.claimants_lead_at_once, 2, quick=True),
    Rule("2", "only what all live members have sealed is trimmed", first.trimming_ignores_other_members, 4, quick=True),
    Rule("2", "trimming keeps a window", more.trimming_without_window, 2, quick=True),
    Rule(
        "2",
        "a replica behind the trim point recovers from files",
        more.trimmed_logs_are_followed,
        2,
        faults=BEHIND,
        quick=True,
    ),
    Rule("2", "topics have the settings that keep records", more.settings_of_topics_do_not_matter, 5, quick=True),
    Rule("2", "rows expire by two clocks", more.rows_expire_by_one_clock, 4, quick=True),
    Rule("2, 4", "producers are replicated state", first.producers_are_forgotten, 5, faults=ZOMBIES, quick=True),
    Rule("2, 4", "an older batch of a producer is void", first.older_batches_are_applied, 2, quick=True),
    Rule("2, 4", "a leader's batches have a name of their own", first.batches_continue_under_one_name, 167, faults=LED),
    Rule("5, 6", "durable is what the disk has synced", first.journal_is_not_synced, 1, quick=True),
    Rule("5, 6", "a record leaves the journal once it is sealed", first.journal_is_cut_before_the_seal, 15),
    Rule("6", "a node serves only behind its own status, read back", first.no_fence, 15),
    Rule("6", "the status of a former run proves nothing", more.statuses_of_former_runs_count, 87, faults=RESTARTS),
    Rule("6", "the fence is checked at each answer", more.answers_are_not_checked_again, 1, quick=True),
    Rule("6", "an answer has what its node has confirmed", more.answers_do_not_wait, 1, quick=True),
    Rule("6", "a stale answer is as old as it states", first.age_of_what_is_read, 1, quick=True),
    Rule(
        "6",
        "a stale answer is of the data it is read from",
        first.age_of_the_data_before,
        1,
        faults=REPLACED,
        quick=True,
    ),
    Rule("6", "eligible: read to the end of the log", more.members_behind_serve, 33),
    Rule("6", "eligible: to an end read behind the recovery", first.sync_at_an_old_end, 112, faults=SLOW),
    Rule("6", "eligible: the disk takes records", more.disks_that_refuse_do_not_matter, 1, quick=True),
    Rule("6", "no majority, no role", first.no_majority, 6, quick=True),
    Rule("6", "a dead leader is replaced", more.dead_leaders_are_followed, 24),
    Rule("6", "a live leader is followed", more.leaders_are_deposed, 1, quick=True),
    Rule("6", "the header takes leadership back", more.header_never_takes_back, 2, quick=True),
    Rule("6", "a quorum counts durable copies", first.early_acknowledgement, 1, quick=True),
    Rule("6", "a quorum counts live members", first.absent_members_count, 68, faults=AWAY),
    Rule("6", "a quorum counts copies of that log", more.receipts_are_not_asked, 1, faults=LOST, quick=True),
    Rule("6", "wrong data is remembered over a restart", more.wrong_data_is_forgotten, 24, faults=DAMAGE),
    Rule("6", "members that differ find it", more.divergence_is_not_looked_for, 1, faults=DIFFERENT, quick=True),
    Rule("6", "a corrupted file is found", more.files_are_not_checked, 12, faults=ROTTEN),
    Rule("6", "no copy from a member that is wrong", more.copies_are_not_compared, 33, faults=COPIES),
    Rule("6", "a version is never given twice", first.versions_are_given_twice, 7, faults=FULL, quick=True),
    Rule("6", "a topic made again is not followed", more.topics_made_again_are_followed, 5, faults=LOST, quick=True),
    Rule("6", "a log that lost its end is not followed", more.cut_logs_are_followed, 1, faults=CUT, quick=True),
    Rule("6", "a gap continues at its anchor only", more.gaps_are_joined_from_anywhere, 1, faults=GAPS, quick=True),
)
