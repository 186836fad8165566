"""Rows in Python's forms as Arrow tables."""

from __future__ import annotations

import polars as pl
import pytest

from headrace._frames import RowsInvalid, arrow_table
from headrace.connectors.formats.interface import ColumnTypeError


def test_a_polars_type_that_arrow_lacks_names_its_column() -> None:
    """In a frame and in a dict of columns, as for any other type that cannot be stored."""
    wide = pl.Series("wide", [1], dtype=pl.Int128)
    for data in (pl.DataFrame({"time": [1], "wide": wide}), {"time": [1], "wide": wide}):
        with pytest.raises(ColumnTypeError, match="column 'wide'"):
            arrow_table(data)
    assert [{"time": 1}] == arrow_table(pl.DataFrame({"time": [1]})).to_pylist()


def test_python_objects_of_polars_are_refused() -> None:
    """Arrow takes the addresses of such objects for their values."""
    with pytest.raises(ColumnTypeError, match="column 'o'"):
        arrow_table(pl.DataFrame({"time": [1], "o": pl.Series([object()], dtype=pl.Object)}))


def test_a_stream_that_cannot_be_read_is_refused() -> None:
    """Also of an object of another library, by the error of the writer."""

    class Stream:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            raise RuntimeError("nothing to give")

    with pytest.raises(RowsInvalid, match="nothing to give"):
        arrow_table(Stream())
