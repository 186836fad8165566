"""What one round of a sender sends at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.consumers.sync.file_states import FileRecord, FileState
from headrace.consumers.sync.listing import ListedFile, Listing
from headrace.consumers.sync.send_round import IN_MIDDLE_MAX, CheckFile, RoundCounts, SendChunk, SendManifest, SendRound
from headrace.consumers.sync.send_settings import CHUNK_BYTES, SendSettings
from headrace.consumers.sync.sender_state import SenderState
from headrace.consumers.sync.verdicts import apply_verdict
from headrace.schemas.sync_records import SyncDelete, SyncVerdict, Verdict
from tests.unit.sync.test_selection import listed


def file_of_two_chunks(version: int) -> ListedFile:
    """A file of a version whose second chunk has 100 bytes."""
    found = listed(version, 0)
    return replace(found, body=replace(found.body, segment_bytes=CHUNK_BYTES, series_bytes=100))


def test_chunks_of_some_files_are_sent_at_a_time_and_others_wait_for_verdicts() -> None:
    """A file that Kafka has whole waits for its verdict, and the next one begins."""
    files = tuple(file_of_two_chunks(version) for version in range(1, IN_MIDDLE_MAX + 4))
    listing = Listing("1", "/", "e1", "e1/1", 0, len(files), files, ())
    sending = SendRound(SenderState({}), [listing], SendSettings(), RoundCounts())

    def act() -> list[tuple[int, int]]:
        """Carry out what is due, and confirm all of it: (number, chunk) of each record."""
        sent = []
        for action in sending.actions(0.0):
            if isinstance(action, CheckFile):
                sending.checked(action.file)
            elif isinstance(action, SendManifest):
                sent.append((action.number, -1))
            elif isinstance(action, SendChunk):
                sent.append((action.number, action.chunk))
        for each in sent:
            sending.confirmed(*each)
        return sent

    first = range(1, IN_MIDDLE_MAX + 1)
    for chunk in (-1, 0, 1):
        assert [(number, chunk) for number in first] == act()
    assert [(number, -1) for number in range(IN_MIDDLE_MAX + 1, len(files) + 1)] == act()
    assert not sending.finished


def test_a_verdict_that_comes_again_leaves_nothing() -> None:
    """Its file was forgotten, and no node lists it any more. Each would be a record for good, and count as a file."""
    state = SenderState({})
    verdict = SyncVerdict("u", state.new_number(), "e1/1/0/7", b"d", Verdict.ACCEPTED)
    apply_verdict(state, verdict, 5)
    state.put_group(replace(state.group("e1"), progress=8))
    listing = Listing("1", "/", "e1", "e1/1", 8, 9, (), (), files_left=1)
    SendRound(state, [listing], SendSettings(), RoundCounts())
    # Others may be listed behind these: a power cut may have taken back that it was sent.
    assert ["e1/1/0/7"] == list(state.files)
    SendRound(state, [replace(listing, identity="e1/12", files_left=0)], SendSettings(), RoundCounts())
    assert (["e1/1/0/7"], 1) == (list(state.files), state.counters.accepted)
    SendRound(state, [replace(listing, files_left=0)], SendSettings(), RoundCounts())
    assert ({}, 0) == (state.files, state.counters.accepted)


def test_a_file_that_the_edge_has_merged_waits_no_more() -> None:
    """An operator wants a rejected one again, and the edge sends it within another file. It would be shown for good."""
    state = SenderState({})
    record = FileRecord("e1/1/0/3", "e1", 3, 1, "d", FileState.REJECTED, number=state.new_number())
    state.put_file(record)
    state.put_group(replace(state.group("e1"), progress=5))
    assert [] == state.ask_again([record.file])
    listing = Listing("1", "/", "e1", "e1/1", 2, 5, (listed(5, 0),), (), files_left=1)
    SendRound(state, [listing], SendSettings(), RoundCounts())
    assert [record.file, "e1/1/0/5"] == list(state.files)
    for after, through in ((3, 5), (2, 2)):
        SendRound(state, [replace(listing, files_left=0, after=after, through=through)], SendSettings(), RoundCounts())
        assert record.file in state.files
    SendRound(state, [replace(listing, files_left=0)], SendSettings(), RoundCounts())
    assert ["e1/1/0/5"] == list(state.files)
    assert (0, 0) == (state.counters.rejected, state.counters.accepted)


@pytest.mark.parametrize("answer", [Verdict.ACCEPTED, Verdict.RETRY])
def test_files_wait_for_the_deletes_of_all_groups(answer: Verdict) -> None:
    """A delete of a user is in the log of each group. What is written behind it in one must not come before the other."""
    state, settings = SenderState({}), SendSettings(tries_max=1)
    delete = SyncDelete(1, 1, "d", "t", {}, None, None)
    first = Listing("1", "/", "e1", "e1/1", 0, 1, (), (delete,))
    second = Listing("2", "/", "e2", "e2/1", 0, 2, (listed(2, 0),), (delete,))
    sending = SendRound(state, [first, second], settings, RoundCounts())
    numbers = {each.body.group: each.number for each in sending.actions(0.0)}  # type: ignore[union-attr]
    sending.verdict(SyncVerdict("u", numbers["e2/1"], "e2/1", b"", Verdict.ACCEPTED))
    assert [] == list(sending.actions(0.0))
    sending.verdict(SyncVerdict("u", numbers["e1/1"], "e1/1", b"", answer))
    began = [type(each) for each in sending.actions(0.0)]
    assert began == ([CheckFile] if answer is Verdict.ACCEPTED else [])
    assert answer is Verdict.ACCEPTED or [FileState.FAILED] == [each.state for each in sending.files]
