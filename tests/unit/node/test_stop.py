"""The end of a node: what waits for the log is asked to end before anything is waited for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from headrace.consumers.replication.heartbeat import Heartbeat
from tests.unit.nodes import running_nodes


@pytest.mark.parametrize("is_fenced", [False, True])
def test_threads_that_wait_for_a_log_that_is_gone_wait_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_fenced: bool
) -> None:
    """Without Kafka each took its 5 s and more, one after another. A node whose status is read sends it to the last."""
    seen: dict[str, tuple[bool, ...]] = {}
    with running_nodes(tmp_path, monkeypatch, ("n1",)) as nodes:
        node = nodes.running["n1"]
        tasks, consumer, heartbeat = node.leader_tasks, node.log_consumer, node.heartbeat

        def note(part: str) -> None:
            asked = (tasks._task.stopping, consumer._stopping, heartbeat._stopping)
            seen[part] = tuple(each.is_set() for each in asked)

        def stopped(part: str, stop: Callable[[], None]) -> None:
            note(part)
            stop()

        for part in ("placement", "divergence_monitor"):
            stop = getattr(node, part).stop
            monkeypatch.setattr(getattr(node, part), "stop", partial(stopped, part, stop))
        monkeypatch.setattr(Heartbeat, "fenced", property(lambda _self: is_fenced))
        nodes.stop("n1")
    assert {"placement": (False, False, False), "divergence_monitor": (True, True, is_fenced)} == seen
