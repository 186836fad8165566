"""The start of a node that fails midway."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from headrace.consumers.replication.leader_tasks import LeaderTasks
from tests.unit.nodes import Nodes


def test_a_start_that_fails_leaves_no_thread_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was started is stopped before its files are closed: a thread would run on over a closed journal."""
    nodes, before = Nodes(tmp_path, ("n1",)), set(threading.enumerate())

    def refuses(_self: LeaderTasks) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(LeaderTasks, "start", refuses)
    with pytest.raises(RuntimeError, match="new thread"):
        nodes.start("n1")
    nodes.stop("n1")
    left = [
        thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith(("consume", "heart"))
    ]
    assert [] == left
    monkeypatch.undo()
    nodes.start("n1")
    nodes.ready()
    nodes.stop("n1")
