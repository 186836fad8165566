"""Rules of docs/internals/sync.md, each broken on purpose."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from headrace.consumers.replication import sync_rules
from headrace.consumers.replication.actions import Ignored
from headrace.consumers.store import synced
from headrace.consumers.store.segment import SegmentEntry
from headrace.consumers.sync import file_states, owners, partition_files, selection, send_round, sender_state
from headrace.consumers.sync.chunk_states import STEPS, ChunkAction, ChunkEvent, FileState
from headrace.consumers.sync.partition_files import OpenFile, PartitionFiles
from headrace.consumers.sync.round_parts import GroupDeletes
from headrace.consumers.sync.selection import file_body
from headrace.consumers.sync.send_round import SendRound
from headrace.consumers.sync.sender import Sender
from headrace.consumers.sync.shares import Share
from headrace.schemas.message_bodies import ProducerPosition
from headrace.schemas.messages import DELETES_OF_NUMBER, load_identity
from headrace.schemas.sync_records import SyncFile
from tests.sim.sync_receivers import MemoryFile, SimLoader

Break = Callable[[pytest.MonkeyPatch], None]
QUICK_SEEDS = 40


@dataclass(frozen=True)
class SyncRule:
    """A rule, and how it is broken. `seeds`: schedules that show it, where the first ones do not."""

    rule: str
    breaks: Break
    seeds: Sequence[int] = range(QUICK_SEEDS)


def _deletes_make_no_file_void(patch: pytest.MonkeyPatch) -> None:
    def broken(newer: OpenFile, older: OpenFile) -> bool:
        same = newer.manifest.sender == older.manifest.sender and newer.name == older.name
        return same and older.manifest.number < newer.manifest.number

    patch.setattr(partition_files, "_supersedes", broken)
    patch.setattr(sync_rules, "stale_load", _known_loads_alone)


def _loads_behind_deletes_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sync_rules, "stale_load", _known_loads_alone)


def _known_loads_alone(load: Any, loads: Any, producers: Any) -> Ignored | None:
    del producers
    return Ignored.REPEATED if load_identity(load) in loads else None


def _loads_count_as_often_as_they_come(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sync_rules, "stale_load", lambda *_of: None)
    patch.setattr("tests.sim.sync_simulation.load_identity", lambda _load: b"never seen")


def _offsets_behind_open_files(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionFiles, "manifests_from", lambda _self, position: position)
    patch.setattr(PartitionFiles, "chunks_from", lambda _self, position: position)
    patch.setattr(send_round, "ANNOUNCE_AGAIN_S", 1e12)


def _a_claim_takes_owned_devices(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owners, "check_devices", lambda *_of: True)


def _a_claim_counts_before_it_is_read_back(patch: pytest.MonkeyPatch) -> None:
    check = owners.check_devices

    def broken(found: owners.Owners, sender: str, database: str, devices: list[str]) -> bool:
        known = found.owners_of(database, devices)
        if any(owner not in (None, sender) for owner in known):
            return check(found, sender, database, devices)
        return True

    patch.setattr(owners, "check_devices", broken)


def _late_files_rank_as_they_come(patch: pytest.MonkeyPatch) -> None:
    def broken(entry: SegmentEntry, era: int, version: int, present: Any) -> SegmentEntry:
        del present
        return synced._at(replace(entry, loaded_rank=(era, version)), era, version, 0)

    patch.setattr(synced, "ranked", broken)


def _files_are_merged_before_they_are_settled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(synced, "may_join", lambda *_of: True)


def _a_round_settles_all_it_lists(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(selection.SettledOrders, "settled", lambda *_of: "999999")


def _the_state_is_written_behind_what_is_sent(patch: pytest.MonkeyPatch) -> None:
    def broken(self: Sender, due: Any) -> None:
        while due:
            self._send(due[0])
            due.popleft()

    patch.setattr(Sender, "_send_all", broken)


def _numbers_are_given_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sender_state, "NUMBERS_RESERVED", 0)


def _files_do_not_wait_for_deletes(patch: pytest.MonkeyPatch) -> None:
    next_file = SendRound._next_file

    def broken(self: SendRound) -> Any:
        kept = {identity: group.deletes for identity, group in self._groups.items()}
        for group in self._groups.values():
            group.deletes = GroupDeletes(deque())
        try:
            return next_file(self)
        finally:
            for identity, group in self._groups.items():
                group.deletes = kept[identity]

    patch.setattr(SendRound, "_next_file", broken)


def _chunks_without_a_manifest_are_nothing_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Share, "is_orphan", lambda *_of: True)
    patch.setattr(PartitionFiles, "silent", lambda *_of: iter(()))
    patch.setattr(send_round, "ANNOUNCE_AGAIN_S", 1e12)


def _a_gap_is_written_over(patch: pytest.MonkeyPatch) -> None:
    for state in (FileState.EXPECTED, FileState.RECEIVING, FileState.GAPPED):
        patch.setitem(
            STEPS,
            state,
            {**STEPS[state], ChunkEvent.AHEAD: (FileState.RECEIVING, ChunkAction.WRITE)},
        )
    patch.setattr(MemoryFile, "finish", lambda _self: None)


def _silence_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionFiles, "silent", lambda *_of: iter(()))


def _files_below_deletes_are_continued(patch: pytest.MonkeyPatch) -> None:
    checked = SendRound.checked

    def broken(self: SendRound, listed: Any, md5: bytes = b"") -> None:
        record = self._state.files[listed.body.file]
        group = self._group_of(listed.body.file)
        known = self._state.group(group.listing.group)
        if record.state is file_states.FileState.SENDING and record.number <= known.deletes_number:
            self._state.put_group(replace(known, deletes_number=0))
            checked(self, listed, md5)
            self._state.put_group(known)
            return
        checked(self, listed, md5)

    patch.setattr(SendRound, "checked", broken)
    patch.setattr(send_round, "body_digest", lambda body: body.file)


def _progress_passes_undecided_files(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(send_round, "decided_up_to", lambda listing, _files, _group: listing.through)


def _a_carried_delete_is_left_out(patch: pytest.MonkeyPatch) -> None:
    body_of = file_body

    def broken(listed: Any, md5: bytes, settled: str) -> SyncFile:
        return replace(body_of(listed, md5, settled), deletes=())

    patch.setattr(send_round, "file_body", broken)


def _deletes_have_no_fence_behind_them(patch: pytest.MonkeyPatch) -> None:
    fence = SimLoader._fence

    def broken(self: SimLoader, position: ProducerPosition) -> None:
        # Of a batch that is older than those of all deletes.
        last = (position.batch + 1) % DELETES_OF_NUMBER == 0
        fence(self, replace(position, batch=0) if last else position)

    patch.setattr(SimLoader, "_fence", broken)


RULES = (
    SyncRule("deletes make older files void", _deletes_make_no_file_void, seeds=(72, 86)),
    SyncRule("a load behind deletes is void in the log", _loads_behind_deletes_count, seeds=(189, 444)),
    SyncRule("a load counts once", _loads_count_as_often_as_they_come),
    SyncRule("the offset stays before the oldest open file", _offsets_behind_open_files),
    SyncRule("a device of another sender rejects the file", _a_claim_takes_owned_devices),
    SyncRule("a claim is read back", _a_claim_counts_before_it_is_read_back),
    SyncRule("a late file ranks below later ones", _late_files_rank_as_they_come),
    SyncRule("only settled files are merged", _files_are_merged_before_they_are_settled),
    SyncRule("settled ends below the lowest undecided file", _a_round_settles_all_it_lists),
    SyncRule("the state is written first", _the_state_is_written_behind_what_is_sent),
    SyncRule("a number names one manifest", _numbers_are_given_again),
    SyncRule("deletes go first", _files_do_not_wait_for_deletes),
    SyncRule("a chunk waits for its manifest", _chunks_without_a_manifest_are_nothing_at_once),
    SyncRule("chunks are written in order", _a_gap_is_written_over),
    SyncRule("silence is answered", _silence_is_not_noticed),
    SyncRule("what deletes made void is sent under a new number", _files_below_deletes_are_continued),
    SyncRule("progress ends below undecided files", _progress_passes_undecided_files),
    SyncRule("a file brings the deletes that outrank it", _a_carried_delete_is_left_out),
    SyncRule("deletes end with a fence", _deletes_have_no_fence_behind_them, seeds=(6_431,)),
)
