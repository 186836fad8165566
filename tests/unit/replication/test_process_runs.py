"""Two processes under the id of one node: which of them gives way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from headrace.connectors.log.memory import MemoryLog
from headrace.consumers.replication.failure_detector import HEARTBEAT_INTERVAL_MS
from headrace.consumers.replication.heartbeat import Heartbeat
from headrace.consumers.replication.process_runs import RIVAL_MS, OwnRun, ProcessRuns
from headrace.schemas.records import Status
from tests.unit.statuses import STATUS

GAP_MS = 3_000
STEP_MS = 500


def runs_of(statuses: Iterable[tuple[str, int]]) -> ProcessRuns:
    """Runs that have taken these statuses, (incarnation, ms), of node n1."""
    runs = ProcessRuns(GAP_MS)
    for incarnation, elapsed_ms in sorted(statuses, key=lambda each: each[1]):
        runs.observe("n1", incarnation, f"http://{incarnation}", elapsed_ms)
    return runs


def steady(incarnation: str, begin_ms: int, end_ms: int) -> list[tuple[str, int]]:
    """A status in every interval."""
    return [(incarnation, elapsed_ms) for elapsed_ms in range(begin_ms, end_ms, STEP_MS)]


def gives_way(runs: ProcessRuns, incarnation: str) -> str:
    """The address of the process before which one must give way."""
    elder = runs.elder("n1", incarnation)
    return elder.http if elder else ""


def test_of_two_that_send_side_by_side_the_later_one_gives_way() -> None:
    """Once both have sent for 3 s; the first never does."""
    for end_ms, expected in ((4_000, ""), (4_501, "http://a")):
        runs = runs_of([*steady("a", 0, end_ms), *steady("b", 1_001, end_ms)])
        assert ("", expected) == (gives_way(runs, "a"), gives_way(runs, "b"))


def test_a_node_that_starts_again_at_once_does_not_give_way_to_its_former_self() -> None:
    """Statuses of the process before it come late, after its own first ones."""
    runs = runs_of([*steady("a", 0, 5_000), *steady("b", 4_001, 60_000), ("a", 6_900)])
    assert "" == gives_way(runs, "b")


def test_a_process_that_was_stopped_for_long_gives_way_to_the_one_in_its_place() -> None:
    """Its statuses continue behind a gap: it begins a new run."""
    runs = runs_of([*steady("a", 0, 5_000), *steady("b", 20_001, 60_000), *steady("a", 40_000, 60_000)])
    assert ("http://b", "") == (gives_way(runs, "a"), gives_way(runs, "b"))


def test_another_node_is_no_other_process_of_this_one() -> None:
    """Each id is for itself, and a process that was not read yet gives way to nobody."""
    runs = runs_of(steady("a", 0, 10_000))
    runs.observe("n2", "b", "", 1)
    runs.observe("n2", "b", "", 9_000)
    assert runs.elder("n2", "b") is None
    assert runs.elder("n1", "unread") is None


def test_runs_that_ended_are_forgotten() -> None:
    """A node that starts again and again keeps no more than the runs of some seconds."""
    runs = runs_of((str(number), number * GAP_MS) for number in range(1_000))
    assert 1 == len(runs._runs)


def test_a_process_is_silent_while_one_that_was_there_before_it_goes_on() -> None:
    """From the first status behind its own one on, until none has come for two intervals; then its numbers begin anew."""
    own = OwnRun("n1", "b")
    runs = runs_of([("a", 0), ("b", 100)])
    own.look(runs, 0)
    assert not own.is_silent(0), "the other one may have ended"
    runs.observe("n1", "a", "", 500)
    own.look(runs, 400)
    assert [True, True, False] == [own.is_silent(now_ms) for now_ms in (400, 399 + RIVAL_MS, 400 + RIVAL_MS)]
    own.look(runs, 5_000)
    assert not own.is_silent(5_000), "nothing new has come"
    own.look(runs_of([("a", 0), ("b", 100), ("a", 200), ("a", 300)]), 6_000)
    assert own.is_silent(6_000)


class Processes:
    """Two processes of one node, whose turns and whose clock tests take."""

    def __init__(self) -> None:
        self.now_ms = 100_000
        self.log = MemoryLog(clock_ms=lambda: self.now_ms)
        self.log.create_topic("c.status", {})
        self.first, self.second = self._process("a"), self._process("b")
        self.ended: list[str] = []
        for heartbeat in (self.first, self.second):
            heartbeat.on_elder = partial(self._note_end, heartbeat.incarnation)

    def monotonic_s(self) -> float:
        """See Clock."""
        return self.now_ms / 1_000

    def boot_ns(self) -> int:
        """See Clock."""
        return self.now_ms * 1_000_000

    def wall_ns(self) -> int:
        """See Clock."""
        return self.boot_ns()

    def _process(self, incarnation: str) -> Heartbeat:
        def statuses() -> list[Status]:
            return [replace(STATUS, node="n1", incarnation=incarnation, sent_boot_ns=self.boot_ns())]

        return Heartbeat(self.log, "c.status", "n1", incarnation, statuses, clock=self)

    def _note_end(self, incarnation: str, _http: str) -> None:
        self.ended.append(incarnation)

    def turn(self, *heartbeats: Heartbeat) -> None:
        """An interval in which these send, and all receive."""
        self.now_ms += HEARTBEAT_INTERVAL_MS
        for heartbeat in heartbeats:
            heartbeat.send_turn()
        for heartbeat in (self.first, self.second):
            heartbeat.receive_turn()

    @property
    def sent(self) -> int:
        """How many statuses there are."""
        return self.log.describe("c.status").end


def test_of_two_processes_the_later_one_is_fenced_silent_and_ends() -> None:
    """The first one answers at once, and leads on undisturbed, also where it pauses while the other one ends."""
    both = Processes()
    both.turn(both.first)
    both.turn(both.first, both.second)
    assert both.first.send_due, "an answer to the younger one"
    assert not both.second.fenced
    both.turn(both.first, both.second)
    assert (False, True) == (both.first.fenced, both.second.fenced)
    sent = both.sent
    for _ in range(6):
        both.turn(both.first, both.second)
    assert (sent + 6, {"b"}) == (both.sent, set(both.ended)), "the other one sends nothing"
    for _ in range(8):
        both.turn(both.second)
    both.turn(both.first, both.second)
    assert (False, {"b"}) == (both.first.fenced, set(both.ended))


def test_a_process_whose_former_self_has_ended_acts_again() -> None:
    """Its last status came late, behind the first one of the new process."""
    both = Processes()
    both.turn(both.first)
    both.turn(both.second, both.first)
    assert both.second.fenced
    for _ in range(3):
        both.turn(both.second)
    assert (False, []) == (both.second.fenced, both.ended)
