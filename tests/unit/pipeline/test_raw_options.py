"""The options of `format("headrace_raw")`."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.connectors.formats.interface import FormatOptions, OptionsError, SchemaPlace
from headrace.connectors.formats.mapping_file import read_mapping_file
from headrace.pipeline.job import IngestJob
from headrace.pipeline.raw_offsets import LATEST, OffsetsInvalid, Start
from headrace.pipeline.raw_options import SourceOptionInvalid, options_of, request_of
from headrace.schemas.tables import FieldType, TimeResolution

LEAST = {"cluster": "c", "bootstrap": "b:1", "topic": "raw", "database": "d", "format": "influx"}


def test_a_job_is_the_same_behind_its_options() -> None:
    """Every option of a job reaches the workers as it was, also through the lower case of Spark's options."""
    how = FormatOptions(
        None,
        ("a", "b"),
        (("Site", "näh,e=1"),),
        "at",
        "ms",
        "%Y",
        table_column="kind",
        columns=("C", "d"),
        sources=((("Meta", "a.b"), "a"), (("x",), "x")),
        typed=(("x", FieldType.INT64),),
        schemas=SchemaPlace("/Schemas", "http://registry:8081", "Reader", "S=cret"),
    )
    settings = (("sasl.password", "S=cret"), ("ssl.ca.location", "/Ca"))
    job = IngestJob("c", "b:1", "raw", "d", "json", how, settings, "lz4", TimeResolution.NS, True)
    options = {name.lower(): value for name, value in options_of(job, messages_max=5, until={1: 7, 0: 3}).items()}
    request = request_of(options)
    assert (job, 5, {0: 3, 1: 7}, Start()) == (request.job, request.messages_max, request.until, request.start)


def test_names_are_read_without_regard_to_their_spelling() -> None:
    """`--time-unit` of the command is `timeUnit` here, and `time_unit` does as well."""
    for name in ("timeUnit", "time-unit", "TIME_UNIT"):
        assert "ms" == request_of({**LEAST, name: "ms"}).job.options.time_unit


def test_a_mapping_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """As editors of Windows save a text; for the source as for the command."""
    file = tmp_path / "m.toml"
    file.write_text('[topics.raw]\ndatabase = "d"\ntable = "t"\n', "utf-8-sig")
    assert "t" == request_of({**LEAST, "mapping": str(file)}).job.options.table
    assert "t" == read_mapping_file(file, "raw", FormatOptions()).options.table


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"tabel": "t"}, "did you mean table"),
        ({"qqqq": "t"}, "kafka.<name>"),
        ({"anyTime": "yes"}, "true or false"),
        ({"timeResolution": "s"}, "us or ns"),
        ({"maxMessagesPerBatch": "0"}, "at least 1"),
        ({"maxMessagesPerBatch": "many"}, "at least 1"),
        ({"startingOffsets": "soon"}, "no JSON"),
        ({"staticTags": '{"a": 1}'}, "JSON object"),
        ({"sources": '{"a": "x"}'}, "object of paths"),
        ({"fieldTypes": '{"a": "float"}'}, "float64"),
        ({"mapping": "m.toml", "tags": "a"}, "give one of them"),
        ({"mapping": "/nowhere/m.toml"}, "no file"),
        ({"startingOffsetsByTimestampStrategy": "skip"}, "error or latest"),
        ({"topic": ""}, "topic of headrace_raw is missing"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], word: str) -> None:
    """With what would be right."""
    with pytest.raises(SourceOptionInvalid) as raised:
        request_of({**LEAST, **options})
    assert word in str(raised.value)


def test_options_of_formats_and_offsets_are_checked_too() -> None:
    """Before anything is read."""
    with pytest.raises(OptionsError):
        request_of({**LEAST, "format": "parquet"})
    with pytest.raises(OptionsError):
        request_of({**LEAST, "timeUnit": "weeks"})
    with pytest.raises(OffsetsInvalid):
        request_of({**LEAST, "startingOffsets": '{"other": {"0": 1}}'})


def test_a_begin_is_a_rule_offsets_or_a_time() -> None:
    """As for Spark's Kafka source."""
    assert Start(LATEST) == request_of({**LEAST, "startingOffsets": "latest"}).start
    assert Start(offsets={0: 4, 1: -1}) == request_of({**LEAST, "startingOffsets": '{"raw": {"0": 4, "1": -1}}'}).start
    by_time = {"startingTimestamp": "1700000000000", "startingOffsetsByTimestampStrategy": "latest"}
    assert Start(timestamp_ms=1_700_000_000_000, or_latest=True) == request_of({**LEAST, **by_time}).start
