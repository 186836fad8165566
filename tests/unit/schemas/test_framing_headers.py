"""Records of foreign producers: headers of any number and size, and errors of a line."""

from __future__ import annotations

import pytest

from headrace.schemas.framing import FormatTooNew, FrameInvalid, check_format, codec, format_headers, kept_headers

OURS = tuple(format_headers())


@pytest.mark.parametrize(
    "headers",
    [
        OURS,
        (("x" * 70_000, b""), *OURS),
        (*OURS, *(("trace", bytes(100)) for _ in range(70_000))),
        (("format", b"not a number"), ("format", b""), *OURS, ("Format", b"9")),
        (("format", b"1"), ("format", b"0")),
        (("format", b"0" * 10_000 + b"1"),),
    ],
)
def test_only_the_format_is_kept(headers: tuple[tuple[str, bytes], ...]) -> None:
    """One small header is left of them all, and the record is read."""
    check_format(headers)
    assert OURS == kept_headers(headers)


@pytest.mark.parametrize("newer", [b"6", b"0006", b"9" * 9, b"9" * 10_000])
def test_a_newer_format_is_found_among_all_headers(newer: bytes) -> None:
    """Also behind an older one, and with more digits than Python converts."""
    headers = (("format", b"1"), ("format", newer), ("x", b""))
    for each in (headers, kept_headers(headers)):
        with pytest.raises(FormatTooNew):
            check_format(each)


def test_a_record_without_a_format_keeps_none() -> None:
    """It is read as the oldest format."""
    assert kept_headers((("x", b"1"),)) == ()


def test_the_error_of_a_damaged_text_has_none_of_its_bytes() -> None:
    """Who skips a record logs why. A text of megabytes that is not UTF-8 was in that line as a whole."""
    value = codec("refusal").prefix + b"\x80\x89\x7a" + b"\xff" * 1_000_000
    with pytest.raises(FrameInvalid, match="does not decode: UnicodeDecodeError") as caught:
        codec("refusal").decode(value)
    assert len(caught.value.message) < 400
