"""Two processes under the id of one node: which of them gives way."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.consumers.replication.process_runs import ProcessRuns

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
    """Its statuses go on with a gap: it begins a new run."""
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
