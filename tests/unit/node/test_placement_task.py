"""What a node does when its groups cannot follow the membership log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.consumers.node.placement_task import PlacementTask


def test_an_error_that_nobody_expects_is_shown_and_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was in no reason of the node, and its traceback came into the log four times a second."""
    follower: Any = SimpleNamespace(state=object(), failure="", caught_up=True)
    local: Any = SimpleNamespace(identity=SimpleNamespace(node="n1"))
    unused: Any = None
    task = PlacementTask(follower, unused, local, unused, unused, unused, unused)
    raised: list[Exception] = [RuntimeError("can't start new thread")] * 3 + [KeyError("n2")]

    def fail(_state: object) -> None:
        if raised:
            raise raised.pop(0)

    monkeypatch.setattr(task, "step", fail)
    with capture_logs() as lines:
        for _ in range(3):
            task.turn()
            assert """RuntimeError("can't start new thread")""" == task.fault
        task.turn()
    assert ["""RuntimeError("can't start new thread")""", "KeyError('n2')"] == [line["error"] for line in lines]
    assert all(line["exc_info"] for line in lines)
    task.turn()
    assert "" == task.fault
