"""What `import headrace` offers."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headrace


def test_every_public_name_is_there_and_listed() -> None:
    """Every announced name can be loaded, and `dir` lists it."""
    assert set(headrace.__all__) == set(headrace._HOMES)
    for name in headrace.__all__:
        assert getattr(headrace, name).__doc__, name
    assert set(headrace.__all__) <= set(dir(headrace))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    """A misspelt name fails as in any module."""
    with pytest.raises(AttributeError, match="'conect'"):
        headrace.conect  # noqa: B018


def test_the_import_alone_loads_nothing_heavy() -> None:
    """`import headrace` is quick: libraries are loaded at first use."""
    program = "import headrace, sys; print(*sorted({'pydantic', 'pyarrow', 'polars', 'pandas', 'confluent_kafka'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "" == done.stdout.strip()
