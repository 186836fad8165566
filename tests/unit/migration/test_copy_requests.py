"""What a node that copies ahead asks of the donors and notes to them, without any file."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.consumers.migration.copies_ahead import CopyNote
from headrace.consumers.migration.cut_listing import NOBODY
from headrace.consumers.migration.early_copies import LIST_EVERY_S, EarlyCopies
from headrace.consumers.recovery.file_copy import SourceFailed
from headrace.schemas.messages import Load
from tests.unit.migration.moves import CHANGE

FILE = Load(NOBODY, "c.forward.n1.1@7", 2, "db", "t", 3, 1, 1, 1, 9, 0, bytes(16), 5, 1, 2, 70, 1)
FIRST_PHASE = replace(CHANGE, formal=False)


class Donors:
    """Every node and group that is asked: one kind of source, a pool without threads, and an environment."""

    def __init__(self) -> None:
        self.node = CHANGE.node
        self.groups = self
        self.name = "donor"
        self.answers = True
        self.notes: dict[str, list[CopyNote]] = {}
        environment: Any = self
        self.early = EarlyCopies(environment, environment, environment, lambda: None)

    def __contains__(self, _topic: str) -> bool:
        return True

    def topic(self, key: object) -> str:
        """See PullEnvironment."""
        return str(key)

    def source(self, node: str, key: object) -> Any:
        """See PullEnvironment."""
        asked = f"{node} {key}"
        return SimpleNamespace(name=node, note=lambda note: self.note(asked, note), present=lambda *_: (FILE,))

    def note(self, asked: str, note: CopyNote) -> None:
        """See CutSource."""
        if not self.answers:
            raise SourceFailed("it is gone")
        self.notes.setdefault(asked, []).append(note)

    def submit(self, call: Any, *arguments: Any) -> Future[Any]:
        """See Executor."""
        future: Future[Any] = Future()
        future.set_result(call(*arguments))
        return future

    def begin_ahead(self, _number: int) -> None:
        """See FilePuller."""


@pytest.fixture
def donors() -> Donors:
    """Nobody was asked yet."""
    return Donors()


def test_every_donor_gets_a_note_before_the_first_list(donors: Donors) -> None:
    """Each may be the leader that waits; a note of nothing left would let it report before anything was copied."""
    donors.early.turn(FIRST_PHASE, 0.0)
    wanted = {f"{node} {ahead.pair.donor}" for ahead in donors.early._pairs for node in ahead.donors}
    assert len(wanted) > len(donors.early._pairs)
    assert {asked: [CopyNote(CHANGE.number, CHANGE.node, 1)] for asked in wanted} == donors.notes


def test_files_that_were_listed_stay_known_while_nobody_answers(donors: Donors) -> None:
    """They are copied on, and noted as left, when a donor comes back."""
    donors.early.turn(FIRST_PHASE, 0.0)
    donors.answers = False
    total = 70 * len(donors.early._pairs)
    for turn in range(1, 4):
        donors.early.turn(FIRST_PHASE, 2 * turn * LIST_EVERY_S)
        assert total == donors.early.progress[1]


def test_nobody_is_asked_for_copies_ahead_after_the_cut(donors: Donors) -> None:
    """What is missing then is named by loads, and fetched without another list."""
    donors.early.turn(CHANGE, 0.0)
    donors.early.turn(None, 1.0)
    assert ({}, []) == (donors.notes, donors.early._pairs)
