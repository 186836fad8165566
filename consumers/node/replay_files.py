"""Fetches the files that a log has loaded, for an offline replay: the log has their names, and other members the bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from headrace.connectors.log.port import Log
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.migration.cut_source import CutSource
from headrace.consumers.migration.peer_cut import PeerCut
from headrace.consumers.migration.puller import SlotPuller
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.heartbeat import StatusReader
from headrace.consumers.replication.leader_tasks import NotLeader
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.membership_records import SlotDone
from headrace.schemas.messages import Load


class LoadedFilesMissing(HeadraceError):
    """The log has loaded files of other groups, and no other member gives them."""


class ReplayFiles:
    """See PullEnvironment: that of a node which leads nothing, serves nothing and reports nothing.

    Owned by the thread of the replay, which calls `turn` until `awaited` is 0.
    """

    def __init__(
        self,
        node: str,
        log: Log,
        topics: Topics,
        groups: Mapping[str, Group],
        state: MembershipState,
        limits: ReplicationLimits,
    ) -> None:
        self.node = node
        self.groups = groups
        # Without the change that may run: its files are fetched by the node, once it is started.
        self.state = replace(state, change=None)
        self._topics = topics
        self._statuses = StatusReader(log, topics.status)
        pool = ThreadPoolExecutor(limits.migration_fetches_max, thread_name_prefix="replay-files")
        self._puller = SlotPuller(self, limits, pool)
        self._merged = ""

    @property
    def fetched(self) -> int:
        """Files that other members have sent."""
        return self._puller.files.files

    @property
    def awaited(self) -> int:
        """Files that the logs have named so far and that are not here."""
        return sum(len(group.store.awaited()) for group in list(self.groups.values()))

    def turn(self) -> None:
        """Look who is online, and fetch what is awaited. Raises LoadedFilesMissing for files that were merged since."""
        self._statuses.follow(0.0)
        self._puller.turn()
        if self._merged:
            raise self.missing(self._merged)

    def missing(self, why: str = "") -> LoadedFilesMissing:
        """The error of a replay that cannot get the files."""
        topics = [topic for topic, group in self.groups.items() if group.store.awaited()]
        faults = [fault for topic in topics if (fault := self._puller.files.fault(topic))]
        reasons = "; ".join([why] if why else faults) or "no other member of their groups is online"
        return LoadedFilesMissing(
            f"the logs have loaded {self.awaited} files that are not in them: {reasons}",
            action="start the other members, or start the node instead: it recovers from their files; "
            "nothing was replaced",
        )

    def close(self) -> None:
        """End the fetches."""
        self._puller.stop()
        self._statuses.close()

    # See PullEnvironment.

    def topic(self, key: GroupKey) -> str:
        """See PullEnvironment."""
        return self._topics.forward(key.group, key.birth)

    def source(self, node: str, key: GroupKey) -> CutSource | None:
        """See PullEnvironment."""
        detector = self._statuses.detector
        present = (each.http for each in detector.presences() if each.node == node)
        http = next((address for address in present if address), "")
        return PeerCut(node, http, key, self.topic(key)) if http else None

    def leads(self, topic: str) -> bool:
        """See PullEnvironment."""
        del topic
        return False

    def append_loads(self, topic: str, loads: Sequence[Load]) -> None:
        """See PullEnvironment."""
        raise NotLeader(f"a replay appends no {len(loads)} loads to {topic}")

    def replace_data(self, topic: str, why: str, trusted: frozenset[str]) -> None:
        """See PullEnvironment."""
        del topic, trusted
        self._merged = why

    def report(self, done: SlotDone) -> None:
        """See PullEnvironment."""
        raise NotLeader(f"a replay reports no slots of change {done.change}")
