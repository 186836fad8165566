"""The sender against a model of edge and centre: kills at every step, lost and repeated records, random verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from headrace.connectors.http import NodeUnreachable
from headrace.connectors.log.port import RecordTooLarge
from headrace.consumers.sync import selection, send_round, sender_state
from headrace.consumers.sync import sender as sender_module
from headrace.consumers.sync.file_states import FileState
from headrace.consumers.sync.send_settings import SendSettings
from headrace.consumers.sync.sender import STEPS, Sender, SenderName
from headrace.consumers.sync.sender_ports import CentreForgotten, StateUnwritable, StoreDescription, StoreGroup
from headrace.consumers.sync.sender_state import SenderState
from tests.unit.sync import edge_model
from tests.unit.sync.centre_model import ModelCentre
from tests.unit.sync.edge_model import STORE, ModelEdge
from tests.unit.sync.state_model import ModelLog

CHUNK_BYTES = 512
SETTINGS = SendSettings(files_max=3, window_bytes=6 * CHUNK_BYTES)
TURNS_MAX = 4_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small chunks: with those of a mebibyte most of the time goes into the copies of both models."""
    for module in (edge_model, selection, send_round, sender_module):
        monkeypatch.setattr(module, "CHUNK_BYTES", CHUNK_BYTES)


class Killed(BaseException):
    """The sender was killed."""


class Scene:
    """One edge, one centre and the starts of one sender."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.edge = ModelEdge(self.random)
        self.centre = ModelCentre(self.random)
        self.log = ModelLog(self.random)
        self.now_s = 0.0
        self.kill_at = ""
        self.steps: set[str] = set()
        self.sender = self.start(power_cut=False)

    def calm(self) -> None:
        """No more faults, and no more kills."""
        self.edge.faults = self.centre.faults = self.log.faults = False
        self.kill_at = ""

    def start(self, *, power_cut: bool) -> Sender:
        """A start of the sender with what its log has, up to the verdicts that are there."""
        state = SenderState(self.log.recovered(power_cut=power_cut))
        self.centre.delivered = state.counters.verdict_offset
        sender = Sender(
            SenderName("s", STORE, ""),
            state,
            self.log,
            self.edge,
            self.centre,
            SETTINGS,
            clock=self._clock,
            on_step=self._step,
        )
        self._patiently(sender.start)
        while self.centre.delivered < len(self.centre.verdicts):
            self._patiently(lambda: sender.read_verdicts(0.0))
        return sender

    def _patiently(self, call) -> bool:  # type: ignore[no-untyped-def]
        while True:
            try:
                return bool(call())
            except (NodeUnreachable, StateUnwritable):
                self.now_s += 1

    def _clock(self) -> float:
        self.now_s += 0.2
        return self.now_s

    def _step(self, name: str) -> None:
        self.steps.add(name)
        if self.kill_at == name or (self.kill_at == "any" and self.random.random() < 0.02):
            raise Killed(name)

    def run_round(self) -> None:
        """One round of the sender, while the edge is written; a kill ends it with another start."""
        try:
            self._patiently(self.sender.begin_round)
            for _ in range(TURNS_MAX):
                if self._patiently(self.sender.turn):
                    break
                self._live()
            else:
                raise AssertionError("the round does not end")
            self._patiently(self.sender.end_round)
        except Killed:
            self.centre.sender_dies()
            self.kill_at = "" if self.kill_at != "any" else "any"
            before, self.kill_at = self.kill_at, ""
            self.sender = self.start(power_cut=self.random.random() < 0.5)
            self.kill_at = before

    def _live(self) -> None:
        """What else happens at the edge."""
        chance = self.random.random()
        if chance < 0.2:
            self.edge.write()
        elif chance < 0.25:
            self.edge.seal_now()
        elif chance < 0.28:
            self.edge.merge()
        elif chance < 0.285 and self.edge.faults:
            self.edge.restart()

    def finish(self) -> None:
        """Without faults, until everything is decided."""
        self.calm()
        for _ in range(400):
            self.run_round()
            if self.edge.progress == self.edge.version:
                return
            self._live = lambda: None  # type: ignore[method-assign]
        raise AssertionError(f"not everything is decided: {self.sender.figures()}, {self.edge.progress}")


def run(seed: int, kill_at: str = "any") -> Scene:
    """One schedule from its seed, to its end."""
    scene = Scene(seed)
    scene.kill_at = kill_at
    for _ in range(12):
        for _ in range(scene.random.randrange(6)):
            scene.edge.write()
        if scene.random.random() < 0.7:
            scene.edge.seal_now()
        scene.run_round()
        scene.edge.merge()
    scene.finish()
    return scene


def check(scene: Scene, seed: int) -> None:
    """What must hold at the end of every schedule."""
    assert scene.centre.rows() == scene.edge.expected, f"seed {seed}"
    assert scene.centre.sent_after_acceptance == [], f"seed {seed}"
    assert scene.centre.deletes_order == sorted(scene.centre.deletes_order), f"seed {seed}"


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_every_row_arrives_whatever_happens(first: int) -> None:
    """After kills, power cuts, lost records and random verdicts the centre has the rows of the edge, each file once."""
    for seed in range(first, first + 50):
        check(run(seed), seed)


@pytest.mark.soak
def test_thousands_of_schedules() -> None:
    """The same for 5,000 seeds."""
    for seed in range(1_000, 6_000):
        check(run(seed), seed)


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_each_step_loses_nothing(step: str) -> None:
    """A sender that is killed at the first time it reaches a step continues behind it."""
    for seed in range(5):
        scene = run(seed, step)
        check(scene, seed)
        assert step in scene.steps


def test_a_rejected_file_hurts_no_other() -> None:
    """A file that the centre rejects is decided, and stays rejected; all others are accepted."""
    scene = Scene(7)
    scene.calm()
    for value in range(20):
        scene.edge.write()
        if value % 4 == 3:
            scene.edge.seal_now()
    rejected = scene.edge.files[1].name
    scene.centre.rejecting = {rejected}
    # A listing may leave files out, so there may be several rounds.
    scene._live = lambda: None  # type: ignore[method-assign]
    scene.finish()
    states = {
        each.file: each.state for each in scene.sender.state.files.values() if each.state is not FileState.ACCEPTED
    }
    assert states == {rejected: FileState.REJECTED}
    assert set(scene.centre.contents) == {each.name for each in scene.edge.files} - {rejected}
    assert scene.sender.figures()["rejected"] == 1


def scene_of_files(seed: int, files: int) -> Scene:
    """A scene without faults or deletes, whose edge has sealed some files."""
    scene = Scene(seed)
    scene.calm()
    scene.edge.delete_share = 0.0
    for _ in range(files):
        scene.edge.write()
        scene.edge.seal_now()
    return scene


def test_more_rejected_files_than_are_kept_are_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a new box before it has the devices of the old one. Those above the progress are not forgotten.

    A damaged file may hold that back for long: each round would send all of them again.
    """
    monkeypatch.setattr(sender_state, "REJECTED_KEPT_MAX", 2)
    scene = scene_of_files(13, 8)
    damaged, *others = [each.name for each in scene.edge.files]
    scene.edge.damaged, scene.centre.rejecting = {damaged}, set(others)
    scene._live = lambda: None  # type: ignore[method-assign]
    for _ in range(9):
        scene.run_round()
    assert 7 == scene.sender.counts.rejected
    scene.edge.damaged = set()
    scene.finish()
    scene.run_round()
    assert (7, 2) == (scene.sender.counts.rejected, len(scene.sender.state.files))
    assert 7 == scene.sender.state.counters.rejected


def test_a_damaged_file_is_left_and_shown_while_others_go() -> None:
    """A file that the disk of the edge has changed is tried in each round, and holds back the progress alone."""
    scene = Scene(8)
    scene.calm()
    for value in range(20):
        scene.edge.write()
        if value % 4 == 3:
            scene.edge.seal_now()
    damaged = scene.edge.files[1]
    scene.edge.damaged = {damaged.name}
    scene._live = lambda: None  # type: ignore[method-assign]
    for _ in range(5):
        scene.run_round()
    [left] = (
        scene.sender.state.files.values()
        if len(scene.sender.state.files) == 1
        else [each for each in scene.sender.state.files.values() if not each.decided]
    )
    assert (left.file, left.state) == (damaged.name, FileState.FAILED)
    assert "is damaged" in left.error
    assert scene.edge.progress == damaged.last - 1
    scene.edge.damaged = set()
    scene.finish()
    assert scene.centre.rows() == scene.edge.expected


def test_a_node_that_has_forgotten_the_centre_is_asked_from_the_start() -> None:
    """`sync forget` in mid-round, or an empty directory: the same question alone would have the same answer for ever."""
    scene = Scene(9)
    scene.calm()
    scene.edge.write()
    scene.edge.seal_now()
    scene._live = lambda: None  # type: ignore[method-assign]
    noted = scene.edge.set_progress

    def forgotten(progress: Mapping[str, int], lower: bool) -> None:
        raise CentreForgotten("no centre is registered here")

    scene.edge.set_progress = forgotten  # type: ignore[method-assign]
    scene.sender.begin_round()
    while not scene.sender.turn():
        pass
    assert scene.sender.end_round()
    assert "no centre is registered here" == scene.sender.last_error
    scene.edge.set_progress = noted  # type: ignore[method-assign]
    scene.finish()
    check(scene, 9)


def test_new_files_do_not_wait_for_one_that_the_centre_holds_up() -> None:
    """The disk of one group may be full for days. A round that never ended would list nothing of the others.

    One with `--once` does not end: whoever waits for it takes what it had listed for decided.
    """
    scene = Scene(11)
    scene.calm()
    scene.edge.delete_share, scene.centre.full = 0.0, True
    scene.edge.write()
    scene.edge.seal_now()
    scene._live = lambda: None  # type: ignore[method-assign]
    scene.sender._once = True
    with pytest.raises(AssertionError, match="does not end"):
        scene.run_round()
    scene.sender._once = False
    scene.run_round()
    assert [1] == list(scene.centre.held_up)
    scene.centre.full = False
    scene.edge.write()
    scene.edge.seal_now()
    scene.run_round()
    assert {2} == scene.centre.decided
    assert scene.edge.progress < scene.edge.files[0].last
    # Continued, and not sent again.
    chunks = scene.sender.counts.chunks_sent
    scene.centre.make_room()
    scene.finish()
    assert (chunks, 0) == (scene.sender.counts.chunks_sent, scene.sender.counts.chunks_resent)
    check(scene, 11)


def test_a_file_whose_manifest_no_topic_takes_hurts_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """It brings the deletes that outrank it, which may name thousands of devices each. It is left, and shown."""
    scene = scene_of_files(14, 3)
    first, *others = [each.name for each in scene.edge.files]
    send = scene.centre.send_manifest

    def checked(number: int, value: bytes) -> None:
        if first.encode() in value:
            raise RecordTooLarge("a record of 20000000 bytes is more than topic t takes")
        send(number, value)

    monkeypatch.setattr(scene.centre, "send_manifest", checked)
    scene._live = lambda: None  # type: ignore[method-assign]
    for _ in range(4):
        scene.run_round()
    assert set(others) == set(scene.centre.contents)
    left = scene.sender.state.files[first]
    assert (FileState.FAILED, "a record of 20000000 bytes is more than topic t takes") == (left.state, left.error)


class TwoMembers(ModelEdge):
    """An edge of two members with one log: one of them lists, another may be away."""

    def __init__(self, random: Random) -> None:
        super().__init__(random, faults=False, delete_share=0.0)
        self.noted = {"n1": 0, "n2": 0}
        self.here = ["n1", "n2"]
        """Who answers, in the order in which they are asked for files."""

    def describe(self) -> StoreDescription:
        """See SourceStore."""
        self.progress = self.noted[self.here[0]]
        return StoreDescription(STORE, "edge", 3, (StoreGroup("e1", {each: self.noted[each] for each in self.here}),))

    def set_progress(self, progress: Mapping[str, int], lower: bool) -> None:
        """See SourceStore."""
        version = progress["e1"]
        for each in self.here:
            self.noted[each] = min(self.noted[each], version) if lower else max(self.noted[each], version)
        self.progress = self.noted[self.here[0]]


def test_a_member_that_was_away_at_a_resend_leaves_no_file_out() -> None:
    """It has kept the progress from before. Asked for files first, it would leave out all that are to come again."""
    scene = Scene(10)
    scene.calm()
    scene.edge = edge = TwoMembers(scene.random)
    scene.sender = scene.start(power_cut=False)
    scene._live = lambda: None  # type: ignore[method-assign]
    for _ in range(4):
        edge.write()
        edge.seal_now()
    scene.finish()
    names = {each.name for each in edge.files}
    assert edge.noted == {"n1": edge.version, "n2": edge.version}
    edge.here = ["n1"]
    scene.sender.ask_again(None)
    scene.sender.begin_round()
    # Before anything is sent the other one is back, and is asked first: by a sender that was started there.
    edge.here = ["n2", "n1"]
    scene.sender = scene.start(power_cut=False)
    sent = set[str]()
    # A listing may leave files out.
    for _ in range(10):
        scene.run_round()
        assert scene.sender.round is not None
        sent |= {each.file for each in scene.sender.round.files}
    assert sent == names


def test_members_never_have_more_progress_than_the_state() -> None:
    """What is ahead of the state is taken back: it can only be of a member that was away at a resend."""
    for seed in range(20):
        scene = Scene(seed)
        scene.edge.delete_share = 0.0
        noted = scene.edge.set_progress

        def compared(progress: Mapping[str, int], lower: bool, scene: Scene = scene, noted: Any = noted) -> None:
            known = SenderState(scene.log.recovered(power_cut=False)).group("e1").progress
            assert progress["e1"] <= known
            noted(progress, lower=lower)

        scene.edge.set_progress = compared  # type: ignore[method-assign]
        for _ in range(6):
            scene.edge.write()
            scene.edge.seal_now()
            scene.run_round()
