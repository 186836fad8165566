"""Files of slots that will move are copied in the first phase, and every copy that is not needed is removed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.migration import peer_cut
from headrace.consumers.migration.peer_cut import PeerCut
from headrace.consumers.migration.slot_pull import donors_of, moved_pairs
from headrace.consumers.recovery.file_copy import SourceFailed, complete_file
from headrace.consumers.store import StoreFull
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.messages import Seal
from headrace.schemas.series import slot_of
from tests.unit.migration.conftest import of_some_slots
from tests.unit.migration.moves import ANCHOR, BASE, CHANGE, SLOTS, TABLES, TARGET, Moves, random_rows, topic_of
from tests.unit.migration.test_puller import finished

pytestmark = pytest.mark.slow(1.5)

FIRST_PHASE = MembershipState(records=1, table=BASE, changes=1, change=replace(CHANGE, formal=False))


@pytest.fixture
def first_phase(tmp_path: Path) -> Iterator[Moves]:
    """Sealed rows in every group, the new group open at its members, and a change in its first phase."""
    moves = Moves(tmp_path)
    second_phase, moves.state = moves.state, FIRST_PHASE
    try:
        for seed, table in enumerate(TABLES, 1):
            moves.write(table, of_some_slots(table, random_rows(seed)))
        seal(moves)
        moves.open_target()
        moves.serve()
        yield moves
        assert second_phase.change == CHANGE
    finally:
        moves.close()


def seal(moves: Moves) -> None:
    """What the groups of the old table have is in files."""
    for header in BASE.headers:
        topic = topic_of(GroupKey(header, 1))
        moves.append(topic, Seal(moves.leaders[topic], ANCHOR))


def formal(moves: Moves) -> None:
    """The new table counts, and the second phase reaches every group."""
    moves.state = replace(FIRST_PHASE, table=CHANGE.table, change=CHANGE)
    moves.cut()
    moves.hand_over()


def staged(moves: Moves, node: str) -> set[str]:
    """The contents of the files that are staged at a node."""
    return {path.stem for path in moves.nodes[node].target.store.staging_directory.glob("*.parquet")}


def present(moves: Moves, node: str, *, linked: bool = False) -> set[str]:
    """The contents of the files that will move to a node: out of groups of which it is a member, or of others."""
    found = set()
    for pair in moved_pairs(CHANGE, node):
        if (node in donors_of(CHANGE, pair, node)) is linked:
            for entry in moves.nodes[pair.donor.group].groups[topic_of(pair.donor)].store.segments():
                if slot_of(entry.database, entry.bucket, entry.slice_number, SLOTS) in pair.slots:
                    found.add(entry.content_digest)
    return found


@pytest.mark.usefixtures("one_by_one")
def test_what_is_in_files_before_the_cut_is_not_fetched_after_it(
    first_phase: Moves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what is sealed in the first phase. Rows that come later arrive with the cut, and no row is lost."""
    first_phase.turns(count=3)
    before = staged(first_phase, "n4")
    figures = first_phase.nodes["n4"].puller.figures
    assert 0 < figures.bytes_total == figures.bytes_done
    assert before == present(first_phase, "n4")
    first_phase.write("disk", of_some_slots("disk", random_rows(3)))
    seal(first_phase)
    first_phase.turns(count=4)
    early = staged(first_phase, "n4")
    assert before < early
    assert early == present(first_phase, "n4")
    first_phase.write("disk", of_some_slots("disk", random_rows(4, 20)))
    fetched: list[str] = []
    stage = PeerCut.stage

    def noted(source: PeerCut, entry: Any, *arguments: Any) -> bool:
        fetched.append(entry.content_digest)
        return stage(source, entry, *arguments)

    monkeypatch.setattr(PeerCut, "stage", noted)
    formal(first_phase)
    first_phase.turns("n4", count=5)
    assert fetched
    assert early.isdisjoint(fetched)
    first_phase.turns(count=10)
    finished(first_phase)


def test_a_member_of_both_groups_copies_nothing_that_it_will_link(first_phase: Moves) -> None:
    """Whichever groups it has, or joins: only the files of the others are copied."""
    first_phase.turns(count=2)
    assert present(first_phase, "n3", linked=True)
    for node in ("n3", "n4"):
        assert staged(first_phase, node) == present(first_phase, node)


def test_a_cancelled_change_leaves_no_copy(first_phase: Moves) -> None:
    """A group that was there before it has its staging directory emptied."""
    first_phase.turns(count=2)
    assert staged(first_phase, "n4")
    first_phase.state = replace(FIRST_PHASE, change=None)
    first_phase.turns(count=2)
    assert not staged(first_phase, "n4")


@pytest.mark.usefixtures("one_by_one")
def test_a_donor_that_fails_ahead_is_asked_again_after_the_cut(
    first_phase: Moves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is tried once ahead, and no fault is shown for it: nothing waits for it yet."""
    tried: list[str] = []

    def failing(_source: PeerCut, entry: Any, *_arguments: Any) -> bool:
        tried.append(entry.content_digest)
        raise SourceFailed("it is gone", retriable=True)

    with monkeypatch.context() as patched:
        patched.setattr(PeerCut, "stage", failing)
        first_phase.turns("n4", count=5)
    assert set(tried) == present(first_phase, "n4")
    assert len(tried) <= 2 * len(set(tried))
    puller = first_phase.nodes["n4"].puller
    assert "" == puller.files.fault(topic_of(TARGET))
    formal(first_phase)
    first_phase.turns(count=10)
    finished(first_phase)


@pytest.mark.usefixtures("one_by_one")
def test_a_full_disk_ends_the_copying_ahead_and_nothing_else(
    first_phase: Moves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of the space is for what is due; after the cut the same files are fetched."""
    full: list[str] = []

    def no_space(_source: PeerCut, entry: Any, *_arguments: Any) -> bool:
        full.append(entry.content_digest)
        raise StoreFull("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(PeerCut, "stage", no_space)
        first_phase.turns("n4", count=5)
    assert 1 == len(full)
    assert "" == first_phase.nodes["n4"].puller.files.disk_fault
    formal(first_phase)
    first_phase.turns(count=10)
    finished(first_phase)


def test_copies_survive_a_restart_in_between(first_phase: Moves, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that is killed after the cut finds what it staged before, and fetches none of it."""
    first_phase.turns(count=2)
    early = staged(first_phase, "n4")
    formal(first_phase)
    first_phase.nodes["n4"].restart(TARGET, first_phase.founding)
    assert early == staged(first_phase, "n4")
    fetched: list[str] = []

    def noted(read: Any, file: Any, *arguments: Any) -> None:
        fetched.append(Path(file.path).stem)
        complete_file(read, file, *arguments)

    monkeypatch.setattr(peer_cut, "complete_file", noted)
    first_phase.turns(count=10)
    assert early.isdisjoint(fetched)
    finished(first_phase)


def test_a_list_that_no_node_writes_is_no_reason_to_fail(first_phase: Moves, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copying ahead waits for a better one; the change itself does not."""
    with monkeypatch.context() as patched:
        patched.setattr(PeerCut, "_document", lambda *_arguments: {"files": [{"database": 3}]})
        first_phase.turns("n4", count=3)
    assert not staged(first_phase, "n4")
    formal(first_phase)
    first_phase.turns(count=10)
    finished(first_phase)
