"""An input that is read once is kept whole, or refused for its length."""

from __future__ import annotations

import io

import pytest

from headrace._spooled_input import InputTooLong, spooled


def test_an_input_is_kept_as_it_came() -> None:
    """Twice readable, also when it is exactly as long as allowed."""
    with spooled(io.BytesIO(b"time,flow\n1,2\n"), bytes_max=14) as kept:
        assert b"time,flow\n1,2\n" == kept.read()
        kept.seek(0)
        assert b"time" == kept.read(4)


def test_a_longer_input_is_refused() -> None:
    """With what to do instead."""
    with pytest.raises(InputTooLong, match="more than 13 bytes") as raised, spooled(io.BytesIO(b"x" * 14), 13):
        pass
    assert "--no-tags" in (raised.value.action or "")
