"""The ingest job for a plain `spark-submit`; see docs/operating/ingest.md.

The same as `headrace ingest run` without its display.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    # `spark-submit` puts this file's folder on the path. The folder that holds the package is two levels above
    # in a checkout and three in an installation. Appended, so that an installed or shipped package takes
    # precedence.
    _folder = Path(__file__).resolve().parent.parent.parent
    sys.path.append(str(_folder.parent if (_folder / "__init__.py").exists() else _folder))

from headrace.connectors.log.client_check import check_client_settings
from headrace.pipeline.checkpoint import held_checkpoint
from headrace.pipeline.dead_letter_limit import SHARE_MAX
from headrace.pipeline.failures import check_ended
from headrace.pipeline.ingest import INTERVAL_S, MESSAGES_PER_BATCH_MAX, RunOptions, prepare
from headrace.pipeline.ingest_run import run_ingest
from headrace.pipeline.job import IngestJob
from headrace.pipeline.job_arguments import (
    JobOptionInvalid,
    JobParser,
    add_connection,
    add_messages,
    add_reading,
    kafka_settings,
    message_options,
    notify,
    report,
)
from headrace.pipeline.session import open_session
from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import TimeResolution


def parser() -> JobParser:
    """The options of the job, named as those of `headrace ingest run`."""
    options = JobParser("Write the readings of a raw topic into a cluster.")
    add_connection(options)
    options.add_argument("--topic", required=True)
    options.add_argument("--checkpoint", required=True)
    options.add_argument("--database", help="a mapping may name it")
    add_messages(options)
    add_reading(options)
    options.add_argument("--available-now", action="store_true")
    options.add_argument("--max-messages", type=int, default=MESSAGES_PER_BATCH_MAX)
    options.add_argument("--interval-s", type=float, default=INTERVAL_S)
    options.add_argument("--rejected-share-max", type=float, default=SHARE_MAX, help="0 to 1; 1 sets no limit")
    return options


def main(arguments: list[str]) -> int:
    """Run the job; the exit code. Prints the counts as one JSON object, also of a run that a signal stopped early."""
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        # Only recorded: the run polls it between micro-batches and finishes the current one.
        signal.signal(number, lambda received, _frame: stopped.append(received))
    started_s = time.monotonic()
    try:
        job, run = _parsed(arguments)
        with held_checkpoint(run.checkpoint, job):
            prepare(job, run, notify)
            session = open_session(f"headrace ingest {job.topic}")
            try:
                done = run_ingest(session, job, run, should_stop=lambda: bool(stopped), notify=notify)
            finally:
                session.stop()
        counts = done.counts
        document = {"rows": counts.rows, "points": counts.points, "rejected": counts.rejected, "batches": done.batches}
        sys.stdout.write(json.dumps({**document, "seconds": round(time.monotonic() - started_s, 3)}) + "\n")
        if run.available_now:
            # What schedules the job would take it for complete.
            check_ended(ended=done.ended)
    except HeadraceError as error:
        return report(error)
    return 0


def _parsed(arguments: list[str]) -> tuple[IngestJob, RunOptions]:
    given = parser().parse(arguments)
    if given.max_messages < 1 or given.interval_s < 0 or not 0 <= given.rejected_share_max <= 1:
        raise JobOptionInvalid(
            "--max-messages is less than 1, --interval-s less than 0, or --rejected-share-max not from 0 to 1"
        )
    database, options = message_options(given)
    settings = kafka_settings(given)
    # Before there is a checkpoint.
    check_client_settings(dict(settings))
    resolution = TimeResolution(given.time_resolution)
    job = IngestJob(
        given.cluster,
        given.bootstrap,
        given.topic,
        database,
        given.format,
        options,
        settings,
        resolution=resolution,
        any_time=given.any_time,
    )
    share_max = given.rejected_share_max
    return job, RunOptions(
        given.checkpoint, given.available_now, given.max_messages, given.interval_s, rejected_share_max=share_max
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
