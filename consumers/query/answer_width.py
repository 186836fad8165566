"""The memory that the columns of an answer need, however few rows it has."""

from __future__ import annotations

import pyarrow as pa

from headrace.consumers.query.explain import VECTOR_ROWS
from headrace.consumers.query.query_errors import QueryMemory
from headrace.consumers.scheduling.memory_pool import BYTES_PER_MB

VECTORS = 4
"""DuckDB holds so many vectors of each column of an answer: of a scan, of expressions, and of the batch it makes."""
NUMBER_BYTES = 8
TEXT_BYTES = 16
"""A value of any other type, without what a long text has elsewhere."""


class WideAnswer(MemoryError):
    """An answer whose columns alone need more memory. Never leaves the run of a query."""

    def __init__(self, needed_mb: int) -> None:
        super().__init__(f"the columns of the answer need {needed_mb} MB")
        self.needed_mb = needed_mb


def columns_mb(schema: pa.Schema) -> int:
    """What the columns of an answer may need."""
    row_bytes = sum(NUMBER_BYTES if pa.types.is_primitive(field.type) else TEXT_BYTES for field in schema)
    return -(-VECTORS * VECTOR_ROWS * row_bytes // BYTES_PER_MB)


def check_width(schema: pa.Schema, memory_mb: int) -> None:
    """Raises QueryMemory, to begin again with more, for an answer whose columns may not fit."""
    needed_mb = columns_mb(schema)
    if needed_mb > memory_mb:
        raise QueryMemory.above(memory_mb) from WideAnswer(needed_mb)
