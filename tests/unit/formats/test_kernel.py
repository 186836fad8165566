"""What the compiled loops compute, against Python's own numbers and dictionaries."""

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

from connectors.formats import kernel, kernel_types, lines
from connectors.formats.kernel_types import Kind
from connectors.formats.lines import lines_of_buffer, lines_of_messages
from connectors.formats.templates import Matched, Template, match
from connectors.formats.values import FLOAT_TEXT, INT64_MAX, INT64_MIN, INTEGER_TEXT

ROOT = Path(__file__).parents[3]
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


def _numbers(texts: list[str], kind: Kind, *, strict: bool = False) -> Matched:
    """What is taken of lines of one number each."""
    lines = lines_of_buffer("".join(f"<{text}>\n" for text in texts).encode())
    return match(lines, Template((b"<",), (b">",), (kind,), strict=strict), np.arange(lines.count))


def _read(
    texts: list[str], kind: Kind, grammar: re.Pattern[str], is_usable: Callable[[str], bool]
) -> list[tuple[str, Any]]:
    """The usable numbers among `texts` with the values they were read as: taken is what has the grammar, usable of that what should be."""
    matched = _numbers(texts, kind)
    assert [place for place, text in enumerate(texts) if grammar.fullmatch(text)] == matched.rows.tolist()
    taken = [texts[row] for row in matched.rows.tolist()]
    values, usable = matched.integers(0) if kind is Kind.INTEGER else matched.floats(0)
    good = [True] * len(taken) if usable is None else usable.tolist()
    assert [is_usable(text) for text in taken] == good
    return [(text, value) for text, value, fine in zip(taken, values.to_list(), good, strict=True) if fine]


@settings(max_examples=300)
@given(st.lists(st.one_of(DECIMALS, st.floats().map(repr), st.floats(width=32).map(repr)), max_size=20))
def test_decimal_numbers_are_those_of_python(texts: list[str]) -> None:
    """Every decimal number is rounded to the bit as Python rounds it, however long; infinite ones are unusable, anything else is not taken."""
    for text, value in _read(texts, Kind.FLOAT, FLOAT_TEXT, lambda text: math.isfinite(float(text))):
        assert float(text).hex() == value.hex()


@settings(max_examples=300)
@given(st.lists(st.one_of(INTEGERS, st.integers(-(2**64), 2**64).map(str), DECIMALS), max_size=20))
def test_integers_are_exact(texts: list[str]) -> None:
    """Every integer that fits int64 is taken exactly; one that does not is unusable; anything else is not taken."""
    for text, value in _read(texts, Kind.INTEGER, INTEGER_TEXT, lambda text: INT64_MIN <= int(text) <= INT64_MAX):
        assert int(text) == value


@settings(max_examples=200)
@given(
    st.lists(
        st.one_of(DECIMALS, st.sampled_from(("null", "nul", "nullx", "1.", ".5", "01", "-01", "+1", "-0"))), max_size=20
    )
)
def test_strict_numbers_are_those_of_json(texts: list[str]) -> None:
    """With JSON's grammar no plus, no leading zero and no bare point is taken, and null is a number that is absent."""
    matched = _numbers(texts, Kind.FLOAT, strict=True)
    wanted = [place for place, text in enumerate(texts) if text == "null" or re.fullmatch(JSON_NUMBER, text)]
    assert wanted == matched.rows.tolist()
    values, _ = matched.floats(0)
    assert [texts[row] == "null" for row in wanted] == [
        value is None and texts[row] == "null" for row, value in zip(wanted, values.to_list(), strict=True)
    ]


@settings(max_examples=200)
@given(st.lists(TEXTS, max_size=30), st.lists(TEXTS, max_size=3))
def test_distinct_texts_are_numbered_in_order(texts: list[str], often: list[str]) -> None:
    """Texts come out whole, and their dictionary has each once, in order of appearance."""
    texts = [*texts, *often, *texts, *often]
    lines = lines_of_messages(pa.array([f"a={text},b".encode() for text in texts], pa.binary()))
    matched = match(lines, Template((b"a=",), (b",b",), (Kind.TEXT,)), np.arange(lines.count))
    assert np.arange(len(texts)).tolist() == matched.rows.tolist()
    assert texts == matched.texts(0).to_list()
    encoded = matched.encoded(0)
    assert list(dict.fromkeys(texts)) == encoded.dictionary.to_pylist()
    assert texts == encoded.to_pylist()


@given(st.lists(st.binary(max_size=12), max_size=12))
def test_texts_that_are_not_utf8_are_not_taken(texts: list[bytes]) -> None:
    """Whatever bytes stand in lines, only whole UTF-8 without control characters is taken as text."""
    plain = [text.replace(b"\n", b" ") for text in texts]
    lines = lines_of_buffer(b"".join(b"a=" + text + b",\n" for text in plain))
    matched = match(lines, Template((b"a=",), (b",",), (Kind.TEXT,)), np.arange(lines.count))
    for row, text in zip(matched.rows.tolist(), matched.texts(0).to_list(), strict=True):
        assert plain[row] == text.encode()
    taken = set(matched.rows.tolist())
    for row, text in enumerate(plain):
        good = b"," not in text and min(text, default=32) >= 32 and text.decode(errors="ignore").encode() == text
        assert good == (row in taken)


def test_it_runs_from_an_archive_on_a_disk_that_takes_nothing(tmp_path: Path) -> None:
    """Spark ships the packages as one zip; where nothing can be kept, a process compiles for itself and gives the same answer."""
    archive = tmp_path / "packages.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for folder in ("schemas", "connectors"):
            for file in (ROOT / folder).rglob("*.py"):
                packed.write(file, file.relative_to(ROOT))
    code = (
        "import connectors, numpy as np\n"
        "from connectors.formats.parse import parse_buffer\n"
        "from connectors.formats.parsed import FormatOptions\n"
        "parsed = parse_buffer('influx', b'cpu,host=a v=1.5 1\\n' * 100, FormatOptions())\n"
        "print(connectors.__file__, parsed.tables['cpu']['v'].to_pylist() == [1.5] * 100)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(archive), "HOME": "/proc/nowhere", "XDG_CACHE_HOME": "/proc/nowhere"}
    answer = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert f"{archive}/connectors/__init__.py True" == answer.stdout.strip()


@pytest.mark.parametrize("text", [b"", b"\n", b"\r\n", b"1", b"\n\n1", b"1\r", b"\x00"])
def test_the_ends_of_a_buffer_are_read_safely(text: bytes) -> None:
    """The shortest inputs there are end where they end."""
    lines = lines_of_buffer(text)
    matched = match(lines, Template((b"",), (b"",), (Kind.INTEGER,)), np.arange(lines.count))
    assert [line for line in range(lines.count) if lines.text(line) == b"1"] == matched.rows.tolist()


def test_kept_code_is_stale_when_anything_compiled_in_changes() -> None:
    """Numba compares the kernel's file alone: whoever changes the types or constants it takes from elsewhere must change its stamp too."""
    constants = repr((lines.BACKSLASH, lines.NEWLINE, lines.QUOTE, lines.WORD_BYTES))
    source = Path(kernel_types.__file__).read_text()
    assert xxhash.xxh3_64_hexdigest((source + constants).encode()) == kernel.STAMP


def test_a_torn_file_of_kept_code_is_passed_over(tmp_path: Path) -> None:
    """What a power cut left of the kept code costs the time to compile it, never the command."""
    folder = tmp_path / "connectors"
    shutil.copytree(ROOT / "connectors", folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "schemas", tmp_path / "schemas", ignore=shutil.ignore_patterns("__pycache__"))
    code = "import connectors.formats.kernel as kernel; print(kernel.__file__, callable(kernel.join))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for torn in (False, True):
        kept = list((folder / "formats" / "__pycache__").glob("kernel.*.nb?"))
        assert torn == bool(kept)
        for file in kept:
            file.write_bytes(b"torn")
        answer = subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert answer.returncode == 0, answer.stderr
        assert f"{folder}/formats/kernel.py True" == answer.stdout.strip()
