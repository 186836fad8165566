"""The view of the verdicts behind a write that failed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.sync.decided_files import DecidedFiles
from headrace.consumers.sync.view_database import ViewUnwritable
from headrace.schemas.sync_records import SyncVerdict, Verdict, encode_verdict

TOPICS = Topics("c")
SENDER = "00000000-0000-0000-0000-000000000001"


def verdict(number: int) -> SyncVerdict:
    """A file that was accepted."""
    return SyncVerdict(SENDER, number, f"e/1/{number}", bytes(16), Verdict.ACCEPTED)


class FullDisk:
    """A database whose writes fail."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def write(self, _batch: object) -> None:
        """See Rdict."""
        raise OSError("IO error: No space left on device")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_a_view_that_lost_its_newest_verdicts_reads_them_again(tmp_path: Path) -> None:
    """A write fails, and the database that is opened then is older, or damaged and made anew: no verdict is skipped."""
    log = MemoryLog()
    log.create_topic(TOPICS.sync_verdict, {})
    appender, directory = log.appender(), tmp_path / "decided"
    decided = DecidedFiles(log, TOPICS, directory)
    for number in (1, 2):
        appender.append(TOPICS.sync_verdict, encode_verdict(verdict(number)))
    decided.refresh()
    decided._view._open = FullDisk(decided._view._open)  # type: ignore[assignment]
    with pytest.raises(ViewUnwritable):
        decided.note([verdict(3)])
    shutil.rmtree(directory)
    for number in (3, 4):
        appender.append(TOPICS.sync_verdict, encode_verdict(verdict(number)))
    directory.mkdir()
    decided.refresh()
    assert [1, 2, 3, 4] == [decided.number(SENDER, f"e/1/{number}") for number in range(1, 5)]
    decided.close()


def test_a_verdict_that_could_not_be_kept_is_known_and_kept_with_the_next_one(tmp_path: Path) -> None:
    """A receiver forgets the name of a decided file at once, and may have no other place that knows it."""
    log = MemoryLog()
    log.create_topic(TOPICS.sync_verdict, {})
    decided = DecidedFiles(log, TOPICS, tmp_path / "decided")
    decided._view._open = FullDisk(decided._view._open)  # type: ignore[assignment]
    with pytest.raises(ViewUnwritable):
        decided.note([verdict(3)])
    assert 3 == decided.number(SENDER, "e/1/3")
    decided.note([verdict(4)])
    decided.close()
    again = DecidedFiles(log, TOPICS, tmp_path / "decided")
    assert [3, 4] == [again.number(SENDER, f"e/1/{number}") for number in (3, 4)]
    again.close()


def test_a_number_that_no_manifest_has_decides_nothing(tmp_path: Path) -> None:
    """A foreign verdict with a number at the edge of 64 bits kept every later manifest of its file without an answer."""
    log = MemoryLog()
    log.create_topic(TOPICS.sync_verdict, {})
    for number in (2, 2**63 - 1):
        log.store(TOPICS.sync_verdict, encode_verdict(replace(verdict(1), number=number)), None, ())
    decided = DecidedFiles(log, TOPICS, tmp_path / "decided")
    decided.refresh()
    assert 2 == decided.number(SENDER, "e/1/1")
    decided.close()
