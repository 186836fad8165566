"""The members of the group that holds a slot, and requests to them: staging a file, and its load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlencode

from headrace.connectors.http import AnswerCut, NodeRefused, NodeUnreachable, SizedContent, request_node
from headrace.consumers.sync.file_check import series_path
from headrace.consumers.sync.load import file_identity
from headrace.consumers.sync.member_routes import (
    LINK_MISSING_KIND,
    SYNC_FILE_ROUTE,
    SYNC_LOADS_ROUTE,
    LoadRequest,
    encode_loads,
)
from headrace.consumers.sync.staging_links import StagingLinks
from headrace.producers.cluster import Cluster, SlotRouting
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.records import Role
from headrace.schemas.series import slot_of
from headrace.schemas.sync_records import SyncFile

LOOK_TIMEOUT_S = 10.0
STAGE_TIMEOUT_S = 60.0
LOAD_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 3.0


class MemberRefused(HeadraceError):
    """A member that does not take a file, or does not load it; `kind` is the type of its error."""

    def __init__(self, message: str, *, kind: str = "", action: str = "", retriable: bool = True) -> None:
        super().__init__(message, action=action, retriable=retriable)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Holder:
    """The group of a slot at one moment: its members, and the addresses of those that are online, the leader first."""

    group: GroupKey
    members: tuple[str, ...]
    online: tuple[tuple[str, str], ...]
    leader: str

    @property
    def majority(self) -> int:
        """How many members are one."""
        return len(self.members) // 2 + 1


class GroupMembers:
    """Finds groups and asks their members. Safe to share between threads."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._links = StagingLinks()

    def holder(self, body: SyncFile, *, look: bool = False) -> Holder:
        """The group that holds the slot of a file. `look`: read the membership log to its end first.

        Raises LogUnavailable and what keeps this build from following the log.
        """
        routing, watch = self._cluster.routing, self._cluster.watch
        table = (routing.look(LOOK_TIMEOUT_S) if look else routing.route).table
        header = _header(table, body)
        watch.start()
        members = table.group(header)
        statuses = [each for each in watch.statuses.online() if each.group == header and each.http]
        statuses = [each for each in statuses if each.node in members]
        leader = next((each.node for each in statuses if each.role is Role.LEADER), "")
        online = sorted(((each.node, each.http) for each in statuses), key=lambda each: (each[0] != leader, each[0]))
        return Holder(GroupKey(header, table.birth(header)), members, tuple(online), leader)

    def group_of(self, body: SyncFile) -> str:
        """The name of the group that holds the slot of a file, as far as it is known."""
        return _header(self._cluster.routing.route.table, body)

    def stage(self, url: str, holder: Holder, body: SyncFile, sender: str, path: Path) -> None:
        """Bring a file of a sender to a member; on return it has it durably. Raises MemberRefused."""
        parameters = file_parameters(holder, body, sender)
        if self._stage_linked(url, holder, parameters, path):
            return
        with path.open("rb") as segment, series_path(path).open("rb") as series:
            content = SizedContent(_Joined(segment, series), body.segment_bytes + body.series_bytes)
            _ask(_file_url(url, parameters), "PUT", content, STAGE_TIMEOUT_S)

    def _stage_linked(self, url: str, holder: Holder, parameters: Mapping[str, Any], path: Path) -> bool:
        """Whether a member on this machine has the file by a link. Raises MemberRefused."""
        with self._links.linked(url, holder.group, path) as name:
            if not name:
                return False
            try:
                linked = _file_url(url, {**parameters, "linked": name})
                _ask(linked, "PUT", SizedContent(b"", 0), STAGE_TIMEOUT_S)
            except MemberRefused as error:
                if error.kind != LINK_MISSING_KIND:
                    raise
                # Its directory has the path of one here, and is another one.
                self._links.forget(url, holder.group)
                return False
            return True

    def loads(self, url: str, holder: Holder, requests: Sequence[LoadRequest]) -> list[MemberRefused | None]:
        """Have the leader load files: for each what it refuses, None once it is applied there.

        Raises MemberRefused when it answers for none of them.
        """
        data = encode_loads(requests)
        named = {"group": holder.group.group, "birth": holder.group.birth}
        content = SizedContent(data, len(data))
        answer = _ask(f"{url}{SYNC_LOADS_ROUTE}?{urlencode(named)}", "POST", content, LOAD_TIMEOUT_S)
        try:
            found = [_refused(each["error"]) if each.get("error") else None for each in answer["files"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise MemberRefused(f"{url} gave an answer that is none: {error!r}") from error
        if len(found) != len(requests):
            raise MemberRefused(f"{url} answered {len(found)} of {len(requests)} files")
        return found


def _header(table: SlotRouting, body: SyncFile) -> str:
    return table.headers[table.slot_headers[slot_of(body.database, body.bucket, body.slice_number, table.slots)]]


class _Joined:
    """Two files as the body of one request."""

    def __init__(self, first: IO[bytes], second: IO[bytes]) -> None:
        self._files = first, second

    def read(self, size_bytes: int) -> bytes:
        """The next bytes, empty at the end of both."""
        return self._files[0].read(size_bytes) or self._files[1].read(size_bytes)


def _file_url(url: str, parameters: Mapping[str, Any]) -> str:
    return f"{url}{SYNC_FILE_ROUTE}?{urlencode(parameters)}"


def file_parameters(holder: Holder, body: SyncFile, sender: str) -> dict[str, Any]:
    """What the URL of a file announces to a member."""
    return {
        "group": holder.group.group,
        "birth": holder.group.birth,
        "database": body.database,
        "bucket": body.bucket,
        "slice": body.slice_number,
        "digest": body.content_digest.hex(),
        "rows": body.rows,
        "min": body.min_time_ns,
        "max": body.max_time_ns,
        "segment_bytes": body.segment_bytes,
        "segment_digest": body.segment_digest.hex(),
        "series_bytes": body.series_bytes,
        "series_digest": body.series_digest.hex(),
        "identity": file_identity(body, sender).hex(),
    }


def _ask(url: str, method: str, content: SizedContent, timeout_s: float) -> Any:
    try:
        with request_node(
            url, method=method, content=content, timeout_s=timeout_s, connect_timeout_s=CONNECT_TIMEOUT_S
        ) as answer:
            return answer.json()
    except NodeRefused as error:
        raise _refused({**error.document, "message": error.document.get("message") or error.message}) from error
    except (NodeUnreachable, AnswerCut, ValueError) as error:
        raise MemberRefused(str(error)) from error


def _refused(document: Mapping[str, Any]) -> MemberRefused:
    texts = {name: str(document.get(name, "")) for name in ("message", "kind", "action")}
    return MemberRefused(texts["message"], kind=texts["kind"], action=texts["action"])


def first_error(errors: Sequence[HeadraceError]) -> str:
    """The first of some errors in words, empty for none."""
    return errors[0].message if errors else ""
