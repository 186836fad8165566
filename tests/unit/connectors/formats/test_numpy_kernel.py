"""The loops in NumPy, compared with the compiled ones."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.connectors.formats import kernel, kernel_choice, numpy_kernel
from headrace.connectors.formats.interface import FormatOptions
from headrace.connectors.formats.kernel_types import NumberState, ValueKind, Values
from headrace.connectors.formats.lines import Lines, lines_of_buffer
from headrace.connectors.formats.parser import parse_buffer
from headrace.connectors.formats.templates import Template
from tests.unit.connectors.formats.test_kernel import DECIMALS, INTEGERS

MANY = 6_000
SERIES = st.text("mh=,\\ \té", max_size=12)
TEXTS = st.text('ab\\",; \té', max_size=12)
NUMBERS = st.one_of(
    INTEGERS, DECIMALS, st.sampled_from(("null", "nul", "1.", "-", "01", "1e", "9" * 25, "0e" + "0" * 30))
)
TEMPLATES = (
    Template((b"", b" v=", b" "), (b"", b"i", b""), (ValueKind.SERIES, ValueKind.INTEGER, ValueKind.INTEGER)),
    Template((b"", b" v=", b",w="), (b"", b"", b""), (ValueKind.SERIES, ValueKind.FLOAT, ValueKind.FLOAT)),
    Template((b"", b' text_of_a_name="'), (b"", b'"'), (ValueKind.SERIES, ValueKind.TEXT)),
    Template((b"", b","), (b"", b""), (ValueKind.TEXT, ValueKind.FLOAT), strict=True),
    Template((b"", b";"), (b"", b""), (ValueKind.INTEGER, ValueKind.TEXT), quotes=(0, 2), separator=59, strict=True),
)
NUMERIC = (ValueKind.INTEGER, ValueKind.FLOAT)


@st.composite
def inputs(draw: st.DrawFn) -> tuple[Template, list[str]]:
    """A template, and lines of which many match it."""
    template = draw(st.sampled_from(TEMPLATES))
    drawn = {ValueKind.SERIES: SERIES, ValueKind.TEXT: TEXTS, ValueKind.INTEGER: NUMBERS, ValueKind.FLOAT: NUMBERS}
    value = st.tuples(*(drawn[kind] for kind in template.kinds))
    lines = []
    for values in draw(st.lists(value, max_size=12)):
        parts = zip(template.before, values, template.after, strict=True)
        lines.append("".join(before.decode() + text + after.decode() for before, text, after in parts))
    ends = st.sampled_from(("", "", "", "\r", " ", "x"))
    return template, [line + draw(ends) for line in lines]


def read(module: ModuleType, lines: Lines, template: Template) -> tuple[list[int], list[object], bool]:
    """(rows that match, all that is known of their values, whether a text may be other than ASCII)"""
    rows = np.arange(lines.count)
    shape = (template.columns, lines.count + 1)
    starts, ends, whole = (np.zeros(shape, np.int64) for _ in range(3))
    values = Values(starts, ends, whole, np.zeros(shape), np.zeros(shape, np.uint8))
    matched = np.zeros(lines.count, np.int64)
    grammar, literals = template.grammar, template.literal_words
    given_ = (lines.data, lines.words, lines.starts, lines.ends, rows, literals, grammar)
    count, bits = module.parse_lines(*given_, template.separator, template.strict, matched, values)
    known: list[object] = []
    for column, kind in enumerate(template.kinds):
        states = values.states[column, :count]
        computed = values.integers if kind is ValueKind.INTEGER else values.floats
        for line in range(count):
            bounds = (int(starts[column, line]), int(ends[column, line]))
            if kind is ValueKind.FLOAT and states[line] == NumberState.DEFERRED:
                # An exponent of more than nineteen digits is deferred by one of them alone: the value is the same.
                known.append(np.float64(float(lines.data[slice(*bounds)].tobytes())).tobytes())
            elif kind not in NUMERIC or states[line] == NumberState.DEFERRED:
                known.append(bounds)
            elif states[line] == NumberState.NULL:
                known.append(None)
            else:
                known.append(computed[column, line].tobytes())
    return matched[:count].tolist(), known, bool(int(bits) & 0x8080808080808080)


@settings(max_examples=200, deadline=None)
@given(inputs())
@example(
    (
        TEMPLATES[0],
        ["m\\\\ v=1i 2", "m\\ x v=1i 2", "\\  v=1i 2", "m\\\t v=1i 2", " v=1i 2", "m v=-9223372036854775808i 1"],
    )
)
@example((TEMPLATES[1], ["m v=-0,w=1e-22", "m v=9007199254740993,w=1e23", "m v=.5e0000000000000000000001,w=5."]))
def test_all_values_are_those_of_the_compiled_loops(case: tuple[Template, list[str]]) -> None:
    """The same lines match, with the same bytes of every number and the same bounds of every text."""
    template, texts = case
    lines = lines_of_buffer("".join(f"{text}\n" for text in texts if "\n" not in text).encode())
    compiled, small = read(kernel, lines, template), read(numpy_kernel, lines, template)
    assert compiled[:2] == small[:2]
    assert small[2] or not compiled[2]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=9), max_size=12))
def test_any_bytes_are_read_safely(texts: list[bytes]) -> None:
    """No read goes past the end, and arbitrary bytes match as they do in the compiled loops."""
    lines = lines_of_buffer(b"\n".join(texts))
    for template in TEMPLATES:
        assert read(kernel, lines, template)[:2] == read(numpy_kernel, lines, template)[:2]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(("", "a", "b", "ab", "é" * 9, "a" * 40)), min_size=1, max_size=30))
def test_texts_are_copied_and_numbered_alike(texts: list[str]) -> None:
    """Dictionaries have the order of appearance, and texts are copied whole."""
    lines = lines_of_buffer("".join(f"{text}\n" for text in texts).encode())
    answers = []
    for module in (kernel, numpy_kernel):
        slots, codes = np.full(2 << len(texts).bit_length(), -1, np.int32), np.zeros(len(texts), np.int32)
        firsts = np.zeros(len(texts), np.int64)
        count = module.dictionary_encode(lines.words, lines.starts, lines.ends, slots, codes, firsts)
        padded = np.zeros(int((lines.ends - lines.starts).sum()) + 8, np.uint8)
        offsets = np.zeros(len(texts) + 1, np.int32)
        module.gather_texts(
            lines.words, lines.starts, lines.ends, offsets, np.ndarray(len(padded) - 8, "<u8", padded, strides=(1,))
        )
        answers.append((count, codes.tolist(), firsts[:count].tolist(), offsets.tolist(), padded[:-8].tobytes()))
    assert answers[0] == answers[1]


def test_a_parse_of_many_lines_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables and rejections of whole inputs, larger than one step, are equal."""
    odd = [
        "m,h=é v=1e400 5",
        'm,h=x v=1,t="a\\"b" 6',
        "bad",
        "m,h=y v=t 7",
        "# c",
        "",
        'm,h=z s="open',
        'm,h=q s="r" 8',
    ]
    lines = [f"m,h=h{row % 37} v={row / 7!r},n={row}i {1_700_000_000 + row}" for row in range(MANY)]
    lines[4_000:4_000] = odd * 3
    data = "\n".join(lines).encode()
    parsed = []
    for small in (False, True):
        monkeypatch.setattr(kernel_choice, "_small", small)
        parsed.append(parse_buffer("influx", data, FormatOptions()))
    assert parsed[0].tables.keys() == parsed[1].tables.keys()
    for name, table in parsed[0].tables.items():
        assert table.equals(parsed[1].tables[name])
    assert list(parsed[0].rejections()) == list(parsed[1].rejections())


def test_no_compiler_is_loaded() -> None:
    """A process with the small loops parses lines and has not imported Numba."""
    code = (
        "import sys\n"
        "from headrace.connectors.formats.kernel_choice import use_small_loops\n"
        "from headrace.connectors.formats.parser import parse_buffer\n"
        "from headrace.connectors.formats.interface import FormatOptions\n"
        "use_small_loops()\n"
        "parsed = parse_buffer('influx', b'm,h=a v=1.5 1\\n' * 100, FormatOptions())\n"
        "print(parsed.tables['m'].num_rows, 'numba' in sys.modules, 'llvmlite' in sys.modules)\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "100 False False" == answer.stdout.strip()
