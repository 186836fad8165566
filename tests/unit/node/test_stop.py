"""The end of a node: what waits for the log is asked to end first, and every part ends whatever fails."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from headrace.consumers.replication.heartbeat import Heartbeat
from headrace.consumers.store import StoreError
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


def test_a_part_that_fails_keeps_none_behind_it_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full fails several: all threads end, and the directory is free. The first error is raised."""
    names = ("n1", "n2")
    with running_nodes(tmp_path, monkeypatch, names) as nodes:
        node = nodes.running["n1"]
        groups = list(node.groups.values())
        threads = [node.log_consumer._thread, *node.heartbeat._threads, *(group._thread for group in groups)]

        def failing(part: str, end: Callable[[], None]) -> None:
            end()
            raise StoreError(part)

        monkeypatch.setattr(node.engine, "close", partial(failing, "queries", node.engine.close))
        for group in groups:
            monkeypatch.setattr(group.store, "close", partial(failing, group.name, group.store.close))
        with pytest.raises(StoreError, match="queries"):
            nodes.stop("n1")
        assert [] == [thread.name for thread in threads if thread.is_alive()]
        # It opens what the failed end has left unlocked.
        nodes.start("n1")
        nodes.ready()
