"""The ingest job for a plain `spark-submit`; see docs/operating/ingest.md.

The same as `headrace ingest run` without its display.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__":
    # `spark-submit` puts this file's folder on the path. The folder that holds the package is two levels above
    # in a checkout and three in an installation. Appended, so that an installed or shipped package takes
    # precedence.
    _folder = Path(__file__).resolve().parents[2]
    sys.path.append(str(_folder.parent if (_folder / "__init__.py").exists() else _folder))

from headrace.connectors.formats.interface import MESSAGE_FORMATS, FormatOptions, SchemaPlace
from headrace.connectors.formats.mapping import read_mapping
from headrace.pipeline.checkpoint import held_checkpoint
from headrace.pipeline.ingest import INTERVAL_S, MESSAGES_PER_BATCH_MAX, RunOptions, prepare
from headrace.pipeline.ingest_run import run_ingest
from headrace.pipeline.job import IngestJob
from headrace.pipeline.session import open_session
from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import TimeResolution


def parser() -> argparse.ArgumentParser:
    """The options of the job, named as those of `headrace ingest run`."""
    options = argparse.ArgumentParser(description="Write the readings of a raw topic into a cluster.")
    for name in ("cluster", "bootstrap", "topic", "database", "checkpoint"):
        options.add_argument(f"--{name}", required=True)
    options.add_argument("--format", choices=MESSAGE_FORMATS, required=True)
    options.add_argument("--columns", default="", help="comma-separated")
    options.add_argument("--mapping", help="a TOML file; it replaces the other options about the table")
    options.add_argument("--schema-dir")
    options.add_argument("--registry")
    options.add_argument("--table")
    options.add_argument("--table-column")
    options.add_argument("--tags", default="", help="comma-separated")
    options.add_argument("--tag", action="append", default=[], metavar="KEY=VALUE")
    options.add_argument("--time-column", default="time")
    options.add_argument("--time-unit", choices=("ns", "us", "ms", "s"), default="ns")
    options.add_argument("--time-format")
    options.add_argument("--time-resolution", choices=("us", "ns"), default="us")
    options.add_argument("--any-time", action="store_true")
    options.add_argument("--available-now", action="store_true")
    options.add_argument("--max-messages", type=int, default=MESSAGES_PER_BATCH_MAX)
    options.add_argument("--interval-s", type=float, default=INTERVAL_S)
    options.add_argument("-X", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    return options


def main(arguments: list[str]) -> int:
    """Run the job; the exit code. Prints the counts as one JSON object."""
    given = parser().parse_args(arguments)
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        # Only recorded: the run polls it between micro-batches and finishes the current one.
        signal.signal(number, lambda received, _frame: stopped.append(received))
    started_s = time.monotonic()
    try:
        job = _job(given)
        run = RunOptions(given.checkpoint, given.available_now, given.max_messages, given.interval_s)
        with held_checkpoint(run.checkpoint, job):
            prepare(job, run, _notify)
            session = open_session(f"headrace ingest {job.topic}")
            try:
                done = run_ingest(session, job, run, should_stop=lambda: bool(stopped), notify=_notify)
            finally:
                session.stop()
    except HeadraceError as error:
        _notify(f"error: {error}")
        return 1
    counts = done.counts
    document = {"rows": counts.rows, "points": counts.points, "rejected": counts.rejected, "batches": done.batches}
    sys.stdout.write(json.dumps({**document, "seconds": round(time.monotonic() - started_s, 3)}) + "\n")
    return 0


def _job(given: argparse.Namespace) -> IngestJob:
    options = FormatOptions(
        table=given.table,
        table_column=given.table_column,
        tags=_names(given.tags),
        static_tags=tuple(_pairs(given.tag)),
        time_column=given.time_column,
        time_unit=given.time_unit,
        time_format=given.time_format,
        columns=_names(given.columns),
    )
    if given.mapping is not None:
        options = read_mapping(Path(given.mapping).read_text(), given.topic).options
    options = replace(options, schemas=SchemaPlace(given.schema_dir, given.registry))
    return IngestJob(
        given.cluster,
        given.bootstrap,
        given.topic,
        given.database,
        given.format,
        options,
        tuple(sorted(_pairs(given.settings))),
        resolution=TimeResolution(given.time_resolution),
        any_time=given.any_time,
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _pairs(texts: list[str]) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (text.partition("=") for text in texts)]


def _notify(message: str) -> None:
    sys.stderr.write(f"{message}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
