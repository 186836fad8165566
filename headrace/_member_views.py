"""The groups of a cluster and their members, as commands see them: over Kafka, or as one node shows them."""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from headrace._node_errors import not_a_node
from headrace.connectors.deadline import Deadline
from headrace.connectors.http import NodeRefused
from headrace.connectors.log.port import Log, TopicState
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.replication.failure_detector import OFFLINE_MS, FailureDetector
from headrace.consumers.replication.heartbeat import StatusReader
from headrace.node_client import NodeClient
from headrace.schemas.framing import FrameInvalid, SchemaUnknown
from headrace.schemas.records import Status, decode_status

LISTEN_S = 1.5
FOLLOW_S = 0.2


class LiveMembers(Protocol):
    """Owned by one thread."""

    @property
    def groups(self) -> Sequence[str]:
        """The data groups, in ring order."""
        ...

    def members(self, group: str) -> tuple[str, ...]:
        """The members of a group, its header first."""
        ...

    def log_state(self, group: str) -> TopicState:
        """Identity and ends of the log of a group. Raises TopicMissing, LogUnavailable, NodeUnreachable."""
        ...

    def live(self, group: str) -> list[Status]:
        """The newest statuses of its members that are alive."""
        ...

    def unread_fault(self) -> str:
        """Which nodes send statuses that this build cannot read, empty when none does."""
        ...

    def follow(self, timeout_s: float) -> None:
        """Take what is new, waiting up to `timeout_s` for it. Raises as `log_state`."""
        ...

    def close(self) -> None:
        """Release its connections."""
        ...


class LogView:
    """See LiveMembers: by the status topic."""

    def __init__(self, log: Log, topics: Topics, slot_table: SlotTable) -> None:
        self._log = log
        self._topics = topics
        self._slot_table = slot_table
        self._reader = StatusReader(log, topics.status)
        # Nodes send heartbeats every 500 ms: long enough for one of every live node, also on a busy machine.
        shortest, longest = Deadline(LISTEN_S), Deadline(OFFLINE_MS / 1_000)
        while not shortest.passed() or (self._awaited() and not longest.passed()):
            self._reader.follow(min(FOLLOW_S, longest.left_s()))

    def _awaited(self) -> bool:
        """Whether a node counts as online by what it sent before this view, and has sent nothing since."""
        return any(each.node not in self._reader.senders for each in self.statuses.online())

    @property
    def statuses(self) -> FailureDetector:
        """What the members of all groups have sent."""
        return self._reader.detector

    @property
    def groups(self) -> Sequence[str]:
        """See LiveMembers."""
        return self._slot_table.headers

    def members(self, group: str) -> tuple[str, ...]:
        """See LiveMembers."""
        return self._slot_table.group(group)

    def log_state(self, group: str) -> TopicState:
        """See LiveMembers."""
        return self._log.describe(self._topics.forward(group, self._slot_table.birth(group)))

    def live(self, group: str) -> list[Status]:
        """See LiveMembers."""
        # The time of statuses passes with them alone: where no node runs, the last ones would be of now for ever.
        live = self._reader.detector.live(group, self.members(group))
        return [each for each in live if each.node in self._reader.senders]

    def unread_fault(self) -> str:
        """See LiveMembers."""
        return self._reader.detector.unread_fault("this client")

    def follow(self, timeout_s: float) -> None:
        """See LiveMembers."""
        self._reader.follow(timeout_s)

    def close(self) -> None:
        """See LiveMembers."""
        self._reader.close()


@dataclass(frozen=True, slots=True)
class _ShownGroup:
    members: tuple[str, ...]
    log: TopicState


class NodeView:
    """See LiveMembers: by what a node shows. Each look is a request of its own."""

    def __init__(self, url: str) -> None:
        """Raises NodeUnreachable, NodeRefused."""
        self._client = NodeClient(url)
        self._groups: dict[str, _ShownGroup] = {}
        self._online: list[Status] = []
        self._look()

    @property
    def groups(self) -> Sequence[str]:
        """See LiveMembers."""
        return tuple(self._groups)

    def members(self, group: str) -> tuple[str, ...]:
        """See LiveMembers."""
        return self._groups[group].members

    def log_state(self, group: str) -> TopicState:
        """See LiveMembers."""
        return self._groups[group].log

    def live(self, group: str) -> list[Status]:
        """See LiveMembers."""
        found = {each.node: each for each in self._online if each.group == group}
        return [found[node] for node in self.members(group) if node in found]

    def unread_fault(self) -> str:
        """See LiveMembers."""
        # What the node itself sends is refused when it is looked at.
        return ""

    def follow(self, timeout_s: float) -> None:
        """See LiveMembers."""
        # A node calls nobody back: what is new is seen by the next look.
        time.sleep(timeout_s)
        self._look()

    def close(self) -> None:
        """See LiveMembers."""

    def _look(self) -> None:
        document = self._client.members()
        try:
            self._groups = {each["group"]: _shown(each) for each in document["groups"]}
            statuses = [decode_status(b64decode(each)) for each in document["online"]]
            # The address at which this node was reached works from here; the one that it advertises need not.
            self._online = [
                replace(each, http=self._client.url) if each.node == document["node"] else each for each in statuses
            ]
        except SchemaUnknown as error:
            raise NodeRefused(
                f"{self._client.url} is of a newer build: it shows statuses that this one cannot read",
                action="upgrade this client",
            ) from error
        except (LookupError, TypeError, ValueError, FrameInvalid) as error:
            raise not_a_node(self._client.url) from error


def _shown(group: Mapping[str, Any]) -> _ShownGroup:
    topic_id, begin, end = group["log"]
    return _ShownGroup(tuple(group["members"]), TopicState(str(topic_id), int(begin), int(end)))
