"""Requests of many clients are written in few batches, and nobody suffers from another client's lines."""

from __future__ import annotations

import base64
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.connectors.formats.interface import TimeUnit
from headrace.connectors.log.memory import MemoryAppender
from headrace.connectors.log.port import AppendFailed, AppendUnknown
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.producers import line_batches
from headrace.producers.group_writer import GroupWriter, WritesWaiting
from headrace.producers.line_batches import LineBatches, LinesRefused
from headrace.producers.line_requests import LineAnswer, LineRequest
from headrace.producers.sender import WriteFailed, WriteUnknown
from headrace.producers.writer import WriterSettings
from headrace.schemas.errors import HeadraceError
from headrace.schemas.messages import Write
from headrace.schemas.payload import decode_rows
from headrace.schemas.tables import COLUMNS_MAX, FieldType, SchemaError
from tests.unit.producers.scene import TOPICS, FailingAppender, Scene

WAIT_S = 20
T0_MS = 1_700_000_000_000


class HeldAppender(MemoryAppender):
    """Appends nothing before it is released."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene.log)
        self.arrived, self.released = threading.Event(), threading.Event()

    def append(self, topic: str, value: bytes, **given: Any) -> None:
        """See Appender."""
        self.arrived.set()
        assert self.released.wait(WAIT_S)
        super().append(topic, value, **given)


def lines(body: str, database: str = "db", unit: TimeUnit = "s", *, whole: bool = False) -> LineRequest:
    """A request."""
    return LineRequest(database, unit, body.encode(), T0_MS, whole)


def opened(scene: Scene, appender: MemoryAppender | None = None, waiting_bytes_max: int = 1 << 20) -> GroupWriter:
    """A group writer of the scene's cluster."""
    cluster = replace(scene.cluster, appender=appender) if appender else scene.cluster
    return GroupWriter(cluster, WriterSettings(), waiting_bytes_max)


@pytest.fixture
def writer(scene: Scene) -> Iterator[GroupWriter]:
    """A group writer, closed at the end."""
    made = opened(scene)
    yield made
    made.close(WAIT_S)


def answer(future: Future[LineAnswer]) -> LineAnswer:
    """The answer of a request."""
    return future.result(WAIT_S)


def test_requests_that_wait_are_one_batch(scene: Scene) -> None:
    """A thousand clients write while the first one is on its way: all of theirs is one more batch, in their order."""
    appender = HeldAppender(scene)
    writer = opened(scene, appender)
    first = writer.submit(lines("m,h=a v=0i 1"))
    assert appender.arrived.wait(WAIT_S)
    others = [writer.submit(lines(f"m,h=a v={number}i 2")) for number in range(1, 1_001)]
    assert (1_001, True) == (writer.statistics.waiting_requests, writer.statistics.waiting_bytes > 10_000)
    appender.released.set()
    assert {1} == {answer(each).rows for each in (first, *others)}
    writer.close(WAIT_S)
    found = writer.statistics
    assert (2, 1_001, 0, 0) == (found.batches, found.rows, found.waiting_requests, found.waiting_bytes)
    # Of rows with the same series and time the last one counts, so the order matters.
    assert [0, *range(1, 1_001)] == [dict(fields)["v"] for _, _, fields in scene_rows(scene)]


def scene_rows(scene: Scene) -> list[tuple[str, int, Any]]:
    """Every row in the order of the log."""
    return sorted(scene.rows(), key=lambda row: (row[1], dict(row[2])["v"]))


def test_databases_and_units_are_batches_of_their_own(scene: Scene, writer: GroupWriter) -> None:
    """Rows come to the database and the time that their request names."""
    futures = [writer.submit(lines("m,h=a v=1 1", database, unit)) for database in ("a", "b") for unit in ("s", "ms")]
    assert [1, 1, 1, 1] == [answer(each).rows for each in futures]
    found = set()
    for _, message in scene.messages():
        assert isinstance(message.body, Write)
        found |= {(message.body.database, time) for time in decode_rows(message.body.rows).column("time").to_pylist()}
    assert {("a", 10**9), ("a", 10**6), ("b", 10**9), ("b", 10**6)} == found


def test_bad_lines_are_refused_and_good_ones_written(scene: Scene, writer: GroupWriter) -> None:
    """By the type that the table has: also where the first request of the same batch made it."""
    first = answer(writer.submit(lines("m,h=a v=1i 1")))
    assert (1, []) == (first.rows, first.refused)
    found = answer(writer.submit(lines('m,h=a v="x" 2\nm,h=a v=2i 3\nnonsense')))
    ((topic, offset),) = first.offsets.items()
    assert offset < found.offsets[topic]
    assert (1, [1, 3]) == (found.rows, [each.line for each in found.refused])
    assert [1, 3] == [time // 10**9 for _, time, _ in scene.rows()]


def test_a_whole_request_with_a_bad_line_writes_nothing(scene: Scene, writer: GroupWriter) -> None:
    """The error names the lines; a good one is written as any other."""
    with pytest.raises(LinesRefused, match="line 2") as raised:
        answer(writer.submit(lines("m,h=a v=1 1\nbad", whole=True)))
    assert (0, [2]) == (raised.value.answer.rows, [each.line for each in raised.value.answer.refused])
    assert 1 == answer(writer.submit(lines("m,h=a v=1 1", whole=True))).rows
    assert 1 == len(scene.rows())


def test_a_table_or_column_that_cannot_be_costs_its_lines_alone(scene: Scene, writer: GroupWriter) -> None:
    """Names that differ only in case: other lines of the table, other tables and other clients are written."""
    answer(writer.submit(lines("aa,h=a v=1i 1")))
    found = answer(writer.submit(lines("zz,h=a v=1i 1\nAA,h=a v=2i 1\naa,h=b v=3i 1\naa,H=c v=4i 1\naa,h=d v=5i 1")))
    assert (3, [2, 4]) == (found.rows, [each.line for each in found.refused])
    assert all("only in case" in each.reason for each in found.refused), found.refused
    assert [1, 1, 3, 5] == sorted(dict(values)["v"] for _, _, values in scene.rows())
    before = len(scene.rows())
    for body in ("AA,h=a v=1i 1\nzz,h=a v=1i 1", "zz,h=a v=1i 1\naa,H=a v=1i 1\naa,h=a v=1i 1"):
        with pytest.raises(LinesRefused, match="only in case"):
            answer(writer.submit(lines(body, whole=True)))
    assert before == len(scene.rows())
    # Nobody's database may be another one's.
    other = answer(writer.submit(lines("m v=1i 1\nn v=1i 1", "DB")))
    assert (0, 2) == (other.rows, other.refused_count)


def test_a_column_too_many_costs_its_lines_alone(scene: Scene, writer: GroupWriter) -> None:
    """Of a table that has all columns but one, other lines are written; what a refused one has takes no place."""
    values = ",".join(f"v{number}=1" for number in range(COLUMNS_MAX - 2))
    answer(writer.submit(lines(f"m,h=a {values} 1")))
    found = answer(writer.submit(lines("m,h=a v1=2 2\nm,h=a a=1,x=3 3\nm,h=a,z=1 v1=4 4\nm,h=a y=5 5\nm,h=b v1=6 6")))
    assert (3, [2, 4]) == (found.rows, [each.line for each in found.refused])
    assert all("is the most" in each.reason for each in found.refused), found.refused
    assert [1, 2, 4, 6] == sorted(time // 10**9 for _, time, _ in scene.rows())
    with pytest.raises(LinesRefused, match="line 1: .* is the most"):
        answer(writer.submit(lines("m,h=a x=3 3\nm,h=a v1=2 2", whole=True)))


def test_a_row_that_no_message_holds_costs_its_line_alone(scene: Scene) -> None:
    """Other lines are written, of its table as well, and in their order."""
    writer = opened(scene, waiting_bytes_max=1 << 25)
    text = base64.b64encode(random.Random(1).randbytes(9_000_000)).decode()
    found = answer(writer.submit(lines(f'a v=1 1\nm,h=a v=1 1\nm,h=a s="{text}" 2\nm,h=a v=2 1\nz v=1 1')))
    assert (4, [3]) == (found.rows, [each.line for each in found.refused])
    assert "a message holds" in found.refused[0].reason
    bodies = [message.body for _, message in scene.messages()]
    tables = [decode_rows(body.rows) for body in bodies if isinstance(body, Write) and body.table == "m"]
    assert [1, 2] == [value for rows in tables for value in rows.column("v").to_pylist()]
    assert 4 == len(scene.rows())
    writer.close(WAIT_S)


def test_columns_that_another_node_has_made_cost_their_lines_alone(scene: Scene, writer: GroupWriter) -> None:
    """Also where this one reads of them while it writes: they have another type there, or are tags."""
    answer(writer.submit(lines("m,h=a v=1 1")))
    others = SchemaLog(scene.log, TOPICS)
    others.refresh()
    others.ensure("db", "m", ["h", "place"], {"state": FieldType.STRING})
    others.close()
    body = "m,h=a v=2 2\nm,h=a state=3i 3\nm,h=a v=4,place=4 4\nm,h=b v=5 5\nm,h=a,state=on v=6 6"
    found = answer(writer.submit(lines(body)))
    assert (2, [2, 3, 5]) == (found.rows, [each.line for each in found.refused])
    assert ["'state'", "'place'", "'state'"] == [each.reason.split()[1] for each in found.refused], found.refused
    assert [1, 2, 5] == sorted(time // 10**9 for _, time, _ in scene.rows())


@pytest.mark.parametrize(("first", "second"), [("m", "M"), ("M", "m"), ("kW", "KW")])
def test_of_two_spellings_of_a_new_table_the_first_line_wins(
    scene: Scene, writer: GroupWriter, first: str, second: str
) -> None:
    """In whatever order the names are; the line with the other one is refused."""
    found = answer(writer.submit(lines(f"o v=1 1\n{first} v=1 1\n{second} v=2 1\n{first} v=3 2")))
    assert (3, [3]) == (found.rows, [each.line for each in found.refused])
    assert [1, 1, 3] == sorted(dict(values)["v"] for _, _, values in scene.rows())


def test_an_error_of_one_client_is_not_that_of_others(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that fails for its content is written request by request."""
    refused = SchemaError("this table cannot be")
    original = LineBatches._append

    def append(self: LineBatches, database: str, table: str, rows: Any) -> Any:
        if "bad" in rows.column("h").to_pylist():
            raise refused
        return original(self, database, table, rows)

    monkeypatch.setattr(LineBatches, "_append", append)
    appender = HeldAppender(scene)
    writer = opened(scene, appender)
    first = writer.submit(lines("m,h=a v=0 1"))
    assert appender.arrived.wait(WAIT_S)
    good, bad, last = (writer.submit(lines(f"m,h={host} v=1 2")) for host in ("good", "bad", "last"))
    appender.released.set()
    assert [1, 1, 1] == [answer(each).rows for each in (first, good, last)]
    assert refused is bad.exception(WAIT_S)
    writer.close(WAIT_S)


@pytest.mark.parametrize(
    ("error", "seen"), [(AppendUnknown("not confirmed"), WriteUnknown), (AppendFailed("refused"), WriteFailed)]
)
def test_a_log_that_fails_fails_the_requests(scene: Scene, error: HeadraceError, seen: type[HeadraceError]) -> None:
    """What may be in the log is reported as unknown, never as written; the next request is written."""
    appender = FailingAppender(scene.log)
    writer = opened(scene, appender)
    appender.errors = [error]
    with pytest.raises(seen):
        answer(writer.submit(lines("m,h=a v=1 1")))
    assert 1 == answer(writer.submit(lines("m,h=a v=1 2"))).rows
    writer.close(WAIT_S)
    assert (1, 1) == (writer.statistics.failed, writer.statistics.rows)


def test_more_bytes_than_the_limit_are_refused_at_once(scene: Scene) -> None:
    """The error is retriable, and what waits is written; so is everything of a writer that is closed."""
    appender = HeldAppender(scene)
    writer = opened(scene, appender, waiting_bytes_max=30)
    first = writer.submit(lines("m,h=a v=0 1"))
    assert appender.arrived.wait(WAIT_S)
    second = writer.submit(lines("m,h=a v=0 2"))
    with pytest.raises(WritesWaiting) as raised:
        writer.submit(lines("m,h=a v=0 3"))
    assert (True, 1) == (raised.value.retriable, writer.statistics.refused_busy)
    appender.released.set()
    writer.close(WAIT_S)
    assert (1, 1) == (answer(first).rows, answer(second).rows)
    with pytest.raises(WritesWaiting, match="stopping"):
        writer.submit(lines("m,h=a v=0 4"))


def test_many_tables_keep_few_writers(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer of a table that was not used for longest is closed, and made again when it is needed."""
    monkeypatch.setattr(line_batches, "WRITERS_MAX", 2)
    writer = opened(scene)
    for number in (1, 2, 3, 1):
        assert 1 == answer(writer.submit(lines(f"t{number},h=a v=1 {number}"))).rows
    assert [("db", "t3"), ("db", "t1")] == list(writer._batches._writers)
    writer.close(WAIT_S)


@pytest.mark.parametrize(
    ("error", "seen"), [(AppendUnknown("not confirmed"), WriteUnknown), (AppendFailed("refused"), WriteFailed)]
)
def test_of_more_tables_than_writers_no_row_is_acknowledged_that_is_not_in_the_log(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, error: HeadraceError, seen: type[HeadraceError]
) -> None:
    """A writer that makes room for another one within a request has rows of that request."""
    monkeypatch.setattr(line_batches, "WRITERS_MAX", 2)
    appender = FailingAppender(scene.log)
    writer = opened(scene, appender)
    appender.errors = [error]
    with pytest.raises(seen):
        answer(writer.submit(lines("a v=1 1\nb v=2 1\nc v=3 1\nd v=4 1")))
    assert 4 == answer(writer.submit(lines("a v=1 1\nb v=2 1\nc v=3 1\nd v=4 1"))).rows
    writer.close(WAIT_S)


def test_a_name_that_no_database_may_have_is_refused(writer: GroupWriter) -> None:
    """Before it waits for anything."""
    with pytest.raises(SchemaError):
        writer.submit(lines("m v=1 1", ".hidden"))


def test_lines_that_are_read_one_by_one_hold_up_nobody(scene: Scene) -> None:
    """A request with many of them is written by another thread: one that came later is answered first."""
    writer = opened(scene, waiting_bytes_max=1 << 24)
    # Compiled code is loaded by the first request.
    answer(writer.submit(lines("m,h=warm v=1 1")))
    began_s = time.monotonic()
    slow = writer.submit(lines("\n".join(f'm,h=a note="\\"",v={number} {number + 1}' for number in range(40_000))))
    quick = writer.submit(lines("m,h=b v=1 1"))
    assert 1 == answer(quick).rows
    quick_s = time.monotonic() - began_s
    assert not slow.done()
    assert 40_000 == slow.result(120).rows
    assert quick_s < (time.monotonic() - began_s) / 2
    writer.close(WAIT_S)
    assert (0, 0) == (writer.statistics.waiting_requests, writer.statistics.waiting_bytes)


def test_of_many_bad_lines_the_first_have_reasons_and_all_are_counted(writer: GroupWriter) -> None:
    """Good lines between them are written, and the bad lines of another request are its own."""
    bad = ["m,h=a v=oops 1"] * 30_000
    body = "\n".join([*bad, "m,h=a v=1 1", *bad])
    first, second = writer.submit(lines(body)), writer.submit(lines("m,h=b v=1 1\nbad"))
    found = first.result(120)
    assert (1, 60_000, 100) == (found.rows, found.refused_count, len(found.refused))
    assert {"the value 'oops' of field 'v' is no number, boolean or quoted string"} == {
        each.reason for each in found.refused
    }
    assert list(range(1, 101)) == [each.line for each in found.refused]
    assert (1, 1, 2) == ((other := answer(second)).rows, other.refused_count, other.refused[0].line)


def test_a_new_table_of_another_unit_is_in_the_log(writer: GroupWriter) -> None:
    """Once, and its rows are taken as they are: of a client that forgets its precision all rows would be of 1970."""
    units: list[tuple[TimeUnit, str]] = [("ns", "1700000000000"), ("ns", "1700000001000")]
    units += [("s", "1700000000"), ("ns", "5000")]
    with capture_logs() as logs:
        for unit, time_of in units:
            assert 1 == answer(writer.submit(lines(f"cpu_{unit} v=1 {time_of}", unit=unit))).rows
        assert 1 == answer(writer.submit(lines("timeless v=1", unit="h"))).rows
    found = [(line["table"], line["precision"], line["looks_like"]) for line in logs if "unit" in line["event"]]
    assert [("db.cpu_ns", "ns", "ms")] == found
