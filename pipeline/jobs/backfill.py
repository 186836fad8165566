"""The backfill job for a plain `spark-submit`; see docs/operating/backfill.md.

The same as `headrace backfill` without its display. Executors read the files under the paths that the driver has.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

if __name__ == "__main__":
    # As in `ingest.py`: a package that is installed or shipped takes precedence.
    _folder = Path(__file__).resolve().parent.parent.parent
    sys.path.append(str(_folder.parent if (_folder / "__init__.py").exists() else _folder))

from headrace.connectors.log.client_check import check_client_settings
from headrace.pipeline.backfill import Backfilled, prepare, run_backfill
from headrace.pipeline.backfill_plan import BackfillJob, find_files, plan_files
from headrace.pipeline.job_arguments import (
    JobParser,
    add_connection,
    add_reading,
    kafka_settings,
    notify,
    reading_options,
    report,
)
from headrace.pipeline.session import open_session
from headrace.pipeline.source_options import Target
from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import TimeResolution

WAIT_S = 30.0


def parser() -> JobParser:
    """The options of the job, named as those of `headrace backfill`."""
    options = JobParser("Write Parquet or CSV files into a table.")
    options.add_argument("patterns", nargs="+", metavar="PATTERN")
    add_connection(options)
    options.add_argument("--format", choices=("parquet", "csv"), required=True)
    options.add_argument("--database", required=True)
    options.add_argument("--checkpoint", required=True, help="a local directory for the progress by file")
    add_reading(options, table_required=True)
    options.add_argument("--delimiter", default=",")
    for flag in ("--no-tags", "--ordered", "--ignore-folders", "--again", "--changed"):
        options.add_argument(flag, action="store_true")
    return options


def main(arguments: list[str]) -> int:
    """Run the job; the exit code. Prints the counts as one JSON object."""
    begun_s = time.monotonic()
    try:
        given = parser().parse(arguments)
        settings, options = kafka_settings(given), reading_options(given)
        check_client_settings(dict(settings))
        # Before Kafka: a misspelt name must not wait for a broker first.
        paths = find_files(given.patterns)
        target = Target(given.database, given.table, given.cluster, given.bootstrap, settings)
        resolution = TimeResolution(given.time_resolution)
        how = (given.any_time, given.ordered, given.ignore_folders)
        job = BackfillJob(target, given.format, options, resolution, *how)
        cluster = prepare(job, WAIT_S, notify, no_tags=given.no_tags)
        job, opened = cluster.begin(job, Path(given.checkpoint))
        with opened as state:
            plan = plan_files(job, paths, state, cluster.tags, again=given.again, changed=given.changed)
            done = Backfilled(skipped=plan.written_before)
            if plan.files:
                session = open_session(f"headrace backfill {target.name}")
                try:
                    done = run_backfill(session, job, plan, state)
                finally:
                    session.stop()
    except HeadraceError as error:
        return report(error)
    sys.stdout.write(json.dumps({**asdict(done), "seconds": round(time.monotonic() - begun_s, 3)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
