"""A member of a donor recovers by the files of another member while its slots are on their way to their new holder."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.connectors.files import Buffer
from headrace.consumers.recovery.file_copy import RECOVERING, Snapshot, commit_copy, fetch, finish_swaps
from headrace.consumers.recovery.progress import Recovery
from headrace.consumers.replication.founding import Founding
from headrace.consumers.serve.snapshots import SnapshotRegistry
from headrace.consumers.store import Slots, Store
from headrace.consumers.store.cut import HoldJob
from headrace.schemas.group_changes import GroupKey
from tests.unit.migration.moves import BASE, SLOTS, TABLE, Moves, random_rows, topic_of
from tests.unit.migration.test_puller import finished
from tests.unit.store.builders import contents
from tests.unit.store.test_deletes import last

DONOR = GroupKey("n1", 1)
SOURCE, RECOVERED = BASE.group("n1")
LEAVING = Slots(frozenset(slot for slot, former in TABLE.moved if former == "n1"), SLOTS)


class Files:
    """The files of a store as one snapshot. A `Source`."""

    def __init__(self, directory: Path, store: Store) -> None:
        self._registry = SnapshotRegistry(directory)
        self._snapshot = self._registry.make("n1", "topic", 1, store)

    def open(self) -> Snapshot:
        """See Source."""
        return self._snapshot

    def read(self, snapshot: Snapshot, path: str, offset: int) -> Iterator[Buffer]:
        """See Source."""
        yield from self._registry.open(snapshot.id, path, offset)[1]

    def release(self, snapshot: Snapshot) -> None:
        """See Source."""
        self._registry.release(snapshot.id)


@pytest.fixture
def uncut(tmp_path: Path) -> Iterator[Moves]:
    """Rows and deletes in every group, before the cut."""
    made = Moves(tmp_path)
    try:
        made.write("cpu", random_rows(1))
        made.write("disk", random_rows(2))
        made.delete("cpu", "h1", 0, 1 << 60)
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("held", [True, False], ids=["behind the hold", "between the cut and the hold"])
def test_a_member_that_recovered_gives_the_files_of_slots_that_left(
    uncut: Moves, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    """It shows none of their rows, lists the same cut as the others, and the new holder gets everything from it alone."""
    moves, topic = uncut, topic_of(DONOR)
    source = moves.nodes[SOURCE].groups[topic]
    made: list[Files] = []
    execute = HoldJob._execute

    def execute_and_copy(job: HoldJob) -> None:
        # The moment between the two jobs of a cut: files and state are those of its seal, and nothing holds them yet.
        if not held and job._components is source.store._components:
            made.append(Files(moves.directory / SOURCE, source.store))
        execute(job)

    monkeypatch.setattr(HoldJob, "_execute", execute_and_copy)
    moves.cut()
    if held:
        made.append(Files(moves.directory / SOURCE, source.store))
    node = moves.nodes[RECOVERED]
    before = node.groups.pop(topic)
    (cut_version,) = before.applied.changes.cuts
    before.store.close()
    data = moves.directory / RECOVERED
    for part in ("segments", "index"):
        shutil.rmtree(data / part / "n1")
    fetch(made[0], data / RECOVERING / "n1", Recovery("lost", False, threading.Event(), 0))
    commit_copy(data, "n1")
    assert ["n1"] == finish_swaps(data)
    recovered = node.open(DONOR, Founding(BASE.group("n1")))
    assert contents(source.store) == contents(recovered.store)
    assert last(source.store) == last(recovered.store)
    assert source.store.cut_files()
    assert source.store.cut(cut_version, LEAVING) == recovered.store.cut(cut_version, LEAVING)
    assert source.store.digests() == recovered.store.digests()
    moves.open_target()
    moves.serve()
    moves.nodes[SOURCE].leave()
    moves.hand_over()
    moves.turns(count=8)
    finished(moves)
