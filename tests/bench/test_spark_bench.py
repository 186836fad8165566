"""`headrace bench spark`: its ratios, its Avro messages, and a small run of every leg."""

from __future__ import annotations

import io
import json
from pathlib import Path

import fastavro
import pytest

from headrace.bench import spark
from headrace.bench.options import OptionUnknown
from headrace.bench.spark_runs import BenchInvalid, Leg, in_turn
from headrace.bench.spark_topics import FRAME, avro_records, avro_schema, field_names
from headrace.workload import cpu
from tests.bench.test_cluster_benches import assert_nothing_left

BARS = {
    **dict.fromkeys(("of_source_one_influx", "of_source_one_json", "of_source_one_avro", "of_source_arrow"), 0.5),
    **dict.fromkeys(("of_stock_one_influx", "of_stock_one_json"), 1.3),
    **dict.fromkeys(("of_stock_many_influx", "of_stock_many_json"), 3.0),
    "of_stock_one_avro": 2.0,
    "of_source_tiny_batches": 0.333,
    "stream_source_of_stock": 5.0,
    "sink_of_stock": 1.5,
    "batch_source_of_answers": 0.5,
    "batch_source_hour_of_whole": 3.0,
    "batch_source_columns_of_whole": 3.0,
    "read_segments_of_parquet": 0.8,
}

SIZES = {"rows": "20000", "table_rows": "100000", "rounds": "1", "tiny_batches": "3", "tiny_messages": "20"}


def test_every_bar_has_a_ratio() -> None:
    """Those of the issue, and ratios that are only shown have none."""
    assert BARS == {name: each.bar for name, each in spark.RATIOS.items() if each.bar is not None}


def test_a_ratio_compares_legs_of_one_round() -> None:
    """The peer's time over ours, by the clock and by CPU time; legs that were not measured have no ratio."""
    measured = {
        "sink": [Leg(10, 1.0, 2.0), Leg(10, 4.0, 2.0), Leg(10, 1.0, 2.0)],
        "stock sink": [Leg(10, 2.0, 3.0), Leg(10, 8.0, 4.0), Leg(10, 1.0, 1.0)],
        "batch source": [Leg(10, 1.0, 1.0)],
    }
    figures = {"median": 2.0, "least": 1.0, "most": 2.0, "per_cpu_second": 1.5, "bar": 1.5}
    assert {"sink_of_stock": figures} == spark.ratios(measured)
    shown = dict(spark.table({"legs": {}, "ratios": {"x": figures}, "failed": {}, "settings": {}, "versions": {}}))
    assert "2.00 (1.00 to 2.00), 1.50 by CPU-second, at least 1.5: met" == shown["x"]


@pytest.mark.parametrize(("stopped", "counted"), [(1, None), (2, None), (3, {"a": 1}), (5, {"a": 1, "b": 2})])
def test_an_interrupt_keeps_what_was_measured(stopped: int, counted: dict[str, int] | None) -> None:
    """Two legs in alternating order, a round that warms up, and two more. A ratio has the rounds of both legs."""
    calls = iter(range(9))

    def leg() -> Leg:
        if (number := next(calls)) == stopped:
            raise KeyboardInterrupt
        return Leg(number, 1.0, 1.0)

    legs = {"a": leg, "b": leg}
    if counted is None:
        with pytest.raises(KeyboardInterrupt):
            in_turn(legs, 2, print)
        return
    taken, failed = in_turn(legs, 2, print)
    assert {} == failed
    assert counted == {name: len(each) for name, each in taken.items()}
    taken = {"sink": taken["a"], **({"stock sink": taken["b"]} if "b" in taken else {})}
    assert ["sink_of_stock"] * ("b" in counted) == list(spark.ratios(taken))


def test_a_leg_that_fails_has_no_figures() -> None:
    """Also those that it had before; the others have all of theirs."""
    calls = iter(range(9))

    def failing() -> Leg:
        if next(calls) == 2:
            raise BenchInvalid("sink: 9 rows instead of 10")
        return Leg(10, 1.0, 1.0)

    taken, failed = in_turn({"sink": failing, "stock sink": lambda: Leg(10, 1.0, 1.0)}, 3, print)
    assert (3, {"sink": "sink: 9 rows instead of 10"}) == (len(taken["stock sink"]), failed)
    assert "sink" not in taken


def test_a_wrong_part_is_named() -> None:
    """Before a broker is started."""
    with pytest.raises(OptionUnknown, match="no part 'tables'"):
        spark.run({"parts": "ingest,tables"})


def test_the_avro_messages_are_the_rows() -> None:
    """fastavro reads what is composed of bytes."""
    workload = cpu(7, duration_s=50)
    rows = workload.read("cpu")
    schema = fastavro.parse_schema(json.loads(avro_schema(rows, workload.tags)))
    found = []
    for message in avro_records(rows, workload.tags):
        assert message.startswith(FRAME)
        stream = io.BytesIO(message[len(FRAME) :])
        found.append(fastavro.schemaless_reader(stream, schema, None))
        assert b"" == stream.read()
    assert rows.to_pylist() == found
    assert 10 == len(field_names(rows, workload.tags))


@pytest.mark.soak
@pytest.mark.broker
def test_a_small_run_has_every_ratio(tmp_path: Path) -> None:
    """Every leg reads or writes all its rows, and nothing is left."""
    result = spark.run({**SIZES, "dir": str(tmp_path)})
    assert {} == result["failed"]
    assert spark.RATIOS.keys() == result["ratios"].keys()
    assert all(each["median"] > 0 for each in result["ratios"].values())
    assert_nothing_left(tmp_path)


@pytest.mark.soak
@pytest.mark.broker
def test_a_part_needs_no_other(tmp_path: Path) -> None:
    """The streams alone: what their session needs is not left to the legs of the tables."""
    result = spark.run({**SIZES, "parts": "streams", "dir": str(tmp_path)})
    assert {} == result["failed"]
    assert {"stream_source_of_stock", "sink_of_stock", "sink_small_rows_of_stock"} == result["ratios"].keys()
