"""A cluster that was deleted and made again under its name is not the one that a checkpoint has written."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from pyspark.sql.types import StringType, StructField, StructType
from pyspark.sql.types import TimestampNTZType as Timestamp

from headrace.pipeline import ingest, sink, writer_cluster
from headrace.pipeline.checkpoint import CLUSTER_FILE, BoundCluster, CheckpointForeign, check_sink
from headrace.pipeline.checkpoint_file import OWN_FOLDER
from headrace.pipeline.cluster_access import ClusterAccess
from headrace.pipeline.data_source import HeadraceDataSource
from headrace.pipeline.ingest import RunOptions, forward_writer, prepare
from headrace.pipeline.sink import BATCH_PROPERTY, QUERY_PROPERTY
from tests.unit.pipeline.harness import TOPICS, influx_job, new_log
from tests.unit.pipeline.source_scene import TARGET, SourceScene, new_scene, rows

SCHEMA = StructType([StructField("host", StringType()), StructField("time", Timestamp())])


class Query:
    """A streaming query with a sink: for each batch a writer, a task in another process, and the end of the batch."""

    def __init__(self, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        options = {"table": TARGET.name, "cluster": "c", "bootstrap": "nowhere:1", "tags": "host"}
        self._options = options | {"checkpointLocation": str(checkpoint)}
        self._patch = monkeypatch

    def batch(self, scene: SourceScene, number: int) -> None:
        """Write a batch."""
        names = {QUERY_PROPERTY: "q", BATCH_PROPERTY: str(number)}
        context = SimpleNamespace(getLocalProperty=names.get, partitionId=lambda: 0)
        self._patch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
        self._patch.setattr(writer_cluster, "writer_cluster", lambda _target: nullcontext(scene.cluster))
        writer = pickle.loads(pickle.dumps(HeadraceDataSource(self._options).streamWriter(SCHEMA, False)))
        commit = pickle.loads(pickle.dumps(writer.write(iter([rows(number, 4)]))))
        HeadraceDataSource(self._options).streamWriter(SCHEMA, False).commit([commit], number)


def test_a_sink_does_not_continue_in_a_cluster_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of earlier batches would be missing there, and nobody would know. Nothing is written."""
    query, first, again = Query(tmp_path, monkeypatch), new_scene(), new_scene()
    for number in range(2):
        query.batch(first, number)
    with pytest.raises(CheckpointForeign, match=r"cluster c was made again.*new checkpoint"):
        query.batch(again, 2)
    assert [] == again.values()
    query.batch(first, 2)


def test_the_sink_of_an_earlier_build_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoint names the cluster alone, and is bound to the one that it finds."""
    check_sink(str(tmp_path), "c", TARGET.name)
    query, scene = Query(tmp_path, monkeypatch), new_scene()
    query.batch(scene, 7)
    with pytest.raises(CheckpointForeign):
        query.batch(new_scene(), 8)


def test_ingest_does_not_continue_in_a_cluster_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a run that begins nor the next micro-batch of one that runs."""
    run, first = RunOptions(str(tmp_path)), new_log()
    first.create_topic("raw", {})
    log = MagicMock(wraps=first)
    monkeypatch.setattr(ingest, "KafkaLog", lambda *_: log)
    log.close = MagicMock()
    for _ in range(2):
        prepare(influx_job(), run, lambda _line: None)
    records = MagicMock()
    forward_writer(records, influx_job(), run)
    [forward] = records.writeStream.foreachBatch.call_args.args
    again = new_log()
    membership = again.describe(TOPICS.membership)
    # The raw topic is still the same one.
    log.describe = lambda topic: membership if topic == TOPICS.membership else first.describe(topic)
    monkeypatch.setattr(ingest, "cluster_access", lambda _job: ClusterAccess(log, TOPICS))
    with pytest.raises(CheckpointForeign, match="cluster c was made again"):
        forward(MagicMock(), 3)
    with pytest.raises(CheckpointForeign, match="cluster c was made again"):
        prepare(influx_job(), run, lambda _line: None)


def test_a_checkpoint_elsewhere_is_compared_within_a_run() -> None:
    """Its folder is left to Spark."""
    for checkpoint in ("", "hdfs://host/checkpoint"):
        bound = BoundCluster("c", checkpoint)
        bound.check("first")
        with pytest.raises(CheckpointForeign):
            bound.check("second")


def test_a_checkpoint_is_bound_once(tmp_path: Path) -> None:
    """Two tasks that have written to two clusters end the batch."""
    bound = BoundCluster("c", str(tmp_path))
    bound.check("first")
    for other in (bound, BoundCluster("c", tmp_path.as_uri())):
        with pytest.raises(CheckpointForeign):
            other.check("second")
    assert "first" in (tmp_path / OWN_FOLDER / CLUSTER_FILE).read_text()
