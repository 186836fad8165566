"""The quorum of a sink: the driver waits for the members once, for all that the tasks of a batch wrote."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from headrace.pipeline import sink, writer_cluster
from headrace.pipeline.sink import TaskCommit, TopicReplaced, confirm
from headrace.pipeline.sink_task import SinkTask
from headrace.pipeline.source_options import Target, WriteOptions
from headrace.pipeline.task_positions import TaskPositions
from headrace.producers.acks import QuorumTimeout
from tests.unit.pipeline.source_scene import rows
from tests.unit.producers.scene import NODES, TOPICS, Scene, open_scene

OPTIONS = WriteOptions(Target("db", "t", "c", "nowhere"), ("host",), 2)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """Three members, to which every process of Spark is connected."""
    with open_scene() as opened:
        monkeypatch.setattr(writer_cluster, "writer_cluster", lambda _target: nullcontext(opened.cluster))
        monkeypatch.setattr(sink, "QUORUM_TIMEOUT_MS", 200)
        yield opened


def batch(scene: Scene) -> list[TaskCommit]:
    """The messages of two tasks for the driver."""
    tasks = (SinkTask(scene.cluster, OPTIONS, TaskPositions("q", 0, number)) for number in range(2))
    return [
        pickle.loads(pickle.dumps(TaskCommit(task.write([rows(start, 5)]))))
        for start, task in zip((0, 5), tasks, strict=True)
    ]


def test_a_batch_is_confirmed_by_enough_members(scene: Scene) -> None:
    """One member is too few, and the error has the rows of all tasks; two are enough."""
    commits = batch(scene)
    written = [group for group in NODES if scene.log.topic(TOPICS.forward(group)).records]
    for group in written:
        scene.hold("n1", group)
    with pytest.raises(QuorumTimeout, match="10 rows are in the log"):
        confirm(OPTIONS, list(commits))
    for group in written:
        scene.hold("n2", group)
    confirm(OPTIONS, list(commits))


def test_a_log_that_was_made_again_confirms_nothing(scene: Scene) -> None:
    """Offsets of another log under the name mean other records."""
    commits = batch(scene)
    for group in NODES:
        scene.log.delete_topic(TOPICS.forward(group))
        scene.log.create_topic(TOPICS.forward(group), {})
    with pytest.raises(TopicReplaced):
        confirm(OPTIONS, list(commits))
