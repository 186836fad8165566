"""The access to the cluster that the tasks of one worker process have."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from headrace.connectors.log.port import LogUnavailable
from headrace.consumers.membership.schema_history import SchemaLogLost
from headrace.pipeline import cluster_access, ingest_task
from headrace.pipeline.raw_offsets import OffsetRange
from tests.unit.pipeline.harness import influx_job


def test_a_task_of_ingest_that_fails_leaves_the_next_one_a_new_access(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that was made again has lost the table log of the old access for good: every later task failed."""
    lost, good = Mock(), Mock()
    lost.begin_task.side_effect = SchemaLogLost("made again", action="connect again")
    monkeypatch.setattr(cluster_access, "_accesses", {})
    monkeypatch.setattr(cluster_access, "KafkaLog", Mock())
    monkeypatch.setattr(cluster_access, "ClusterAccess", opened := Mock(side_effect=[lost, good]))
    monkeypatch.setattr(ingest_task, "offset_range_reader", lambda _: Mock(read=lambda _: iter([])))
    task = influx_job(), "q", 0, OffsetRange("raw", 0, 0, 1), None
    with pytest.raises(SchemaLogLost, match="made again"):
        list(ingest_task.read_records(*task))
    lost.close.assert_called_once_with()
    for _ in range(2):
        list(ingest_task.read_records(*task))
    assert (2, False) == (opened.call_count, good.close.called)


def test_closing_has_no_error_of_its_own() -> None:
    """The error of the task is the one to see; both clients are closed."""
    log = Mock()
    log.close.side_effect = LogUnavailable("gone")
    access = cluster_access.ClusterAccess(log, Mock())
    access.tables = tables = Mock()
    access.close()
    tables.close.assert_called_once_with()
    log.close.assert_called_once_with()
