"""Arrow streams that differ in their values alone: what is cut out of their bytes is what Arrow reads."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.formats import arrow_streams
from headrace.connectors.formats.interface import FormatOptions, ParseResult
from headrace.connectors.formats.parser import parse_messages

OPTIONS = FormatOptions(table="t", tags=("host", "site"))
KINDS = (pa.int64(), pa.int32(), pa.uint8(), pa.float64(), pa.float32(), pa.timestamp("us"), pa.bool_(), pa.string())


def encoded(texts: Sequence[str], codes: Sequence[int]) -> pa.Array:
    """A tag."""
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(texts, pa.string()))


def stream(table: pa.Table, compression: str | None = None, batches: int = 1) -> bytes:
    """A table as an Arrow stream."""
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for _ in range(batches):
            writer.write_table(table)
    return out.getvalue()


def reading(hosts: Sequence[str], first: int, rows: int = 4) -> bytes:
    """One of many messages of a sender."""
    codes = [number % len(hosts) for number in range(rows)]
    times = pa.array(range(first, first + rows), pa.int64())
    values = pa.array([float(first + each) for each in range(rows)])
    columns = {"host": encoded(hosts, codes), "site": encoded(["north"], [0] * rows), "time": times, "x": values}
    return stream(pa.table(columns))


def parsed(messages: Sequence[bytes | None], *, layouts_max: int = 16) -> ParseResult:
    """Their readings; with no layouts Arrow reads each message."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_streams, "LAYOUTS_MAX", layouts_max)
        return parse_messages("arrow", pa.array(messages, pa.binary()), None, OPTIONS)


def assert_as_arrow(messages: Sequence[bytes | None]) -> ParseResult:
    """The readings, which are those that Arrow gives of each message."""
    result, plain = parsed(messages), parsed(messages, layouts_max=0)
    # As text: a NaN is no NaN.
    assert str(plain.rejections()) == str(result.rejections())
    assert plain.tables.keys() == result.tables.keys()
    for name, rows in plain.tables.items():
        assert rows.schema == result.tables[name].schema
        assert str(rows.to_pylist()) == str(result.tables[name].to_pylist())
    return result


@pytest.fixture
def read_by_arrow(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the messages that Arrow reads."""
    sizes: list[int] = []
    read: Callable[[pa.Buffer], tuple[pa.Schema, list[pa.RecordBatch]]] = arrow_streams._read

    def counted(value: pa.Buffer) -> tuple[pa.Schema, list[pa.RecordBatch]]:
        sizes.append(value.size)
        return read(value)

    monkeypatch.setattr(arrow_streams, "_read", counted)
    return sizes


def test_arrow_reads_one_message_of_each_layout(read_by_arrow: list[int]) -> None:
    """All others are cut; rows stay in order, and each has the text of its own dictionary."""
    senders = (["a", "b"], ["c", "d"], ["b", "c", "long name"])
    result = parsed([reading(senders[number % 3], 10 * number) for number in range(60)])
    assert 3 == len(read_by_arrow)
    rows = result.tables["t"].to_pylist()
    assert [10 * number + each for number in range(60) for each in range(4)] == [row["time"] for row in rows]
    assert ["a", "b", "a", "b", "c", "d", "c", "d", "b", "c", "long name", "b"] == [row["host"] for row in rows[:12]]
    assert [float(row["time"]) for row in rows] == [row["x"] for row in rows]


def test_senders_that_differ_each_time_are_read_by_arrow(read_by_arrow: list[int]) -> None:
    """No message is compared with more layouts than the limit."""
    messages = [reading([f"host {number}"], number) for number in range(100)]
    assert 400 == parsed(messages).rows
    assert len(read_by_arrow) >= 100 - arrow_streams.LAYOUTS_MAX
    assert_as_arrow(messages)


def test_a_code_that_no_dictionary_has_costs_its_message() -> None:
    """Negative or too large, also where another message has a longer dictionary."""
    good, longer = reading(["a", "b"], 0), reading(["a", "b", "c"], 4)
    at = good.index((1).to_bytes(4, "little") + (0).to_bytes(4, "little") + (1).to_bytes(4, "little"))
    bad = [good[:at] + code.to_bytes(4, "little", signed=True) + good[at + 4 :] for code in (2, -1, 2**31 - 1)]
    result = assert_as_arrow([longer, good, *bad, good, longer])
    assert [2, 3, 4] == [each.message for each in result.rejections()]
    assert 16 == result.tables["t"].num_rows


def test_a_message_that_ends_early_is_cut_whatever_it_begins_with() -> None:
    """One with other bytes in place of the mark of its end has the right size and the right head."""
    good = reading(["a"], 0)
    result = assert_as_arrow([good, good[:-8] + bytes(8), good[:-8], good + good[-8:], None, b"", good])
    assert [1, 2, 3] == [each.message for each in result.rejections()]


@st.composite
def senders(draw: st.DrawFn) -> list[bytes]:
    """What one sender may send: some messages with the same columns, and perhaps the same dictionaries."""
    rows, names = draw(st.integers(0, 5)), draw(st.lists(st.sampled_from("uvwx"), unique=True, max_size=3))
    kinds = {name: draw(st.sampled_from(KINDS)) for name in names}
    has_nulls, dictionaries = draw(st.booleans()), draw(st.lists(st.lists(st.text(max_size=3), min_size=1), min_size=1))
    form = draw(st.sampled_from([(None, 1), (None, 1), (None, 1), (None, 2), ("lz4", 1)]))
    messages = []
    for _ in range(draw(st.integers(1, 4))):
        texts = draw(st.sampled_from(dictionaries))
        codes = draw(st.lists(st.integers(0, len(texts) - 1), min_size=rows, max_size=rows))
        times = draw(st.lists(st.integers(0, 2**40), min_size=rows, max_size=rows))
        columns = {"host": encoded(texts, codes), "time": pa.array(times, pa.int64())}
        for name, kind in kinds.items():
            numbers = draw(st.lists(st.integers(0, 100), min_size=rows, max_size=rows))
            values = pa.array([each if kind != pa.bool_() else bool(each & 1) for each in numbers]).cast(kind)
            mask = pa.array([has_nulls and not each % 3 for each in numbers], pa.bool_())
            columns[name] = pa.array(values.to_pylist(), kind, mask=mask.to_numpy(zero_copy_only=False))
        messages.append(stream(pa.table(columns), *form))
    return messages


SENT = given(st.lists(senders(), min_size=1, max_size=3), st.randoms(use_true_random=False), st.integers(0, 3))


@settings(max_examples=400, deadline=None)
@SENT
def test_whatever_is_sent_is_what_arrow_reads(sent: list[list[bytes]], random: Random, broken: int) -> None:
    """Several senders mixed, with nulls, several batches, compressed; bytes of some messages changed."""
    assert_reads(sent, random, broken)


@pytest.mark.soak
@settings(max_examples=10_000, deadline=None, derandomize=False)
@SENT
def test_whatever_is_sent_is_what_arrow_reads_long(sent: list[list[bytes]], random: Random, broken: int) -> None:
    """The same over thousands of random examples."""
    assert_reads(sent, random, broken)


def assert_reads(sent: list[list[bytes]], random: Random, broken: int) -> None:
    """See assert_as_arrow; `broken` messages have a bit that is another one."""
    messages = [message for each in sent for message in each] * 2
    random.shuffle(messages)
    for _ in range(broken):
        at = random.randrange(len(messages))
        changed = bytearray(messages[at])
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
        messages[at] = bytes(changed)
    assert_as_arrow(messages)
