"""Dead letters on a terminal."""

from __future__ import annotations

import pytest

from headrace.cli.dlq import CHARACTERS_MAX, readable


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"cpu,host=a v=1", "cpu,host=a v=1"),
        ("wärme ☃".encode(), "wärme ☃"),
        (b"\xff\x00a\n\x1b[1m", r"\xff\x00a\n\x1b[1m"),
        (rb"a\xff", r"a\\xff"),
        (b"'it's\"", "'it's\""),
    ],
)
def test_bytes_are_shown_once_escaped(content: bytes, text: str) -> None:
    """A byte that is no text, a control character and a backslash are all different."""
    assert text == readable(content)


def test_long_ones_are_cut() -> None:
    """With their size."""
    assert readable(b"a" * 5_000) == "a" * CHARACTERS_MAX + "… (5,000 bytes)"
