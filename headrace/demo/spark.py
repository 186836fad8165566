"""The demo's Spark jobs: `headrace ingest run` as anybody would start it, one process a topic."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from headrace.connectors.held_signals import signals_held
from headrace.demo.stage import DATABASE, FLEET_TOPIC, MACHINE_TOPIC, Stage
from headrace.schemas.errors import HeadraceError
from headrace.workload.machine import MACHINE_TABLE, MACHINE_TAGS

TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 30.0


class IngestFailed(HeadraceError):
    """A Spark job of the demo that ended with an error; the end of its log is in the message."""


def ingest(stage: Stage) -> dict[str, dict[str, Any]]:
    """Run both jobs side by side until they have read what is there; their results by topic.

    Raises IngestFailed.
    """
    machine = ["--format", "json", "--table", MACHINE_TABLE, "--tags", ",".join(MACHINE_TAGS)]
    jobs: dict[str, subprocess.Popen[bytes]] = {}
    try:
        with signals_held():
            jobs[FLEET_TOPIC] = _start(stage, FLEET_TOPIC, "fleet", ["--format", "influx"])
            jobs[MACHINE_TOPIC] = _start(stage, MACHINE_TOPIC, "machine", machine)
        return {topic: _result(stage, job, topic.rpartition(".")[2]) for topic, job in jobs.items()}
    finally:
        for job in jobs.values():
            if job.poll() is None:
                _end(job)


def _start(stage: Stage, topic: str, name: str, options: list[str]) -> subprocess.Popen[bytes]:
    # As a user starts it, in a process of its own. Without -P a folder `headrace` in the current directory
    # would win.
    command = [
        *(sys.executable, "-P", "-m", "headrace", "ingest", "run", "--cluster", stage.cluster.cluster),
        *("--bootstrap", stage.cluster.bootstrap, "--topic", topic, "--database", DATABASE, *options),
        *("--available-now", "--checkpoint", str(stage.cluster.directory / "checkpoints" / name), "--json"),
    ]
    # A session of its own: Ctrl-C reaches the demo alone, which then ends the job.
    with _log(stage, name).open("ab") as errors:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )


def _result(stage: Stage, job: subprocess.Popen[bytes], name: str) -> dict[str, Any]:
    try:
        answer, _ = job.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise IngestFailed(
            f"Spark ingest of {name} took longer than {TIMEOUT_S:g} s", action=f"see {_log(stage, name)}"
        ) from error
    if job.returncode != 0:
        tail = _log(stage, name).read_text(errors="replace").strip().splitlines()[-3:]
        raise IngestFailed(
            f"Spark ingest of {name} ended with {job.returncode}: {' / '.join(tail)}",
            action=f"see {_log(stage, name)}",
        )
    result: dict[str, Any] = json.loads(answer)
    return result


def _end(job: subprocess.Popen[bytes]) -> None:
    """End a job, by force when it takes too long; Spark's Java process ends with it."""
    job.terminate()
    try:
        job.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        job.kill()
        job.wait(STOP_TIMEOUT_S)


def _log(stage: Stage, name: str) -> Path:
    return stage.cluster.directory / f"ingest-{name}.log"
