"""The results of the compiled loops, compared with Python's own numbers and dictionaries."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.formats import kernel, kernel_compiler, kernel_numbers, kernel_types, lines
from headrace.connectors.formats.kernel_types import ValueKind
from headrace.connectors.formats.lines import lines_of_buffer, lines_of_messages
from headrace.connectors.formats.templates import MatchedLines, Template, match
from headrace.connectors.formats.text_columns import FLOAT_TEXT, INT64_MAX, INT64_MIN, INTEGER_TEXT

ROOT = Path(__file__).parents[4]
JSON_NUMBER = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"


def _digits(least: int, most: int) -> st.SearchStrategy[str]:
    return st.text("0123456789", min_size=least, max_size=most)


INTEGERS = st.builds("".join, st.tuples(st.sampled_from(("", "-", "+")), _digits(1, 22)))
EXPONENTS = st.one_of(st.just(""), st.builds("e{}{}".format, st.sampled_from(("", "-", "+")), _digits(1, 4)))
DECIMALS = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(("", "-", "+")),
    _digits(0, 22),
    st.one_of(st.just(""), st.builds(".{}".format, _digits(0, 22))),
    EXPONENTS,
)
TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs"), exclude_characters=",\\"), max_size=40)


def _numbers(texts: list[str], kind: ValueKind, *, strict: bool = False) -> MatchedLines:
    """The lines of one number each that match."""
    lines = lines_of_buffer("".join(f"<{text}>\n" for text in texts).encode())
    return match(lines, Template((b"<",), (b">",), (kind,), strict=strict), np.arange(lines.count))


def _read(
    texts: list[str], kind: ValueKind, grammar: re.Pattern[str], is_usable: Callable[[str], bool]
) -> list[tuple[str, Any]]:
    """The valid numbers among `texts` with their values: texts of the grammar match, and of these the right ones are valid."""
    matched = _numbers(texts, kind)
    assert [place for place, text in enumerate(texts) if grammar.fullmatch(text)] == matched.rows.tolist()
    taken = [texts[row] for row in matched.rows.tolist()]
    values, usable = matched.integers(0) if kind is ValueKind.INTEGER else matched.floats(0)
    good = [True] * len(taken) if usable is None else usable.tolist()
    assert [is_usable(text) for text in taken] == good
    return [(text, value) for text, value, fine in zip(taken, values.to_list(), good, strict=True) if fine]


@settings(max_examples=120)
@given(st.lists(st.one_of(DECIMALS, st.floats().map(repr), st.floats(width=32).map(repr)), max_size=20))
def test_decimal_numbers_are_those_of_python(texts: list[str]) -> None:
    """Every decimal number is rounded to the bit as Python rounds it, however long.

    Infinite ones are unusable, anything else is not taken.
    """
    for text, value in _read(texts, ValueKind.FLOAT, FLOAT_TEXT, lambda text: math.isfinite(float(text))):
        assert float(text).hex() == value.hex()


@settings(max_examples=120)
@given(st.lists(st.one_of(INTEGERS, st.integers(-(2**64), 2**64).map(str), DECIMALS), max_size=20))
def test_integers_are_exact(texts: list[str]) -> None:
    """Every integer that fits int64 is taken exactly; one that does not is unusable; anything else is not taken."""
    for text, value in _read(texts, ValueKind.INTEGER, INTEGER_TEXT, lambda text: INT64_MIN <= int(text) <= INT64_MAX):
        assert int(text) == value


@settings(max_examples=100)
@given(
    st.lists(
        st.one_of(DECIMALS, st.sampled_from(("null", "nul", "nullx", "1.", ".5", "01", "-01", "+1", "-0"))), max_size=20
    )
)
def test_strict_numbers_are_those_of_json(texts: list[str]) -> None:
    """With JSON's grammar no plus, no leading zero and no bare point is taken, and null is a number that is absent."""
    matched = _numbers(texts, ValueKind.FLOAT, strict=True)
    wanted = [place for place, text in enumerate(texts) if text == "null" or re.fullmatch(JSON_NUMBER, text)]
    assert wanted == matched.rows.tolist()
    values, _ = matched.floats(0)
    assert [texts[row] == "null" for row in wanted] == [
        value is None and texts[row] == "null" for row, value in zip(wanted, values.to_list(), strict=True)
    ]


@settings(max_examples=100)
@given(st.lists(TEXTS, max_size=30), st.lists(TEXTS, max_size=3))
def test_distinct_texts_are_numbered_in_order(texts: list[str], often: list[str]) -> None:
    """Texts are unchanged, and their dictionary has each once, in order of appearance."""
    texts = [*texts, *often, *texts, *often]
    lines = lines_of_messages(pa.array([f"a={text},b".encode() for text in texts], pa.binary()))
    matched = match(lines, Template((b"a=",), (b",b",), (ValueKind.TEXT,)), np.arange(lines.count))
    assert np.arange(len(texts)).tolist() == matched.rows.tolist()
    assert texts == matched.texts(0).to_list()
    encode_tags = matched.dictionary(0)
    assert list(dict.fromkeys(texts)) == encode_tags.dictionary.to_pylist()
    assert texts == encode_tags.to_pylist()


@given(st.lists(st.binary(max_size=12), max_size=12))
def test_texts_that_are_not_utf8_are_not_taken(texts: list[bytes]) -> None:
    """Only complete UTF-8 without control characters is matched as text, whatever bytes lines contain."""
    plain = [text.replace(b"\n", b" ") for text in texts]
    lines = lines_of_buffer(b"".join(b"a=" + text + b",\n" for text in plain))
    matched = match(lines, Template((b"a=",), (b",",), (ValueKind.TEXT,)), np.arange(lines.count))
    for row, text in zip(matched.rows.tolist(), matched.texts(0).to_list(), strict=True):
        assert plain[row] == text.encode()
    taken = set(matched.rows.tolist())
    for row, text in enumerate(plain):
        good = b"," not in text and min(text, default=32) >= 32 and text.decode(errors="ignore").encode() == text
        assert good == (row in taken)


@pytest.mark.slow(10)
def test_it_runs_from_an_archive_on_a_read_only_disk(tmp_path: Path) -> None:
    """Spark ships the packages as one zip.

    Where nothing can be cached, a process compiles the code itself, with the same result.
    """
    archive = tmp_path / "packages.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.write(ROOT / "headrace/__init__.py", "headrace/__init__.py")
        for folder in ("schemas", "connectors"):
            for file in (ROOT / folder).rglob("*.py"):
                packed.write(file, f"headrace/{file.relative_to(ROOT)}")
    code = (
        "import headrace.connectors, numpy as np\n"
        "from headrace.connectors.formats.parser import parse_buffer\n"
        "from headrace.connectors.formats.interface import FormatOptions\n"
        "parsed = parse_buffer('influx', b'cpu,host=a v=1.5 1\\n' * 100, FormatOptions())\n"
        "print(headrace.connectors.__file__, parsed.tables['cpu']['v'].to_pylist() == [1.5] * 100)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(archive), "HOME": "/proc/nowhere", "XDG_CACHE_HOME": "/proc/nowhere"}
    answer = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert f"{archive}/headrace/connectors/__init__.py True" == answer.stdout.strip()


@pytest.mark.parametrize("text", [b"", b"\n", b"\r\n", b"1", b"\n\n1", b"1\r", b"\x00"])
def test_the_ends_of_a_buffer_are_read_safely(text: bytes) -> None:
    """No read goes past the end of the shortest buffers."""
    lines = lines_of_buffer(text)
    matched = match(lines, Template((b"",), (b"",), (ValueKind.INTEGER,)), np.arange(lines.count))
    assert [line for line in range(lines.count) if lines.text(line) == b"1"] == matched.rows.tolist()


def test_cached_code_is_stale_when_anything_compiled_in_changes() -> None:
    """Numba checks only the kernel's file: a change in modules that it compiles in must change its stamp."""
    constants = repr((lines.BACKSLASH, lines.NEWLINE, lines.QUOTE, lines.WORD_BYTES))
    source = "".join(
        Path(str(module.__file__)).read_text() for module in (kernel_types, kernel_compiler, kernel_numbers)
    )
    assert xxhash.xxh3_64_hexdigest((source + constants).encode()) == kernel.STAMP


@pytest.mark.slow(4)
def test_a_torn_file_of_cached_code_is_ignored(tmp_path: Path) -> None:
    """A cache file torn by a power cut costs the time to compile its function, never the command.

    One function has a torn index, another one a torn file of code; the third one, which takes longest to compile, is whole.
    """
    shutil.copytree(ROOT / "headrace", tmp_path / "headrace", ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path / "headrace" / "connectors" / "formats"
    # Numba finds them under these names as long as the source's size and time of change are the same.
    cached = list((Path(kernel.__file__).parent / "__pycache__").glob("kernel.*.nb?"))
    (folder / "__pycache__").mkdir()
    torn = set()
    for file in cached:
        function = file.name.removeprefix("kernel.").partition("-")[0]
        is_torn = (function, file.suffix) in {("gather_texts", ".nbi"), ("dictionary_encode", ".nbc")}
        (folder / "__pycache__" / file.name).write_bytes(b"torn" if is_torn else file.read_bytes())
        torn |= {function} if is_torn else set()
    assert {"gather_texts", "dictionary_encode"} == torn
    code = (
        "import headrace.connectors.formats.kernel as kernel\n"
        "functions = kernel.parse_lines, kernel.gather_texts, kernel.dictionary_encode\n"
        "print(kernel.__file__, *(sum(each.stats.cache_hits.values()) for each in functions))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert f"{folder}/kernel.py 1 0 0" == answer.stdout.strip()
