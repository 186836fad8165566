"""What the loop of a sender waits for, and for how long."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.connectors.http import NodeRefused
from headrace.consumers.sync import send_loop
from headrace.consumers.sync.send_loop import SendLoop, SendOptions
from headrace.consumers.sync.send_round import RoundCounts
from headrace.consumers.sync.send_settings import SendSettings
from headrace.consumers.sync.sender import SenderName
from headrace.consumers.sync.sender_state import SenderState

FAILED = NodeRefused(
    "http://node: the node failed to answer",
    action="its log has the details",
    status=500,
    document={"kind": "Internal", "message": "the node failed to answer", "retriable": False},
)
UNCONFIRMED = NodeRefused(
    "http://node: the seal of group e2 was not read back in 30 s",
    action="seal again",
    status=409,
    retriable=True,
    document={"kind": "SealUnconfirmed", "message": "the seal of group e2 was not read back", "retriable": True},
)
TAKEN = NodeRefused(
    "http://node: another sender sends from this store",
    status=409,
    retriable=True,
    document={"kind": "CentreTaken", "message": "another sender sends from this store", "retriable": False},
)


class Watcher:
    """See Watcher: keeps the lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def stopping(self) -> bool:
        """Never."""
        return False

    def note(self, line: str) -> None:
        """A line."""
        self.lines.append(line)

    def progress(self, sent_bytes: int, total_bytes: int) -> None:
        """Nothing."""


class Edge:
    """A call of an edge node that fails some times."""

    def __init__(self, error: NodeRefused, times: int) -> None:
        self._error, self._left = error, times

    def call(self) -> str:
        """The answer, once it has failed so many times."""
        if self._left:
            self._left -= 1
            raise self._error
        return "sealed"


@pytest.fixture
def watcher(monkeypatch: pytest.MonkeyPatch) -> Watcher:
    """Who reads what a sender waits for; the sender hardly pauses."""
    monkeypatch.setattr(send_loop, "PAUSE_MAX_S", 0.001)
    return Watcher()


def loop_of(directory: Path, watcher: Watcher, *, once: bool) -> SendLoop:
    """A loop that has not begun; with `once` it has no patience at all."""
    options = SendOptions("http://node", "none:1", "c", directory, SendSettings(wait_s=0), once=once)
    found = SendLoop(options, watcher)
    found._pause_s = 0.001
    return found


@pytest.mark.parametrize("error", [FAILED, UNCONFIRMED])
def test_a_node_that_fails_is_waited_for(tmp_path: Path, watcher: Watcher, error: NodeRefused) -> None:
    """A full disk at the edge passes, and so may a defect of one request: the sender names it, and continues."""
    assert "sealed" == loop_of(tmp_path, watcher, once=False)._patiently(Edge(error, 3).call)
    assert [f"waiting: {error}"] * 3 == watcher.lines


@pytest.mark.parametrize("error", [FAILED, UNCONFIRMED])
def test_one_round_ends_after_its_patience(tmp_path: Path, watcher: Watcher, error: NodeRefused) -> None:
    """A sender of one round waits `wait_s`, then it ends by the error."""
    with pytest.raises(NodeRefused, match="http://node"):
        loop_of(tmp_path, watcher, once=True)._patiently(Edge(error, 3).call)


def test_one_round_does_not_wait_longer_than_it_is_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A try takes 12 s where nobody answers, and pauses grow: of 60 s it made 84."""
    now_s = [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    settings = SendSettings(wait_s=60)
    loop = SendLoop(SendOptions("http://node", "none:1", "c", tmp_path, settings, once=True), Watcher())
    monkeypatch.setattr(loop, "_sleep", lambda pause_s: now_s.append(now_s.pop() + pause_s))

    def asked() -> None:
        now_s.append(now_s.pop() + 12)
        raise FAILED

    with pytest.raises(NodeRefused):
        loop._patiently(asked)
    # The last try begins within it.
    assert 60 < now_s[0] - 1_000 < 60 + 12


def test_what_is_refused_for_good_ends_a_sender(tmp_path: Path, watcher: Watcher) -> None:
    """The store of another sender stays that of another sender, however long this one waits."""
    with pytest.raises(NodeRefused, match="another sender"):
        loop_of(tmp_path, watcher, once=False)._patiently(Edge(TAKEN, 3).call)
    assert [] == watcher.lines


@pytest.mark.parametrize(("error", "ends"), [(TAKEN, True), (FAILED, False)])
def test_the_status_of_a_sender_has_what_it_waits_for_or_has_ended_by(
    tmp_path: Path, watcher: Watcher, error: NodeRefused, ends: bool
) -> None:
    """A service that ends at each start, as that of a copied disk, would look as if all were sent."""
    loop, shown = loop_of(tmp_path, watcher, once=False), list[dict[str, Any]]()
    who, state = SenderName("u", "s", "site7"), SenderState({})
    sender: Any = SimpleNamespace(who=who, state=state, counts=RoundCounts(), round=None, last_error="")
    directory: Any = SimpleNamespace(show=shown.append)
    loop._shown = sender, directory
    with pytest.raises(NodeRefused) if ends else nullcontext():
        loop._patiently(Edge(error, 1).call)
    assert [str(error), *([] if ends else [""])] == [each["last_error"] for each in shown]
