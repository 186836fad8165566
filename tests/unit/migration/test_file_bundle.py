"""Small files that come with one request: which, what a receiver accepts of them, and what comes alone all the same."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.migration import file_bundle, peer_cut
from headrace.consumers.migration.file_bundle import (
    FILES_MAX,
    SEGMENT_BYTES_MAX,
    BundleInvalid,
    bundle_of,
    decode_bundle,
    encode_bundle,
)
from headrace.consumers.migration.peer_cut import PeerCut
from headrace.consumers.migration.puller import READ_BACK_TIMEOUT_S
from headrace.consumers.migration.wanted_file import WantedFile
from headrace.consumers.recovery.file_copy import SourceCorrupt, SourceFailed
from headrace.consumers.replication.group_health import Event
from headrace.consumers.store import SegmentEntry
from headrace.schemas.group_changes import GroupKey
from tests.unit.migration.moves import TARGET, Moves, topic_of
from tests.unit.migration.test_cut_service import DONOR, NoObserver, answer
from tests.unit.migration.test_puller import donor_file, finished
from tests.unit.nodes import corrupt

FILES = st.lists(st.tuples(st.binary(min_size=16, max_size=16), st.binary(max_size=40), st.binary(max_size=99)))


def of_donor(moves: Moves, count: int = 3) -> list[SegmentEntry]:
    """Files of the slots that group n1 has given away."""
    return moves.nodes["n1"].groups[topic_of(DONOR)].store.cut_files()[:count]


def peer(moves: Moves) -> PeerCut:
    """Group n1 at its first member."""
    server = moves.nodes["n1"].server
    return PeerCut("n1", server.url if server else "", DONOR, topic_of(DONOR))


@given(files=FILES, cut=st.integers(0, 10_000))
def test_a_bundle_reads_back_and_a_part_of_it_does_not(files: list[tuple[bytes, bytes, bytes]], cut: int) -> None:
    """Any bytes, none among them; what ends within a file is refused."""
    written = [(digest.hex(), digest[::-1].hex(), series, segment) for digest, series, segment in files]
    data = encode_bundle(written)
    assert written == [(digest, of, series, bytes(segment)) for digest, of, series, segment in decode_bundle(data)]
    part = data[: cut % (len(data) + 1)]
    begun = [32 + 8 + len(series) + len(segment) for _, series, segment in files]
    if len(part) not in {sum(begun[:number]) for number in range(len(begun) + 1)}:
        with pytest.raises(BundleInvalid):
            list(decode_bundle(part))


def test_an_answer_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is left out, whatever its series have."""
    monkeypatch.setattr(file_bundle, "BUNDLE_BYTES_MAX", 150)
    digest = "ab" * 16
    data = encode_bundle([(digest, digest, b"s" * 10, b"x" * 20)] * 3)
    assert 2 == len(list(decode_bundle(data)))


def test_files_are_asked_for_together_up_to_a_number_and_a_size(unchanged_moves: Moves) -> None:
    """One of them comes in any case."""
    entry = of_donor(unchanged_moves)[0]
    small, large = replace(entry, size_bytes=1), replace(entry, size_bytes=SEGMENT_BYTES_MAX // 4)
    assert FILES_MAX == bundle_of([small] * (FILES_MAX + 5))
    assert 4 == bundle_of([large] * 9)
    assert 1 == bundle_of([replace(entry, size_bytes=SEGMENT_BYTES_MAX + 1), small])


def test_small_files_of_a_donor_come_with_one_request(moves: Moves, monkeypatch: pytest.MonkeyPatch) -> None:
    """And all of them are attached with their rows. Those of group n1 would be links, so each is asked for alone."""
    together, alone = list[int](), list[str]()
    stage_together, stage = PeerCut.stage_together, PeerCut.stage

    def noted(source: PeerCut, entries: Any, *of: Any) -> frozenset[str]:
        together.append(len(entries))
        return stage_together(source, entries, *of)

    def noted_alone(source: PeerCut, entry: SegmentEntry, *of: Any) -> bool:
        alone.append(source._group.group)
        return stage(source, entry, *of)

    monkeypatch.setattr(PeerCut, "stage_together", noted)
    monkeypatch.setattr(PeerCut, "stage", noted_alone)
    moves.hand_over()
    moves.turns(count=6)
    finished(moves)
    assert max(together) > 1
    assert {"n1"} == set(alone)


def test_files_that_are_staged_are_not_asked_for_again(moves: Moves, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that was restarted does not know what it has copied ahead: it finds them where they are."""
    key = GroupKey("n2", 1)
    entries = moves.nodes["n2"].groups[topic_of(key)].store.cut_files()
    server = moves.nodes["n2"].server
    source = PeerCut("n2", server.url if server else "", key, topic_of(key))
    staged = source.stage_together(entries, moves.nodes["n4"].target.store.staging_directory, NoObserver())
    assert {entry.content_digest for entry in entries} == staged
    asked, stage_together, stage = set[str](), PeerCut.stage_together, PeerCut.stage

    def noted(source: PeerCut, entries: Any, staging: Path, *of: Any) -> frozenset[str]:
        asked.update(entry.content_digest for entry in entries if "n4" in staging.parts)
        return stage_together(source, entries, staging, *of)

    def noted_alone(source: PeerCut, entry: SegmentEntry, staging: Path, *of: Any) -> bool:
        asked.update({entry.content_digest} if "n4" in staging.parts else ())
        return stage(source, entry, staging, *of)

    monkeypatch.setattr(PeerCut, "stage_together", noted)
    monkeypatch.setattr(PeerCut, "stage", noted_alone)
    node = moves.nodes["n4"]
    with monkeypatch.context() as patched:
        patched.setattr(node, "append_loads", lambda _topic, _loads: None)
        moves.turns("n4", count=4)
    node.clock.now_s += READ_BACK_TIMEOUT_S
    moves.hand_over()
    moves.turns(count=6)
    finished(moves)
    assert asked
    assert asked.isdisjoint(staged)


@pytest.mark.parametrize("count", [1, 2])
def test_a_file_that_its_load_has_attached_is_not_copied_ahead(moves: Moves, count: int) -> None:
    """A list of files may be older than the load: what is fetched then would stay in the staging directory."""
    moves.hand_over()
    moves.turns(count=6)
    finished(moves)
    node, key, topic = moves.nodes["n4"], GroupKey("n2", 1), topic_of(TARGET)
    gained = {entry.name for entry in moves.nodes["n2"].groups[topic_of(key)].store.cut_files()}
    entries = [entry for entry in node.target.store.segments() if entry.name in gained][:count]
    assert count == len(entries)
    received = node.puller.rate.received_bytes
    node.puller.files.want([WantedFile(topic, node.target, entry, (("n2", key),), ahead=True) for entry in entries])
    assert received == node.puller.rate.received_bytes


@pytest.mark.parametrize("count", [1, 2])
def test_nothing_is_fetched_for_a_group_that_leaves(moves: Moves, count: int) -> None:
    """Its directories may be deleted by now. What is fetched then would stay on the disk for good."""
    node, key, topic = moves.nodes["n4"], GroupKey("n1", 1), topic_of(TARGET)
    entries = of_donor(moves, count)
    node.target.health.report(Event.LEAVE, "the group leaves this node")
    node.puller.files.want([WantedFile(topic, node.target, entry, (("n1", key),), ahead=True) for entry in entries])
    assert not node.target.store.staging_directory.exists()


@pytest.mark.parametrize(
    "error", [SourceFailed("it is gone", retriable=True), SourceCorrupt("other bytes"), RuntimeError("a fault of ours")]
)
def test_files_that_do_not_come_together_come_alone(
    moves: Moves, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """From a node of an earlier build, or one that fails in the middle; no fault is shown for that."""

    def failing(*_of: object) -> frozenset[str]:
        raise error

    monkeypatch.setattr(PeerCut, "stage_together", failing)
    moves.hand_over()
    moves.turns(count=6)
    finished(moves)
    assert 0 == moves.nodes["n4"].puller.files.errors


def test_a_file_that_rotted_is_refused_among_others(moves: Moves) -> None:
    """Nothing of that answer is staged; each of its files is asked for alone then, and another node has the bad one."""
    path, entry = donor_file(moves, "n1", "n1")
    corrupt(path)
    entries, staging = of_donor(moves, 99), moves.nodes["n4"].target.store.staging_directory
    assert entry.name in {each.name for each in entries}
    with pytest.raises(SourceCorrupt, match="does not have its digest"):
        peer(moves).stage_together(entries, staging, NoObserver())
    assert not staging.exists() or not list(staging.iterdir())
    moves.hand_over()
    moves.turns(count=8)
    finished(moves)


def test_files_that_are_gone_or_large_are_left_out(moves: Moves, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others of the answer are staged, whole and under their names."""
    first, second, *_ = of_donor(moves)
    staging = moves.nodes["n4"].target.store.staging_directory
    gone = replace(second, content_digest="0" * 32)
    assert {first.content_digest} == peer(moves).stage_together([first, gone], staging, NoObserver())
    assert {f"{first.content_digest}.parquet", f"{first.content_digest}.series"} == {
        path.name for path in staging.iterdir()
    }
    monkeypatch.setattr("headrace.consumers.serve.cut_service.SMALL_BYTES_MAX", first.size_bytes - 1)
    assert frozenset() == peer(moves).stage_together([first], staging, NoObserver())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data[:-1], "cannot be read"),
        (lambda data: struct.pack(">16s16sII", b"x" * 16, b"x" * 16, 0, 0) + data, "nobody has asked"),
        (lambda data: data[:16] + b"x" * 16 + data[32:], "series file"),
    ],
)
def test_an_answer_that_no_node_writes_is_refused(
    moves: Moves, monkeypatch: pytest.MonkeyPatch, change: Any, said: str
) -> None:
    """A part of an answer, a file that was not asked for, and a series with other bytes."""
    entries, staging = of_donor(moves), moves.nodes["n4"].target.store.staging_directory
    decode = decode_bundle
    monkeypatch.setattr(peer_cut, "decode_bundle", lambda data: decode(change(data)))
    with pytest.raises(SourceCorrupt, match=said):
        peer(moves).stage_together(entries, staging, NoObserver())


def test_an_answer_without_end_is_refused(moves: Moves, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its bytes are read."""
    monkeypatch.setattr(peer_cut, "BUNDLE_BYTES_MAX", 10)
    with pytest.raises(SourceCorrupt, match="at most 10"):
        peer(moves).stage_together(of_donor(moves), moves.nodes["n4"].target.store.staging_directory, NoObserver())


@pytest.mark.parametrize("digests", ["", "x", ",".join(["ab" * 16] * (FILES_MAX + 1))])
def test_a_request_that_names_no_files_is_refused(unchanged_moves: Moves, digests: str) -> None:
    """Or too many of them."""
    found = answer(unchanged_moves, "cut/bundle", group="n1", birth=1, digests=digests)
    assert (400, "RequestInvalid") == (found.status_code, found.json()["error"]["kind"])


def test_a_group_that_is_not_here_sends_nothing(unchanged_moves: Moves) -> None:
    """As for a file alone."""
    found = answer(unchanged_moves, "cut/bundle", group="n9", birth=1, digests="ab" * 16)
    assert (409, "SlotNotHeld") == (found.status_code, found.json()["error"]["kind"])
    assert TARGET.group not in found.text
