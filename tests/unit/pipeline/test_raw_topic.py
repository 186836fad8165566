"""A raw topic that was created again is another topic, however many messages it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.pipeline.failures import RawDataLost, explain
from headrace.pipeline.raw_topic import RawTopic


def test_a_topic_created_again_under_a_run_ends_it(tmp_path: Path) -> None:
    """The error names the topic, as when Kafka deleted messages that were not read."""
    topic = RawTopic("raw", str(tmp_path))
    topic.check("first")
    topic.check("first")
    with pytest.raises(RawDataLost, match="topic raw"):
        topic.check("second")


def test_a_checkpoint_remembers_its_topic(tmp_path: Path) -> None:
    """A topic that is created again between two runs is detected at the start."""
    RawTopic("raw", str(tmp_path)).check("first")
    with pytest.raises(RawDataLost):
        RawTopic("raw", str(tmp_path)).check("second")
    RawTopic("raw", str(tmp_path)).check("first")


def test_a_checkpoint_elsewhere_is_compared_within_a_run() -> None:
    """Its folder is left to Spark."""
    topic = RawTopic("raw", "hdfs://host/checkpoint")
    topic.check("first")
    with pytest.raises(RawDataLost):
        topic.check("second")


def test_the_error_out_of_a_micro_batch_is_recognised() -> None:
    """Spark passes it on as text."""
    text = "headrace.pipeline.failures.RawDataLost: topic raw no longer holds messages (keep raw messages longer)"
    assert isinstance(explain(RuntimeError(f"Traceback:\n{text}\n"), "raw"), RawDataLost)
