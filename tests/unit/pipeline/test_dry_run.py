"""What a dry run finds in the first messages, beside rows and refused lines."""

from __future__ import annotations

import pyarrow as pa

from headrace.connectors.formats.interface import FormatOptions
from headrace.pipeline.dry_run import DryRun, inferred
from headrace.pipeline.job import IngestJob
from headrace.pipeline.offset_ranges import RAW_SCHEMA
from headrace.schemas.tables import Catalogue

TIMED = b'{"time":"2026-01-01T00:00:00Z","site":"north","values":{"flow":1}}'
UNTIMED = b'{"site":"north","values":{"flow":2}}'


def found(messages: list[bytes], **options: object) -> DryRun:
    """The dry run of messages of JSON, all of one time of Kafka."""
    places = pa.array(range(len(messages)), pa.int64())
    columns = [
        pa.nulls(len(messages)),
        pa.array(messages, pa.binary()),
        places,
        places,
        pa.array([10**12] * len(messages)),
    ]
    arrays = [column.cast(kind) for column, kind in zip(columns, RAW_SCHEMA.types, strict=True)]
    job = IngestJob("b:1", "c", "raw", "plant", "json", FormatOptions(table="t", **options))  # type: ignore[arg-type]
    return inferred(job, pa.Table.from_arrays(arrays, schema=RAW_SCHEMA), Catalogue())


def test_names_that_no_row_has_and_rows_without_a_time_are_shown() -> None:
    """A misspelt tag makes one series of all, and a misspelt time is that of the message: neither is an error."""
    sources = ((("site",), "site"), (("time",), "time"), (("values", "flow"), "flow"))
    good = found([TIMED, TIMED], tags=("site",), sources=sources)
    assert ([], 0) == (good.absent, good.untimed)
    odd = (*sources, (("values", "level"), "level"), (("pomp",), "pump"))
    bad = found([TIMED, UNTIMED, b"{"], tags=("site", "pump"), sources=odd)
    assert (["pomp", "values.level"], 1) == (bad.absent, bad.untimed)
    flat = found([b'{"ts":"2026-01-01T00:00:00Z","site":"north","flow":1}'], tags=("siet",), time_column="tss")
    assert (["siet"], 1) == (flat.absent, flat.untimed)
    assert [] == found([b"{"], tags=("site",)).absent
