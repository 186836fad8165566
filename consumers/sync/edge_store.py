"""What a node does for the senders of its store: registers their centres, seals, lists files, notes progress."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from headrace.connectors.deadline import Deadline
from headrace.consumers.replication.group import Group
from headrace.consumers.sync.centres import Centre, Centres
from headrace.consumers.sync.listing import Listing
from headrace.consumers.sync.snapshots import SyncSnapshotRefused, SyncSnapshots
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import FORMAT
from headrace.schemas.group_names import group_identity

SEAL_COMMIT_TIMEOUT_S = 60.0
_COMMIT_POLL_S = 0.02


class GroupNotSealed(HeadraceError):
    """A group whose newest seal is not in files in time."""


class SyncGroups(Protocol):
    """The groups of a node, as its senders need them; see `consumers.node.sync_source`."""

    @property
    def groups(self) -> Mapping[str, Group]:
        """The groups that are here, by forward topic."""
        ...

    def reason(self, topic: str) -> str:
        """Why a group is not in sync here, empty when it is."""
        ...

    def leads(self, topic: str) -> bool:
        """Whether this node leads a group."""
        ...

    def unsealed_s(self, topic: str) -> float:
        """For how long a group has had rows in no file, 0 without such rows."""
        ...

    def seal(self, group_name: str) -> Mapping[str, Any]:
        """Seal a group that this node leads and wait until the log confirms it."""
        ...

    def store_identity(self) -> str:
        """The identity of the cluster: the topic id of its membership log."""
        ...

    def members(self) -> Mapping[str, str]:
        """The HTTP address of each node of the cluster that is known, by its name."""
        ...


@dataclass(frozen=True, slots=True)
class CentreFigures:
    """For metrics: what one centre has not decided about, as far as it is sealed here."""

    cluster: str
    files: int
    bytes: int
    oldest_s: float


class EdgeStore:
    """Safe for any thread. `now_s` is the wall clock, which files are stamped with."""

    def __init__(
        self,
        cluster: str,
        node: str,
        groups: SyncGroups,
        centres: Centres,
        snapshots: SyncSnapshots,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self.centres = centres
        self.snapshots = snapshots
        self._cluster = cluster
        self._node = node
        self._groups = groups
        self._now_s = now_s

    def describe(self) -> dict[str, Any]:
        """The identity of the store, its members, and its centres with what they have not decided about."""
        # Rows first: what is sealed behind them is in the files then, and never in neither.
        unsealed = sum(group.applied.unsealed_rows for group in tuple(self._groups.groups.values()))
        centres = [
            {
                **asdict(each),
                "groups": dict(each.groups),
                "unsealed_rows": unsealed,
                "files": self._figures(each).files,
                "deletes": sum(
                    group.store.deletes_above(each.progress(group.key)) for group in tuple(self._groups.groups.values())
                ),
            }
            for each in self.centres.all()
        ]
        return {
            "store": self._groups.store_identity(),
            "cluster": self._cluster,
            "members": dict(self._groups.members()),
            "centres": centres,
        }

    def register(self, centre: str, cluster: str, sender: str, name: str) -> dict[str, Any]:
        """Make a centre known, and describe the store to its sender. Raises CentreTaken, CentreUnwritable."""
        known = self.centres.register(centre, cluster, sender, name)
        return {
            "store": self._groups.store_identity(),
            "cluster": self._cluster,
            "node": self._node,
            "format": FORMAT,
            "members": dict(self._groups.members()),
            "groups": [self._group(topic, group, known) for topic, group in tuple(self._groups.groups.items())],
        }

    def seal(self, age_s: float) -> dict[str, Any]:
        """Seal the groups led here whose rows are unsealed for that long, or that have deletes in no file.

        Raises NotLeader, SealUnconfirmed, GroupNotSealed.
        """
        sealed = []
        for topic, group in tuple(self._groups.groups.items()):
            if not self._groups.leads(topic):
                continue
            old = group.applied.unsealed_rows and self._groups.unsealed_s(topic) >= age_s
            if old or group.store.unsealed_deletes:
                version = int(self._groups.seal(group.name)["version"])
                self._await_commit(group, version)
                sealed.append({"group": group.key, "version": version})
        return {"groups": sealed}

    def snapshot(self, centre: str, sender: str, group_key: str, above: int = 0) -> Listing:
        """What a centre has not decided about in a group, only what came above a version.

        Raises CentreUnknown, CentreTaken, SyncSnapshotRefused.
        """
        known = self.centres.get(centre, sender)
        for topic, group in tuple(self._groups.groups.items()):
            if group.key != group_key:
                continue
            if reason := self._groups.reason(topic):
                raise SyncSnapshotRefused(f"group {group_key} is not in sync here: {reason}", retriable=True)
            after = max(above, known.progress(group_key))
            return self.snapshots.make(group, centre, after, self._groups.store_identity())
        raise SyncSnapshotRefused(f"group {group_key!r} is not at node {self._node}", action="ask one of its members")

    def figures(self) -> list[CentreFigures]:
        """One entry for each centre."""
        return [self._figures(each) for each in self.centres.all()]

    def _figures(self, centre: Centre) -> CentreFigures:
        files = size = 0
        now_s = oldest_s = self._now_s()
        for group in tuple(self._groups.groups.values()):
            progress = centre.progress(group.key)
            entries = [each for each in group.store.segments() if each.rows_version > progress]
            files, size = files + len(entries), size + sum(each.size_bytes for each in entries)
            if entries:
                # When the file was made: the times of rows may be those of any year.
                first = min(entries, key=lambda each: each.rows_version)
                try:
                    oldest_s = min(oldest_s, os.stat(group.store.segments_directory / first.name).st_mtime)
                except OSError:
                    continue
        return CentreFigures(centre.cluster, files, size, max(0.0, now_s - oldest_s))

    def _group(self, topic: str, group: Group, known: Centre) -> dict[str, Any]:
        return {
            "group": group.key,
            "identity": group_identity(group.key),
            "progress": known.progress(group.key),
            "leads": self._groups.leads(topic),
            "reason": self._groups.reason(topic),
        }

    def _await_commit(self, group: Group, version: int) -> None:
        deadline = Deadline(SEAL_COMMIT_TIMEOUT_S)
        while group.store.frontier < version:
            if deadline.passed():
                raise GroupNotSealed(
                    f"the seal of group {group.key} at version {version} is not in files after "
                    f"{SEAL_COMMIT_TIMEOUT_S:g} s",
                    action="look at the node's status: is its disk full?",
                    retriable=True,
                )
            time.sleep(_COMMIT_POLL_S)
