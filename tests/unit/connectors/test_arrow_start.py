"""Processes of ours do without pandas."""

from __future__ import annotations

import subprocess
import sys


def output_of(program: str) -> str:
    """What a program prints, in a Python process of its own."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def test_conversions_load_no_pandas_and_it_can_still_be_used() -> None:
    """Python values become Arrow arrays without pandas; a conversion to pandas loads it, and pyarrow then takes
    its objects as ever.
    """
    program = """
import sys
from headrace.connectors.arrow_start import keep_pandas_out
before = list(sys.meta_path)
keep_pandas_out()
import pyarrow as pa
rows = pa.table({"x": [1, None], "y": ["a", "b"]})
print("pandas" in sys.modules, before == sys.meta_path)
frame = rows.to_pandas()
print(pa.array(frame["y"]).to_pylist(), pa.Table.from_pandas(frame, preserve_index=False)["y"].to_pylist())
"""
    assert "False True\n['a', 'b'] ['a', 'b']" == output_of(program)


def test_pandas_that_is_loaded_stays_recognised() -> None:
    """Where the program uses pandas already, nothing changes."""
    program = """
import pandas
from headrace.connectors.arrow_start import keep_pandas_out
keep_pandas_out()
import pyarrow as pa
print(pa.array(pandas.Series([1, 2])).to_pylist())
"""
    assert "[1, 2]" == output_of(program)
