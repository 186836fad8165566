"""`headrace bench spark`: ingest, sources and sink, beside Spark's own connectors and stock Spark.

One run, one JVM. All legs are queries over the same rows, in turn, several rounds after one that warms up. A ratio is
the median over the rounds of two legs of one round: the time of the peer over ours, so that more is faster. A leg
whose row count is wrong has no figures.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import headrace.spark
from headrace.bench.measurement import (
    Note,
    running_broker,
    running_cluster,
    settings_text,
    silent,
    versions,
)
from headrace.bench.options import Options
from headrace.bench.spark_ingest import CLUSTER, RawTopics, ingest_legs
from headrace.bench.spark_runs import BenchInvalid, Leg, Measure, SparkBench, in_turn
from headrace.bench.spark_tables import batch_legs, make_cluster, stream_legs
from headrace.bench.spark_topics import avro_schema, field_names, fill_topics, write_schema
from headrace.pipeline.session import close_session, open_session
from headrace.workload import cpu

HOSTS = 1_000
INTERVAL_S = 10
DRIVER_MEMORY = "2g"
"""More than the 1 GB of ingest: stock Spark explodes and parses long messages on the heap."""
PARTS = ("ingest", "streams", "batch")


def _problem(given: Mapping[str, Any]) -> str:
    """What is wrong with the parts, or with the sizes of a part."""
    parts = _parts(given)
    if unknown := [part for part in parts if part not in PARTS]:
        return f"there is no part {unknown[0]!r}: the parts are {', '.join(PARTS)}"
    if not parts:
        return f"no part is named: the parts are {', '.join(PARTS)}"
    rows, tiny = _whole_rows(given["rows"]), given["tiny_batches"] * given["tiny_messages"]
    if "ingest" in parts and tiny > rows:
        return f"{tiny} tiny messages are more than the {rows} rows that they are made of"
    return ""


def _parts(given: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(part for part in given["parts"].split(",") if part)


def _whole_rows(rows: int) -> int:
    """As many for each host."""
    return max(HOSTS, rows // HOSTS * HOSTS)


OPTIONS = Options(
    {
        "rows": 1_000_000,
        "partitions": 2,
        "lines": 500,
        "tiny_batches": 100,
        "tiny_messages": 100,
        "table_rows": 4_000_000,
        "hours": 24,
        "rounds": 3,
        "parts": ",".join(PARTS),
        "dir": "",
    },
    problem_of=_problem,
)


class Ratio(NamedTuple):
    """Time of the leg `peer` over that of the leg `ours`, and the least that it has to be; None only shows it."""

    ours: str
    peer: str
    bar: float | None


RATIOS: Mapping[str, Ratio] = {
    **{f"of_source_one_{form}": Ratio(f"ours {form} one", f"source {form} one", 0.5) for form in ("influx", "json")},
    "of_source_one_avro": Ratio("ours avro one", "source avro one", 0.5),
    **{f"of_stock_one_{form}": Ratio(f"ours {form} one", "stock json one", 1.3) for form in ("influx", "json")},
    "of_stock_one_avro": Ratio("ours avro one", "stock avro one", 2.0),
    **{
        f"of_source_many_{form}": Ratio(f"ours {form} many", f"source {form} many", None) for form in ("influx", "json")
    },
    **{f"of_stock_many_{form}": Ratio(f"ours {form} many", "stock json many", 3.0) for form in ("influx", "json")},
    "of_source_arrow": Ratio("ours arrow many", "source arrow many", 0.5),
    "of_source_tiny_batches": Ratio("ours tiny", "source tiny", round(1 / 3, 3)),
    "stream_source_of_stock": Ratio("stream source", "stock rows", 5.0),
    "sink_of_stock": Ratio("sink", "stock sink", 1.5),
    "sink_small_rows_of_stock": Ratio("sink, small rows", "stock sink", None),
    "batch_source_of_answers": Ratio("batch source", "answers without Spark", 0.5),
    "batch_source_hour_of_whole": Ratio("batch source, one hour", "batch source", 3.0),
    "batch_source_columns_of_whole": Ratio("batch source, two columns", "batch source", 3.0),
    "batch_source_of_parquet": Ratio("batch source", "Parquet reader", None),
    "read_segments_of_parquet": Ratio("read_segments", "Parquet reader", 0.8),
}


def run(options: Mapping[str, str], note: Note = silent) -> dict[str, Any]:
    """Options: rows of each topic, partitions, lines of a message of many, tiny_batches of tiny_messages, table_rows of
    hours, rounds, parts, dir. Raises OptionUnknown, BenchInvalid.
    """
    settings = OPTIONS.chosen(options)
    settings["rows"] = _whole_rows(settings["rows"])
    with _directory(settings.pop("dir")) as directory, ExitStack() as stack:
        measured, failed = _measured(directory, settings, _parts(settings), stack, note)
    legs = {name: _figures(taken) for name, taken in measured.items()}
    shown = {"legs": legs, "ratios": ratios(measured), "failed": failed}
    return {**shown, "settings": settings, "versions": versions()}


@contextmanager
def _directory(parent: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="headrace-spark-", dir=parent or None) as directory:
        yield Path(directory)


def _measured(
    directory: Path, settings: Mapping[str, Any], parts: Sequence[str], stack: ExitStack, note: Note
) -> tuple[dict[str, Sequence[Leg]], dict[str, str]]:
    broker = stack.enter_context(running_broker(directory / "broker"))
    bootstrap = broker.status().bootstrap or ""
    session = open_session(
        "headrace bench spark",
        log_file=directory / "spark.log",
        settings={
            "spark.driver.memory": DRIVER_MEMORY,
            "spark.sql.streaming.numRecentProgressUpdates": str(10 * settings["tiny_batches"] + 100),
        },
    )
    stack.callback(close_session, session)
    headrace.spark.register(session)
    bench = SparkBench(session, bootstrap, directory)
    legs: dict[str, Measure] = {}
    if "ingest" in parts or "streams" in parts:
        note("filling topics")
        legs |= _stream_legs(bench, settings, parts)
    if "batch" in parts:
        note("writing the table")
        local = stack.enter_context(running_cluster(directory / "node", broker, 1))
        try:
            legs |= batch_legs(bench, local, settings["table_rows"], settings["hours"])
        except BenchInvalid as error:
            # As a leg of its own, which fails: the others have figures.
            legs["batch"] = partial(_fail, error)
    return in_turn(legs, settings["rounds"], note)


def _fail(error: BenchInvalid) -> Leg:
    raise error


def _stream_legs(bench: SparkBench, settings: Mapping[str, Any], parts: Sequence[str]) -> dict[str, Measure]:
    workload = cpu(HOSTS, duration_s=settings["rows"] // HOSTS * INTERVAL_S, interval_s=INTERVAL_S)
    rows, tags, lines = workload.read("cpu"), workload.tags, settings["lines"]
    tiny = settings["tiny_batches"] * settings["tiny_messages"]
    topics = RawTopics(
        rows.num_rows,
        tags,
        field_names(rows, tags),
        avro_schema(rows, tags),
        write_schema(bench.directory / "schemas", rows, tags),
        lines,
        settings["tiny_batches"],
        settings["tiny_messages"],
    )
    make_cluster(bench.bootstrap, CLUSTER)
    # The streams read one of the raw topics alone.
    fill_topics(bench.bootstrap, rows, tags, settings["partitions"], lines, tiny if "ingest" in parts else None)
    legs: dict[str, Measure] = {}
    if "ingest" in parts:
        legs |= ingest_legs(bench, topics)
    if "streams" in parts:
        legs |= stream_legs(bench, topics, rows)
    return legs


def _figures(legs: Sequence[Leg]) -> dict[str, float]:
    return {
        "rows": legs[0].rows,
        "seconds": round(median(leg.seconds for leg in legs), 3),
        "rows_per_second": round(median(leg.rows / leg.seconds for leg in legs)),
        "rows_per_cpu_second": round(median(leg.rows / leg.cpu_seconds for leg in legs)),
    }


def ratios(measured: Mapping[str, Sequence[Leg]]) -> dict[str, dict[str, float | None]]:
    """Every ratio whose legs were measured: by the clock, and by the CPU time of all processes."""
    found: dict[str, dict[str, float | None]] = {}
    for name, (own, peer, bar) in RATIOS.items():
        if own not in measured or peer not in measured:
            continue
        # A run that was interrupted has a leg more of some: the last round is left out for those.
        pairs = list(zip(measured[own], measured[peer], strict=False))
        each = [other.seconds / ours.seconds for ours, other in pairs]
        per_cpu = median(other.cpu_seconds / ours.cpu_seconds for ours, other in pairs)
        figures = {"median": median(each), "least": min(each), "most": max(each), "per_cpu_second": per_cpu}
        found[name] = {**{key: round(value, 3) for key, value in figures.items()}, "bar": bar}
    return found


def table(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The figures for people."""
    shown = []
    for name, figures in result["legs"].items():
        each = f"{figures['rows_per_second']:,.0f} rows/s, {figures['rows_per_cpu_second']:,.0f} rows per CPU-second"
        shown.append((name, f"{each}, {figures['seconds']:.2f} s"))
    for name, figures in result["ratios"].items():
        spread = f"{figures['median']:.2f} ({figures['least']:.2f} to {figures['most']:.2f})"
        shown.append((name, f"{spread}, {figures['per_cpu_second']:.2f} by CPU-second{_verdict(figures)}"))
    shown += [(name, f"failed: {reason}") for name, reason in result["failed"].items()]
    return [*shown, *settings_text(result)]


def _verdict(figures: Mapping[str, float | None]) -> str:
    bar, reached = figures["bar"], figures["median"]
    if bar is None or reached is None:
        return ""
    return f", at least {bar:g}: {'met' if reached >= bar else 'missed'}"
