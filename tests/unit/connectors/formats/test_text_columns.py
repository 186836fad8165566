"""Times written as text, to the nanosecond."""

from __future__ import annotations

from fractions import Fraction

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.formats.interface import NS_PER_UNIT, FormatOptions, OptionsError
from headrace.connectors.formats.parser import check_options
from headrace.connectors.formats.text_columns import time_refusals, times_of_text

DAY = 1_577_836_800_000_000_000  # 2020-01-01


def times(*texts: str | None, unit: str = "ns", time_format: str | None = None) -> list[int | None]:
    """Nanoseconds of texts."""
    options = FormatOptions(time_unit=unit, time_format=time_format)  # type: ignore[arg-type]
    return times_of_text(pl.Series(texts, dtype=pl.String), options).to_list()


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("2020-01-01", DAY),
        ("2020-01-01T00:00", DAY),
        ("2020-01-01 00:00:00", DAY),
        ("2020-01-01T00:00:00Z", DAY),
        ("2020-01-01T00:00:00.123456789Z", DAY + 123_456_789),
        ("2020-01-01 00:00:00.5", DAY + 500_000_000),
        ("2020-01-01T02:00:00+02:00", DAY),
        ("2019-12-31T22:30:00-0130", DAY),
        ("2020-01-01T02:00:00+02", DAY),
        ("2262-04-11T23:47:16.854775807Z", 2**63 - 1),
        ("2262-04-11T23:47:16.854775808Z", None),
        ("1677-09-20T00:00:00Z", None),
        ("2300-01-01", None),
        ("0001-01-01 00:00:00", None),
        ("2020-02-30", None),
        ("2020-13-01", None),
        ("2020-01-01T24:00:00", None),
        ("2020-01-01T00:00:60", None),
        ("2020-01-01T00:00:00.1234567890", None),
        ("2020-01-01T00:00:00+25:00", None),
        ("2020-1-1", None),
        ("yesterday", None),
        ("", None),
        (None, None),
    ],
)
def test_iso(text: str | None, nanoseconds: int | None) -> None:
    """ISO 8601 is exact; without a zone it is UTC.

    What is no such time, or out of range, is null among good ones too.
    """
    assert [nanoseconds] == times(text)
    assert [DAY, nanoseconds, 7] == times("2020-01-01T00:00:00Z", text, "7")


@pytest.mark.parametrize(
    ("text", "unit", "nanoseconds"),
    [
        ("5", "s", 5_000_000_000),
        ("1700000000.1", "s", 1_700_000_000_100_000_000),
        ("1700000000.1234567891", "s", None),
        ("1700000000.1234567890", "s", 1_700_000_000_123_456_789),
        ("1700000000123.0000001", "ms", None),
        ("12.5", "ns", None),
        ("12.0", "ns", 12),
        ("1.5e0", "ns", None),
        ("1.5e1", "ns", 15),
        ("1.7000000001234567890e9", "s", 1_700_000_000_123_456_789),
        ("1.70000000012345678901e9", "s", None),
        (f"1.{'0' * 40}1e1", "s", None),
        ("1e999", "s", None),
        ("-1.5", "s", -1_500_000_000),
        ("1700000000123.5", "ms", 1_700_000_000_123_500_000),
        ("1.7e18", "ns", 1_700_000_000_000_000_000),
        ("1.7E9", "s", 1_700_000_000_000_000_000),
        ("12.", "ns", 12),
        ("9223372037", "s", None),
        ("1e300", "s", None),
        ("nan", "s", None),
        (".5", "s", None),
    ],
)
def test_numbers(text: str, unit: str, nanoseconds: int | None) -> None:
    """Integers and decimals count in their unit, digit for digit; digits finer than a nanosecond are refused."""
    assert [nanoseconds] == times(text, unit=unit)


@pytest.mark.parametrize(
    ("text", "time_format", "nanoseconds"),
    [
        ("01.02.2020 03:04", "%d.%m.%Y %H:%M", DAY + 31 * 86_400 * 10**9 + (3 * 60 + 4) * 60 * 10**9),
        ("2020-01-01 00:00:00.000001", "%Y-%m-%d %H:%M:%S.%f", DAY + 1_000),
        ("2020-01-01 00:00:00.0000000010", "%Y-%m-%d %H:%M:%S.%f", DAY + 1),
        ("2020-01-01 00:00:00.0000000011", "%Y-%m-%d %H:%M:%S.%f", None),
        ("2020-01-01 00:00:00.0000000011Z", "%Y-%m-%d %H:%M:%S.%fZ", None),
        ("20200101T000001", "%Y%m%dT%H%M%S", DAY + 10**9),
        ("20200101", "%Y%m%d", DAY),
        ("01/01/2020 02:00 +0200", "%d/%m/%Y %H:%M %z", DAY),
        ("2500-01-01", "%Y-%m-%d", None),
        ("1600-01-01", "%Y-%m-%d", None),
        ("31.02.2020", "%d.%m.%Y", None),
        ("5", "%d.%m.%Y", None),
    ],
)
def test_formats(text: str, time_format: str, nanoseconds: int | None) -> None:
    """A time format is the only form taken, and never wraps around out of range."""
    assert [nanoseconds] == times(text, time_format=time_format)


def test_a_refusal_names_digits_that_are_too_fine() -> None:
    """What would be a time without its last digits is refused for them; anything else cannot be read."""
    fine = ["1700000000.1234567891", "2020-01-01T00:00:00.1234567891Z", "1.5e-9"]
    other = ["yesterday", "2020-02-30T00:00:00.1234567891Z", "x.1234567891", "1e300"]
    reasons = time_refusals(pl.Series(fine + other), FormatOptions(time_unit="s"))
    assert [f"the time {text!r} has digits finer than a nanosecond" for text in fine] == reasons[: len(fine)]
    assert [f"the time {text!r} cannot be read" for text in other] == reasons[len(fine) :]
    formatted = FormatOptions(time_format="%Y-%m-%d %H:%M:%S.%f")
    reason = time_refusals(pl.Series(["2020-01-01 00:00:00.1234567891"]), formatted)[0]
    assert reason.endswith("has digits finer than a nanosecond")


@given(
    unit=st.sampled_from(sorted(NS_PER_UNIT)),
    whole=st.integers(-400_000, 400_000),
    decimals=st.text("0123456789", max_size=15) | st.sampled_from(["25", "5", "0" * 11 + "25", "0" * 12 + "5"]),
    sign=st.sampled_from(["", "+", "-"]),
)
def test_a_decimal_number_of_any_unit_is_exact(unit: str, whole: int, decimals: str, sign: str) -> None:
    """Also of minutes and hours, which are no powers of ten: whole nanoseconds, or no time."""
    text = f"{sign}{abs(whole)}.{decimals}"
    exact = Fraction(text if decimals else f"{text}0") * NS_PER_UNIT[unit]
    wanted = int(exact) if exact.denominator == 1 else None
    assert [wanted] == times(text, unit=unit)
    if wanted is None:
        options = FormatOptions(time_unit=unit)  # type: ignore[arg-type]
        assert [f"the time {text!r} has digits finer than a nanosecond"] == time_refusals(pl.Series([text]), options)


@pytest.mark.parametrize("time_format", ["%d.%m.%Y %H:%M:%S,%f", "%Y%m%d%H%M%S%f", "%f"])
def test_a_fraction_without_a_point_needs_its_digits(time_format: str) -> None:
    """Polars takes it for a number of nanoseconds: 10:00:00,123 would be 123 of them behind ten o'clock."""
    with pytest.raises(OptionsError, match=r"%f without a point \(write \.%f, or %3f, %6f or %9f"):
        FormatOptions(time_format=time_format)
    assert [DAY + 123_000_000] == times("01.01.2020 00:00:00,123", time_format="%d.%m.%Y %H:%M:%S,%3f")


def test_a_form_that_cannot_be_read_is_an_error_before_the_first_message() -> None:
    """Twelve hours need the half of the day; the error is one line."""
    for time_format in ("%Y-%m-%d %I:%M", "%Y-%m-%d %p"):
        with pytest.raises(OptionsError, match="time format .* cannot be used: .*12-hour") as raised:
            check_options("json", FormatOptions(table="t", time_format=time_format))
        assert "\n" not in str(raised.value)
    check_options("json", FormatOptions(table="t", time_format="%Y-%m-%d %I:%M %p"))
