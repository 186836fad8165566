"""The driver of a backfill, over a session that only records its tasks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError

from headrace.connectors.formats.interface import FormatOptions
from headrace.pipeline import backfill, backfill_plan
from headrace.pipeline.backfill import Backfilled, FileUnwritten, run_backfill
from headrace.pipeline.backfill_plan import BackfillJob, BackfillPlan, FileRefused, plan_files
from headrace.pipeline.backfill_state import BackfillState
from headrace.pipeline.failures import SparkEnded
from headrace.pipeline.source_options import Target

JOB = BackfillJob(Target("db", "t"), "csv", FormatOptions(table="t", tags=("site",)), ordered=True)
REFUSED = {"type": "FileRefused", "message": "b.csv: line 2: bad", "action": "correct it", "retriable": False}


class JobFailed(Py4JJavaError):  # type: ignore[misc]
    """How a failed job of Spark reaches Python, where PySpark has no class for its cause."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        outer = "An error occurred while calling o1.collectToPython.\n: org.apache.spark.SparkException: Job aborted"
        return f"{outer}\nCaused by: org.apache.spark.SparkException: {self._text}"


class Tasks:
    """A local session whose tasks give these answers, one after the other; an error is raised."""

    def __init__(self, answers: Sequence[dict[str, Any] | Exception]) -> None:
        self.answers = list(answers)
        self.sparkContext = SimpleNamespace(master="local[2]", defaultParallelism=2, getConf=dict)

    def range(self, *_numbers: int) -> Tasks:
        """See SparkSession."""
        return self

    def mapInArrow(self, _function: object, _schema: str) -> Tasks:  # noqa: N802
        """See DataFrame."""
        return self

    def collect(self) -> list[tuple[str]]:
        """The next answer."""
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [(json.dumps(answer),)]


def written(number: int) -> dict[str, Any]:
    """The answer of a task that has written a file of two rows."""
    return {"number": number, "digest": "d", "rows": 2, "points": 2}


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BackfillPlan:
    """Three files, each a task of its own."""
    monkeypatch.setattr(backfill_plan, "CHUNK_FILES", 1)
    paths = [str(tmp_path / name) for name in ("a.csv", "b.csv", "c.csv")]
    for path in paths:
        Path(path).write_text("site,time,x\na,1,2\n")
    with BackfillState(tmp_path / "plan", "k") as state:
        return plan_files(JOB, paths, state)


def run(tasks: Tasks, plan: BackfillPlan, state: BackfillState, job: BackfillJob = JOB) -> Backfilled:
    """One run over these tasks."""
    return run_backfill(tasks, job, plan, state)  # type: ignore[arg-type]


@pytest.mark.parametrize(("failure", "raised"), [(REFUSED, FileRefused), (OSError("away"), OSError)])
def test_in_order_no_file_is_written_behind_one_that_failed(
    failure: dict[str, Any] | Exception, raised: type[Exception], plan: BackfillPlan, tmp_path: Path
) -> None:
    """Its rows come later, and would win against those of the files behind it, which replicas then drop as repeats."""
    tasks = Tasks([written(0), failure, written(2)])
    with BackfillState(tmp_path / "state", "k") as state:
        with pytest.raises(raised):
            run(tasks, plan, state)
        assert [True, True, False] == [state.known(each.path) is not None for each in plan.files]
        assert [written(2)] == tasks.answers


def test_a_worker_that_crashed_or_came_late_is_an_error_of_one_line(
    plan: BackfillPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that did not start in time is started again. One that the system killed ends the run, with the file."""
    monkeypatch.setattr(backfill, "RESTART_PAUSE_S", 0.0)
    late = JobFailed("Python worker failed to connect back.\n\tat org.apache.spark.X.f(X.scala:1)")
    crashed = JobFailed("Python worker exited unexpectedly (crashed)\n\tat org.apache.spark.X.f(X.scala:1)")
    with BackfillState(tmp_path / "state", "k") as state:
        assert 3 == run(Tasks([written(0), late, written(1), written(2)]), plan, state).files
    with BackfillState(tmp_path / "other", "k") as state, pytest.raises(FileUnwritten) as raised:
        run(Tasks([crashed]), plan, state)
    cause = "the query ended: Python worker exited unexpectedly (crashed)"
    assert f"the task with {plan.files[0].path} failed: {cause}" == raised.value.message


@pytest.mark.parametrize("gone", [Py4JNetworkError("empty"), ConnectionRefusedError(111, "Connection refused")])
def test_the_end_of_java_is_named(gone: Exception, plan: BackfillPlan, tmp_path: Path) -> None:
    """A JVM that was killed, as for want of memory, shows as a broken connection, which names nothing."""
    with BackfillState(tmp_path / "state", "k") as state, pytest.raises(SparkEnded, match="Java process ended"):
        run(Tasks([gone]), plan, state)
