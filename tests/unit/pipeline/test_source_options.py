"""The options of `format("headrace")`."""

from __future__ import annotations

import pytest

from headrace.pipeline.source_options import (
    OptionInvalid,
    read_options,
    schema_options,
    stream_options,
    write_options,
)

KAFKA = {"bootstrap": "k:9092", "table": "plant.pumps"}


def test_a_read_has_what_was_given() -> None:
    """Names have any case, librdkafka's have a prefix, times are ISO or ns, and the node is a URL."""
    options = read_options(
        {
            **KAFKA,
            "CLUSTER": "c",
            "kafka.linger.ms": "5",
            "columns": "flow, pump",
            "start": "2026-01-01T00:00:00.123456789Z",
            "end": "1767225601000000000",
            "node": "127.0.0.1:80",
            "time": "long",
        }
    )
    assert ("plant", "pumps", "c", (("linger.ms", "5"),)) == (
        options.target.database,
        options.target.table,
        options.target.cluster,
        options.target.kafka,
    )
    assert (("flow", "pump"), "http://127.0.0.1:80", True) == (options.columns, options.node, options.time_as_long)
    assert (1_767_225_600_123_456_789, 1_767_225_601_000_000_000) == (options.start_ns, options.end_ns)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-02", 86_400_000_000_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01 00:00:00.5", 500_000_000),
        ("1969-12-31T23:59:59.9", -100_000_000),
        ("-7", -7),
    ],
)
def test_times_are_exact(text: str, ns: int) -> None:
    """A time without a zone is UTC, and no digit is lost."""
    assert ns == read_options({**KAFKA, "start": text}).start_ns


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"colums": "a"}, "did you mean columns"),
        ({"table": "pumps"}, "database.table"),
        ({"bootstrap": ""}, "bootstrap is missing"),
        ({"start": "yesterday"}, "start is 'yesterday'"),
        ({"start": "2262-12-31"}, "1677 to 2262"),
        ({"start": "2026-01-02", "end": "2026-01-01"}, "is not before end"),
        ({"time": "ms"}, "timestamp, long"),
        ({"node": "::"}, "not the address of a node"),
        ({"columns": "a,b,a"}, "'a' twice"),
        ({"tags": "a"}, "no option 'tags'"),
    ],
)
def test_what_a_read_cannot_have_is_named(more: dict[str, str], named: str) -> None:
    """A wrong option is an error that names it, its value or the near ones."""
    with pytest.raises(OptionInvalid) as raised:
        read_options({**KAFKA, **more})
    assert named in str(raised.value)


def test_a_named_node_needs_no_kafka() -> None:
    """Batch reads of a named node have no bootstrap; a stream and a sink need one."""
    without = {"table": "plant.pumps", "node": "h:80"}
    assert ("", "http://h:80") == (read_options(without).target.bootstrap, schema_options(without)[1])
    for parse in (stream_options, write_options):
        with pytest.raises(OptionInvalid, match="bootstrap is missing"):
            parse({"table": "plant.pumps"})


def test_a_stream_has_what_was_given() -> None:
    """Limits are whole numbers from 1 on, choices are lists, and everything has a default. A wrong one is refused when
    Spark asks for the schema.
    """
    options = stream_options({**KAFKA, "startingoffsets": "latest", "maxrecordsperbatch": "7", "metadata": "true"})
    assert (True, 7, True, False) == (
        options.from_latest,
        options.records_per_batch_max,
        options.metadata,
        options.ignore_deletes,
    )
    for wrong in ({"maxrecordsperbatch": "0"}, {"ignoredeletes": "yes"}, {"startingoffsets": "5"}, {"start": "0"}):
        with pytest.raises(OptionInvalid):
            stream_options({**KAFKA, **wrong})
        if "start" not in wrong:
            with pytest.raises(OptionInvalid):
                schema_options({**KAFKA, **wrong})


def test_a_sink_has_what_was_given() -> None:
    """What Spark adds to the options of a query is no error."""
    options = write_options({**KAFKA, "tags": "a, b", "quorum": "2", "checkpointLocation": "/c"})
    assert (("a", "b"), 2) == (options.tags, options.quorum)
    with pytest.raises(OptionInvalid, match="quorum"):
        write_options({**KAFKA, "quorum": "-1"})


def test_no_secret_is_shown() -> None:
    """A token is in no text that Spark may log."""
    assert "geheim" not in repr(read_options({**KAFKA, "token": "geheim"}))
