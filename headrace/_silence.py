"""A node that was asked and is silent: does it work on the answer, or is it stopped or cut off?"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from headrace.connectors.http import NodeRefused, NodeUnreachable, call_node

PROBE_TIMEOUT_S = 3.0
MISSED_MAX = 2
"""So many short requests in a row that a node does not answer: it is gone. A busy one may miss the first."""
LIVE_PATH = "/health/live"


class SilentNode:
    """Looks, each time that `look` is called, whether a node still works.

    A new status shows it. Without one, the node is asked for a sign of life on another connection: the kernel accepts
    connections for a process that is stopped, so only an answer counts.
    """

    def __init__(self, url: str, newest_status: Callable[[str], int]) -> None:
        """`newest_status(url)` differs with every status of a node that is online, -1 while it is not known to be."""
        self._url = url
        self._newest_status = newest_status
        self._seen = newest_status(url)
        self._missed = 0

    def look(self, left_s: float = inf) -> None:
        """Raises NodeUnreachable once the node is gone. `left_s`: how long the caller still waits."""
        newest = self._newest_status(self._url)
        if newest >= 0 and newest != self._seen:
            self._seen, self._missed = newest, 0
            return
        # A request would end behind the time of the caller, and a shorter one shows nothing of a busy node.
        if left_s < PROBE_TIMEOUT_S:
            return
        if self._answers():
            self._missed = 0
            return
        self._missed += 1
        offline = self._seen >= 0 and self._newest_status(self._url) < 0
        if offline or self._missed >= MISSED_MAX:
            reason = "it stopped answering amid a request, and gives no sign of life"
            raise NodeUnreachable(
                f"no node answers at {self._url}: {reason}",
                action="is its process stopped, or its machine cut off?",
                reason=reason,
                sent=True,
            )

    def _answers(self) -> bool:
        try:
            call_node(f"{self._url}{LIVE_PATH}", timeout_s=PROBE_TIMEOUT_S)
        except NodeRefused:
            return True
        except NodeUnreachable as error:
            # Nobody listens any more, or nobody answers in time. An answer that is no JSON is one all the same.
            return isinstance(error.__cause__, ValueError)
        return True
