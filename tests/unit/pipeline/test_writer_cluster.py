"""The connection by which the tasks of one worker process write."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from headrace.consumers.membership.membership_follower import MembershipLogLost
from headrace.pipeline import writer_cluster
from headrace.pipeline.backfill_plan import BackfillJob
from headrace.pipeline.backfill_task import write_files
from headrace.pipeline.source_options import Target


def test_a_task_that_fails_leaves_the_next_one_a_new_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that was made again has lost the logs of the old connection for good: every later task failed."""
    lost, good = Mock(), Mock()
    lost.tables.refresh.side_effect = MembershipLogLost("made again", action="connect again")
    lost.log.close.side_effect = MembershipLogLost("an error behind that of the task")
    monkeypatch.setattr(writer_cluster, "_open", {})
    monkeypatch.setattr(writer_cluster, "_connect", connect := Mock(side_effect=[lost, good]))
    job = BackfillJob(Target("db", "t", "c", "nowhere"), "csv")
    with pytest.raises(MembershipLogLost, match="made again"):
        list(write_files(job, (), ""))
    for part in (lost.log, lost.routing, lost.tables, lost.watch, lost.appender):
        part.close.assert_called_once_with()
    for _ in range(2):
        assert [] == list(write_files(job, (), ""))
    assert (2, False) == (connect.call_count, good.log.close.called)
