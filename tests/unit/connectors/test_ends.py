"""Several things end one after another: each of them, and the first error is the cause."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.connectors.ends import end_all, ended_by


def failing(message: str) -> Callable[[], None]:
    """An end that fails with this message."""

    def fail() -> None:
        raise OSError(message)

    return fail


def test_all_end_behind_one_that_fails() -> None:
    """None is left out, also not one that follows only from the ends before it; the first error is raised."""
    ended = list[int]()
    with pytest.raises(OSError, match="first"):
        end_all((lambda: ended.append(1), failing("first"), failing("second"), lambda: ended.append(len(ended) + 1)))
    assert [1, 2] == ended
    end_all(())


def test_what_ends_a_block_is_not_hidden_by_its_end() -> None:
    """An error of the end behind it follows from it. Without one, that of the end is raised."""
    with pytest.raises(ValueError, match="cause"), ended_by(failing("end")):
        raise ValueError("cause")
    with pytest.raises(OSError, match="end"), ended_by(failing("end")):
        pass
    ended = list[int]()
    with ended_by(lambda: ended.append(1)):
        assert not ended
    assert [1] == ended
