"""Loads of senders' files at the leader of their group: appended once, and answered when they are applied.

Files that come in one request are appended together, so that the store attaches them in one commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.connectors.deadline import Deadline
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.migration.cut_listing import NOBODY, led_by
from headrace.consumers.query.query_errors import SlotNotHeld
from headrace.consumers.replication.failure_detector import FailureDetector
from headrace.consumers.replication.group import Group
from headrace.consumers.serve.sync_uploads import Uploads
from headrace.consumers.sync.load import LoadOutcome, outcome, sync_load
from headrace.consumers.sync.manifest_rules import check_database, check_manifest
from headrace.consumers.sync.member_routes import LoadRequest
from headrace.schemas.errors import HeadraceError, StateUnknown
from headrace.schemas.framing import FORMAT
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.messages import Leadership, Load, format_of
from headrace.schemas.series import slot_of
from headrace.schemas.sync_records import SyncFile, decode_manifest
from headrace.schemas.tables import DatabaseSchema

READ_BACK_TIMEOUT_S = 10.0
ATTACH_TIMEOUT_S = 20.0
POLL_S = 0.01


class LoadUnconfirmed(StateUnknown):
    """A load that was appended and not read back, or not applied, in time. It counts once: ask again."""


class LoadNotReady(HeadraceError):
    """A load that cannot be appended yet."""


class LoadAppends(Protocol):
    """Appends records under the leadership of this node; see `LeaderTasks`."""

    def append_for(self, topic: str, bodies_of: Callable[[Leadership], Iterable[Load]]) -> None:
        """Append loads. Raises NotLeader, and the errors of the log."""
        ...


class Databases(Protocol):
    """The databases of the cluster; see `SchemaLog`."""

    def database(self, database: str) -> DatabaseSchema | None:
        """One of them, None while the log has no record of it."""
        ...


class SyncLoads:
    """Safe to share between threads."""

    def __init__(
        self,
        groups: Mapping[str, Group],
        appends: LoadAppends,
        uploads: Uploads,
        databases: Databases,
        detector: FailureDetector,
        state: Callable[[], MembershipState],
    ) -> None:
        self._groups = groups
        self._appends = appends
        self._uploads = uploads
        self._databases = databases
        self._detector = detector
        self._state = state
        self.loads = 0

    def slot(self, body: SyncFile) -> int:
        """The slot of a file. Raises LoadNotReady."""
        return self.slot_at(body.database, body.bucket, body.slice_number)

    def slot_at(self, database: str, bucket: int, slice_number: int) -> int:
        """The slot of a place of rows. Raises LoadNotReady."""
        table = self._state().table
        if table is None:
            raise LoadNotReady("the node has not read the slot table yet", retriable=True)
        return slot_of(database, bucket, slice_number, table.slots)

    def load(self, key: GroupKey, requests: Sequence[LoadRequest]) -> list[bool | HeadraceError]:
        """Load files whose bytes are here, all of one group: for each whether it had been loaded before, or its error.

        All have been applied here on return, but for those with an error. Errors of a file: FrameInvalid, SlotNotHeld,
        LoadNotReady, LoadUnconfirmed, ManifestInvalid, DatabaseDiffers. Raises NotLeader, and the errors of the log.
        """
        answers: dict[int, bool | HeadraceError] = {}
        files: dict[int, _File] = {}
        for place, request in enumerate(requests):
            try:
                files[place] = self._file(key, request)
            except HeadraceError as error:
                answers[place] = error
        if files:
            group = next(iter(files.values())).group
            self._append(group, [each.load for each in files.values() if not each.repeated])
            self._await_applied(group, files.values())
        for place, file in files.items():
            answers[place] = file.repeated if file.error is None else file.error
        return [answers[place] for place in range(len(requests))]

    def _file(self, key: GroupKey, request: LoadRequest) -> _File:
        """A file that may be loaded. Raises the errors of a file."""
        manifest = decode_manifest(request.manifest)
        body = manifest.body
        check_manifest(manifest, FORMAT)
        if not isinstance(body, SyncFile):
            raise LoadNotReady("deletes are no file")
        self._check_database(body)
        slot = self.slot(body)
        group = self._uploads.group(key, slot)
        self._check_table(group, slot)
        unled = sync_load(body, manifest.sender, manifest.number, NOBODY, request.schema_version)
        repeated = outcome(unled, group) in (LoadOutcome.APPLYING, LoadOutcome.APPLIED)
        if not repeated:
            self._check_formats(group, unled)
            # A leader without the file would be unsynced the moment it reads its own record.
            if not self._uploads.is_staged(group, body.content_digest.hex(), body.segment_digest.hex()):
                raise LoadNotReady(
                    f"the file {body.file} is not staged at the leader of group {group.name}", retriable=True
                )
            self.loads += 1
        return _File(body.file, group, unled, repeated)

    def _check_database(self, body: SyncFile) -> None:
        known = self._databases.database(body.database)
        if known is None:
            raise LoadNotReady(f"the node has not read of database {body.database} yet", retriable=True)
        check_database(body, known.slice_ns, known.buckets)

    def _check_table(self, group: Group, slot: int) -> None:
        """Raises LoadNotReady for a slot that a running change brings and that has not come yet."""
        state, view = self._state(), group.applied.changes
        table = state.table
        if table is None:
            return
        if (holder := table.holder(slot)) != group.name:
            # Where it goes, or from where it comes if this node has read less than the receiver.
            raise LoadNotReady(f"by slot table {table.version} group {holder} has slot {slot}", retriable=True)
        # A group that gave the slot away in an earlier change would ignore the load until the barrier.
        if view.settled_version < table.version:
            raise LoadNotReady(f"group {group.name} has not reached slot table {table.version} yet", retriable=True)
        former, running = table.previous_holder(slot), state.change is not None and state.change.formal
        taken = (version for key, version in view.taken.items() if key.group == former)
        # With the slot comes what it has of the sender: a file that is there already would count again, above newer
        # ones, and one below deletes of the sender would undo them.
        if former is not None and running and max(taken, default=0) < table.version:
            raise LoadNotReady(f"group {group.name} has not taken over from {former} yet", retriable=True)

    def _check_formats(self, group: Group, load: Load) -> None:
        needed = format_of(load)
        for member in group.members:
            status = self._detector.status(group.name, member)
            if status is not None and status.format < needed:
                raise LoadNotReady(
                    f"node {member} of group {group.name} reads records up to format {status.format}, a load has {needed}",
                    action="upgrade that node",
                    retriable=True,
                )

    def _append(self, group: Group, loads: Sequence[Load]) -> None:
        """Append records, and wait until what became of them was read back, or another leadership began."""
        if not loads:
            return
        epoch, unread = group.applied.epoch, list(loads)
        topic = next((topic for topic, each in list(self._groups.items()) if each is group), "")
        if not topic:
            raise SlotNotHeld.left(group.name)
        self._appends.append_for(topic, lambda leadership: led_by(loads, leadership))

        def read_back() -> bool:
            unread[:] = [each for each in unread if outcome(each, group) is LoadOutcome.ABSENT]
            return not unread or group.applied.epoch != epoch

        # A delivery report proves nothing: only what this group has read as accepted counts.
        group.wait_for(read_back, READ_BACK_TIMEOUT_S)

    def _await_applied(self, group: Group, files: Collection[_File]) -> None:
        """Wait until the store has carried out what was read so far, and has the files. Notes errors at the files."""
        deadline = Deadline(ATTACH_TIMEOUT_S)
        for each in files:
            each.error = _unread(each, outcome(each.load, group))
        # The records that have counted are below this one, whatever follows them.
        version = group.replica.state.version
        done = group.wait_for(lambda: group.version >= version, deadline.left_s())
        done = done and group.store_jobs.wait_done(version, deadline.left_s())
        for each in files:
            digest = each.load.content_digest.hex()
            while done and each.error is None and group.store.awaits(digest) and not deadline.passed():
                # A staged file that was damaged is fetched from another member.
                time.sleep(POLL_S)
            if each.error is None and (not done or group.store.awaits(digest)):
                each.error = LoadUnconfirmed(
                    f"the load of {each.name} is in the log of group {group.name} and not applied here yet",
                    action="ask again: it counts once",
                )


@dataclass(slots=True, eq=False)
class _File:
    """A file on its way into the catalogue; `load` is its record without a leadership."""

    name: str
    group: Group
    load: Load
    repeated: bool
    error: HeadraceError | None = None


def _unread(file: _File, found: LoadOutcome) -> HeadraceError | None:
    """Why a load that was appended does not count."""
    if found is LoadOutcome.SLOT_MOVED:
        return SlotNotHeld.left(file.group.name)
    if found is LoadOutcome.ABSENT:
        return LoadUnconfirmed(
            f"the load of {file.name} was not read back as accepted from the log of group {file.group.name}",
            action="ask again: it counts once",
        )
    return None
