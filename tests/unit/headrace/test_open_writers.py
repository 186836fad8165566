"""The writers of a client: what was dropped without `close` is flushed once more, and kept no longer."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from headrace._open_writers import OpenWriters
from headrace.connectors.log.port import AppendFailed
from headrace.producers.sender import WriteFailed
from headrace.producers.writer import TableWriter
from tests.unit.producers.scene import FailingAppender, Scene, SilentAppender, open_scene, write_one


class Handle:
    """What a user holds."""


class Rows:
    """A RowWriter; `offset` is where its newest row is."""

    def __init__(self, offset: int, *, settled: bool = True) -> None:
        self.offset = offset
        self.is_settled = settled
        self.calls: list[str] = []

    def flush(self) -> dict[str, int]:
        """See RowWriter."""
        self.calls.append("flush")
        return self.newest()

    def newest(self) -> dict[str, int]:
        """See RowWriter."""
        return {"t": self.offset}

    def close(self) -> dict[str, int]:
        """See RowWriter."""
        self.calls.append("close")
        if self.offset < 0:
            raise WriteFailed("lost", rows=1)
        return self.newest()


def kept(writers: OpenWriters) -> list[Any]:
    """Those that are still flushed."""
    return list(writers)


def test_a_writer_that_is_held_is_flushed_each_time() -> None:
    """Until it is closed; what it has reached stays known."""
    writers, held, first = OpenWriters(), Handle(), Rows(3)
    writers.add(first, held)  # type: ignore[arg-type]
    assert {"t": 3} == writers.flush() == writers.flush()
    assert ["flush", "flush"] == first.calls
    writers.close_one(first)  # type: ignore[arg-type]
    assert [] == kept(writers)
    assert {"t": 3} == writers.flush()
    assert ["flush", "flush", "close"] == first.calls


def test_a_dropped_writer_is_flushed_once_more() -> None:
    """The next query has its rows; a thousand of them cost no later call anything."""
    writers, rows = OpenWriters(), [Rows(number, settled=False) for number in range(1_000)]
    for each in rows:
        writers.add(each, Handle())  # type: ignore[arg-type]
    gc.collect()
    assert {"t": 999} == writers.flush() == writers.flush()
    assert {("flush",)} == {tuple(each.calls) for each in rows}
    assert [] == kept(writers)


def test_dropped_writers_with_all_their_reports_are_not_kept() -> None:
    """Also where nobody ever flushes, as in a service that only writes."""
    writers = OpenWriters()
    for number in range(1_000):
        writers.add(Rows(number), Handle())  # type: ignore[arg-type]
    gc.collect()
    writers.add(Rows(0), held := Handle())  # type: ignore[arg-type]
    assert 1 == len(kept(writers))
    assert {"t": 999} == writers.flush()
    del held


def test_every_writer_is_closed_behind_one_that_fails() -> None:
    """The first error is raised in the end."""
    writers, held, rows = OpenWriters(), Handle(), [Rows(-1), Rows(2), Rows(-2)]
    for each in rows:
        writers.add(each, held)  # type: ignore[arg-type]
    with pytest.raises(WriteFailed, match="lost"):
        writers.close()
    assert [["close"]] * 3 == [each.calls for each in rows]
    assert [] == kept(writers)


def test_a_writer_with_a_report_to_come_or_an_error_to_raise_is_not_settled() -> None:
    """A dropped one stays until somebody was given its error."""
    with open_scene() as scene:
        assert _written(scene, FailingAppender(scene.log)).is_settled
        failing = FailingAppender(scene.log)
        writer = _written(scene, failing)
        failing.errors = [AppendFailed("refused")]
        write_one(writer, 1)
        before = writer.is_settled
        with pytest.raises(WriteFailed):
            writer.flush()
        assert (False, True) == (before, writer.is_settled)
        assert not _written(scene, SilentAppender(scene.log)).is_settled


def _written(scene: Scene, appender: Any) -> TableWriter:
    writer = scene.writer(appender=appender)
    write_one(writer, 0)
    return writer
