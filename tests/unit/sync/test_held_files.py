"""Files that wait at the centre for one group, such as one whose leader has a full disk: others go meanwhile."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.consumers.sync import decisions, file_loader, selection, send_round, sender
from headrace.consumers.sync.file_loader import Attempts, FileJob, FileLoader
from headrace.consumers.sync.group_members import MemberRefused
from headrace.consumers.sync.listing import Listing
from headrace.consumers.sync.receiver_disk import ReceiverDisk
from headrace.consumers.sync.send_round import (
    ANNOUNCE_AGAIN_S,
    CheckFile,
    RoundCounts,
    SendChunk,
    SendManifest,
    SendRound,
)
from headrace.consumers.sync.send_settings import SendSettings
from headrace.consumers.sync.sender_state import SenderState
from headrace.consumers.sync.settings import SyncSettings
from headrace.schemas.sync_records import SyncDelete, SyncManifest, SyncVerdict, Verdict
from tests.sync_sender import sealed_file
from tests.unit.sync import edge_model, test_sender_faults
from tests.unit.sync.test_receiver import SENDER, Scene
from tests.unit.sync.test_receiver import scene as scene
from tests.unit.sync.test_selection import listed
from tests.unit.sync.test_sender_faults import check, scene_of_files

SETTINGS = SendSettings(files_max=2)
WHY = "n1 has no space"


class Sending:
    """The rounds of a sender, whose centre has everything at once and decides nothing by itself."""

    def __init__(self, count: int) -> None:
        self.state = SenderState({})
        self.files = tuple(listed(version, 0) for version in range(1, count + 1))
        self.begin()

    def begin(self, *deletes: SyncDelete) -> None:
        """A round."""
        listing = Listing("1", "/", "e1", "e1/1", 0, 99, self.files, deletes)
        self.round = SendRound(self.state, [listing], SETTINGS, RoundCounts())

    def act(self, now_s: float = 0.0) -> list[int]:
        """Carry out what is due, and confirm it; the numbers whose manifest was sent."""
        numbers = []
        for action in self.round.actions(now_s):
            if isinstance(action, CheckFile):
                self.round.checked(action.file)
            elif isinstance(action, SendManifest):
                numbers.append(action.number)
                self.round.confirmed(action.number, -1)
            elif isinstance(action, SendChunk):
                self.round.confirmed(action.number, action.chunk)
        return numbers

    def act_all(self, now_s: float = 0.0) -> list[int]:
        """As `act`, until nothing is due."""
        found = list[int]()
        while sent := [*self.act(now_s), *self.act(now_s)]:
            found += sent
        return found

    def answer(self, number: int, state: Verdict, chunk: int = 0) -> None:
        """The centre answers for the file of that place."""
        body = self.files[(number - 1) % len(self.files)].body
        self.round.verdict(SyncVerdict("u", number, body.file, body.content_digest, state, chunk, "StoreFull", WHY))

    def states(self) -> list[str]:
        """Of each file."""
        return [str(self.state.files[each.body.file].state) for each in self.files]


def held(sending: Sending, *numbers: int) -> None:
    """The centre has them whole, and waits."""
    for number in numbers:
        sending.answer(number, Verdict.RESEND, 1)


def test_others_are_sent_while_the_centre_holds_files() -> None:
    """There is room for two files. Those that are held take none of it, in this round and in the next one."""
    sending = Sending(5)
    assert [1, 2] == sending.act_all()
    held(sending, 1, 2)
    assert [3, 4] == sending.act_all()
    assert {f"StoreFull: {WHY}"} == {each.error for each in sending.state.files.values() if each.error}
    sending.answer(3, Verdict.ACCEPTED)
    sending.answer(4, Verdict.ACCEPTED)
    assert [5] == sending.act_all()
    sending.answer(5, Verdict.ACCEPTED)
    assert (True, True) == (sending.round.finished, sending.round.holds)
    assert {} == sending.round.raisable()
    sending.begin()
    assert [] == sending.act_all()
    assert (True, True) == (sending.round.finished, sending.round.holds)
    sending.answer(2, Verdict.ACCEPTED)
    sending.answer(1, Verdict.ACCEPTED)
    assert (True, False) == (sending.round.finished, sending.round.holds)
    assert {"e1": 99} == sending.round.raisable()
    assert (5, ["accepted"] * 5) == (sending.state.counters.accepted, sending.states())


@pytest.mark.parametrize("answer", [Verdict.RETRY, Verdict.RESEND])
def test_a_file_that_was_held_and_is_gone_is_sent_again(answer: Verdict) -> None:
    """A receiver was replaced, and Kafka has dropped its chunks."""
    sending = Sending(2)
    assert [1, 2] == sending.act_all()
    held(sending, 1, 2)
    sending.answer(1, answer)
    assert [3 if answer is Verdict.RETRY else 1] == sending.act_all()
    assert 1 == sending.state.files[sending.files[0].body.file].chunk
    assert (False, True) == (sending.round.finished, sending.round.holds)


def test_a_file_that_is_held_for_an_hour_is_announced_again() -> None:
    """The receiver that has it would name it again. One that does not answers, or asks for its chunks."""
    sending = Sending(2)
    assert [1, 2] == sending.act_all()
    held(sending, 1)
    assert [] == sending.act_all(ANNOUNCE_AGAIN_S - 1)
    assert [1, 2] == sorted(sending.act_all(ANNOUNCE_AGAIN_S + 1))


def test_deletes_make_a_file_that_is_held_void() -> None:
    """The receiver waits with it no more: it is sent under a new number, with the deletes."""
    sending = Sending(2)
    assert [1, 2] == sending.act_all()
    held(sending, 1, 2)
    sending.begin(SyncDelete(1, 50, "d", "t", {}, None, None))
    assert [3] == sending.act_all()
    sending.round.verdict(SyncVerdict("u", 3, "e1/1", b"", Verdict.ACCEPTED))
    assert [4, 5] == sending.act_all()


def test_rows_arrive_while_more_files_are_held_than_are_sent_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender sends three at a time, and five wait for one group. With `--once` it waits for these as well."""
    for module in (edge_model, selection, send_round, sender):
        monkeypatch.setattr(module, "CHUNK_BYTES", 512)
    monkeypatch.setattr(test_sender_faults, "TURNS_MAX", 500)
    scene = scene_of_files(21, 12)
    stuck = {each.name for each in scene.edge.files[:5]}
    scene.centre.stuck = stuck
    scene._live = lambda: None  # type: ignore[method-assign]
    for _ in range(4):
        scene.run_round()
    assert {each.name for each in scene.edge.files} - stuck == set(scene.centre.contents)
    assert {"sending"} == {str(scene.sender.state.files[each].state) for each in stuck}
    assert 0 == scene.sender.counts.chunks_resent
    scene.sender._once = True
    with pytest.raises(AssertionError, match="does not end"):
        scene.run_round()
    scene.centre.stuck = set()
    scene.centre.make_room()
    scene.run_round()
    check(scene, 21)


def test_a_file_of_which_nothing_is_read_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that starts again compares each of a thousand files that are whole at the centre: it has no such number
    of descriptors."""
    scene = scene_of_files(22, 4)
    scene.centre.full = True
    scene._live = lambda: None  # type: ignore[method-assign]
    scene.run_round()
    closed = list[str]()
    monkeypatch.setattr(scene.edge, "close_file", lambda file: closed.append(file.body.file))
    scene.run_round()
    whole = [each.file for each in scene.sender.state.files.values() if each.is_whole]
    assert whole
    assert set(whole) <= set(closed)


def test_files_that_are_held_leave_a_receiver_its_room(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two whole files may wait there, and three that have waited for long: all behind these are accepted."""
    free, decide = threading.Event(), scene.loader.decide

    def waits(job: FileJob) -> Attempts:
        while job.manifest.number <= 3 and not free.is_set():
            job.held.set()
            yield None
        return (yield from decide(job))

    monkeypatch.setattr(scene.loader, "decide", waits)
    monkeypatch.setattr(decisions, "HELD_RETRIES", 1)
    scene.receiver._settings = SyncSettings(files_max=2, held_max=3, retry_s=0.0)
    for number in range(1, 7):
        file = sealed_file({"p1": [(number, 1.0)]}, version=number, chunk_bytes=256)
        scene.manifest(file.body, number)
        scene.chunks(file, number)
    scene.turn_until(lambda: {4, 5, 6} == {each.number for each in scene.verdicts}, "the other files are accepted")
    free.set()
    scene.turn_until(lambda: [Verdict.ACCEPTED] * 6 == scene.states(), "all files are accepted")


def test_files_that_are_held_beyond_a_number_are_given_up(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three files that wait for one group a receiver keeps the first. The others are not asked for again before it is
    decided, and are accepted then. The files behind them wait for nothing."""
    free, decide = threading.Event(), scene.loader.decide
    files = [sealed_file({"p1": [(number, 1.0)]}, version=number, chunk_bytes=256) for number in range(1, 7)]

    def waits(job: FileJob) -> Attempts:
        while job.manifest.number <= 3 and not (free.is_set() or job.ended.is_set()):
            job.held.set()
            yield None
        return (yield from decide(job))

    def announce(*numbers: int) -> None:
        for number in numbers:
            scene.manifest(files[number - 1].body, number)

    monkeypatch.setattr(scene.loader, "decide", waits)
    monkeypatch.setattr(decisions, "HELD_RETRIES", 1)
    scene.receiver._settings = SyncSettings(files_max=1, held_max=1, retry_s=0.0)
    scene.receiver._shares[0].files.resend_s = 0.0
    for number in range(1, 7):
        announce(number)
        scene.chunks(files[number - 1], number)
    scene.turn_until(lambda: {4, 5, 6} == {each.number for each in scene.verdicts}, "the other files are accepted")
    assert [(SENDER, 1)] == list(scene.receiver._shares[0].files.files)
    scene.verdicts.clear()
    announce(2, 3)
    scene.turn_until(lambda: {2, 3} == {each.number for each in scene.verdicts}, "the sender reads that they wait")
    assert {("TooManyWait", files[0].body.chunks)} == {(each.kind, each.chunk) for each in scene.verdicts}
    free.set()
    scene.turn_until(lambda: Verdict.ACCEPTED in scene.states(), "the first file is accepted")
    scene.verdicts.clear()
    announce(2, 3)
    scene.turn_until(lambda: {2, 3} == {each.number for each in scene.verdicts}, "their chunks are asked for")
    assert {(Verdict.RESEND, 0)} == {(each.state, each.chunk) for each in scene.verdicts}
    for number in (2, 3):
        scene.chunks(files[number - 1], number)
    scene.turn_until(lambda: 2 == scene.states().count(Verdict.ACCEPTED), "they are accepted")


def test_a_sender_reads_that_its_file_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it has waited for a minute, and every ten minutes: no chunk is missing, and what it waits for is named."""
    nothing: Any = None
    loader = FileLoader(nothing, nothing, nothing, nothing, ReceiverDisk(Path(), 0.01))
    now_s, tries = [0.0], list[float]()

    def refused(*_: object) -> None:
        tries.append(now_s[0])
        raise MemberRefused(WHY, kind="StoreFull")

    monkeypatch.setattr(loader, "_load", refused)
    monkeypatch.setattr(file_loader, "check_file", lambda *_: None)
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    file = sealed_file({"a": [(1, 1.0)]}, version=3)
    manifest = SyncManifest(SENDER, "s", "", 1, 1, 1, file.body)
    job = FileJob(manifest, tmp_path, lambda: None, threading.Event(), threading.Event())
    told = list[tuple[float, SyncVerdict]]()
    attempts = loader.decide(job)
    for _ in range(75):
        if (verdict := next(attempts)) is not None:
            told.append((now_s[0], verdict))
        assert job.held.is_set() == (now_s[0] >= 60)
        now_s[0] += 10
    assert [60, 660] == [at_s for at_s, _ in told]
    named = {(each.state, each.chunk, each.kind, each.message) for _, each in told}
    assert {(Verdict.RESEND, file.body.chunks, "StoreFull", WHY)} == named
