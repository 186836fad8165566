"""The store that a sender reads, over the HTTP of its nodes.

Files are read from the node's directory where the sender can open them, else over HTTP. A file that is open stays
readable whatever the node does; what is not open yet is listed again after a restart of the node.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import xxhash

from headrace.connectors.http import AnswerCut, NodeAnswer, NodeRefused, NodeUnreachable, request_node
from headrace.consumers.sync.listing import ListedFile, Listing
from headrace.consumers.sync.sender_ports import (
    CentreForgotten,
    FileDamaged,
    SnapshotLost,
    StoreDescription,
    StoreGroup,
)
from headrace.schemas.errors import HeadraceError

SEAL_TIMEOUT_S = 180.0
ANSWER_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 5.0
READ_BYTES = 1 << 18
"""Bytes that are hashed at once: they are still in the processor's cache."""


class CentreNotHere(HeadraceError):
    """A centre that a store does not send to."""


class DatabaseNotHere(HeadraceError):
    """A database of which a store has no table."""

    @classmethod
    def missing(cls, url: str, database: str, known: Iterable[str], *, retriable: bool = False) -> DatabaseNotHere:
        """`known` are those that the store has; `retriable`: it may come."""
        names = ", ".join(sorted(set(known))) or "none"
        return cls(
            f"the store at {url} has no table in database {database!r}",
            action=f"its databases: {names}",
            retriable=retriable,
        )


class NoListing(HeadraceError):
    """A group that no node can list now."""


class NodeStore:
    """See SourceStore. Owned by one thread."""

    def __init__(self, url: str, centre: str, cluster: str, sender: str, name: str, *, direct: bool = True) -> None:
        """`url` is the node to begin with, `centre` the identity of the centre, `direct`: open its files if possible."""
        self._url = url.rstrip("/")
        self._centre = {"centre": centre, "sender": sender}
        self._register = {**self._centre, "cluster": cluster, "name": name}
        self._direct = direct
        self._nodes: dict[str, str] = {}
        self._listed: dict[str, list[str]] = {}
        self._leading: list[str] = []
        self._snapshots: dict[str, tuple[str, str]] = {}
        self._open: dict[str, _OpenFile] = {}

    def identity(self) -> str:
        """The identity of the store; nothing changes there."""
        return str(_centres(self._url)["store"])

    def check_databases(self, wanted: Collection[str], *, may_come: bool) -> None:
        """Raises DatabaseNotHere for a database without tables, dropped ones included. Nothing changes there."""
        if wanted:
            document = _answer(f"{self._url}/api/v1/schemas")
            known = {each["database"] for each in document["tables"]}
            for database in sorted(set(wanted) - known):
                raise DatabaseNotHere.missing(self._url, database, known, retriable=may_come)

    def describe(self) -> StoreDescription:
        """See SourceStore."""
        first = self._call(self._url, "POST", "/register", self._register)
        nodes, away = {first["node"]: (self._url, first)}, []
        for node, url in first["members"].items():
            if node in nodes:
                continue
            try:
                nodes[node] = (url, self._call(url, "POST", "/register", self._register))
            except (NodeUnreachable, NodeRefused):
                # It learns the progress in the next round: until then it merges what it has as it likes.
                away.append(node)
        self._nodes = {node: url for node, (url, _) in nodes.items()}
        progress: dict[str, dict[str, int]] = {}
        self._listed, self._leading = {}, []
        for node, (url, found) in nodes.items():
            for each in found["groups"]:
                progress.setdefault(each["group"], {})[node] = int(each["progress"])
                if not each["reason"]:
                    self._listed.setdefault(each["group"], []).append(url)
                if each["leads"] and url not in self._leading:
                    self._leading.append(url)
        groups = tuple(StoreGroup(group, noted) for group, noted in sorted(progress.items()))
        return StoreDescription(first["store"], first["cluster"], int(first["format"]), groups, tuple(away))

    def seal(self, age_s: float) -> None:
        """See SourceStore."""
        for url in self._leading:
            self._call(url, "POST", "/seal", {"age_s": age_s}, timeout_s=SEAL_TIMEOUT_S)

    def list(self, group: str, above: int) -> Listing:
        """See SourceStore. Raises NoListing."""
        refused: HeadraceError | None = None
        for url in self._listed.get(group, ()):
            try:
                document = self._call(url, "POST", "/snapshot", {**self._centre, "group": group, "above": above})
            except (NodeUnreachable, NodeRefused) as error:
                refused = error
                continue
            listing = Listing.parse(document)
            self._snapshots[listing.identity] = (url, listing.id)
            return listing
        raise NoListing(
            f"no node lists group {group}: {refused.message if refused else 'none is in sync'}",
            action="look at headrace status",
            retriable=True,
        )

    def check(self, listing: Listing, file: ListedFile, md5: bool) -> bytes:
        """See SourceStore."""
        body, opened = file.body, self._opened(listing, file)
        digests = xxhash.xxh3_128(), xxhash.xxh3_128()
        md5_digest = hashlib.md5(usedforsecurity=False)
        offset, end = 0, body.segment_bytes + body.series_bytes
        while offset < end:
            # A read never crosses from one part to the other: each has a digest of its own.
            bound = body.segment_bytes if offset < body.segment_bytes else end
            data = opened.read(offset, min(READ_BYTES, bound - offset))
            if not data:
                raise FileDamaged(f"{body.file} ends after {offset} of {end} bytes at the node")
            digests[offset >= body.segment_bytes].update(data)
            if md5 and offset < body.segment_bytes:
                md5_digest.update(data)
            offset += len(data)
        for digest, expected, part in zip(
            digests, (body.segment_digest, body.series_digest), ("", " (series)"), strict=True
        ):
            if digest.digest() != expected:
                raise FileDamaged(
                    f"{body.file}{part} is damaged at the node: its bytes are not those that were sealed",
                    action="headrace verify shows what to recover",
                )
        return md5_digest.digest() if md5 else b""

    def read(self, listing: Listing, file: ListedFile, offset: int, size_bytes: int) -> bytes:
        """See SourceStore."""
        opened, parts, size = self._opened(listing, file), list[bytes](), 0
        while size < size_bytes:
            part = opened.read(offset + size, size_bytes - size)
            if not part:
                raise FileDamaged(f"{file.body.file} ends after {offset + size} bytes at the node")
            parts.append(part)
            size += len(part)
        if offset + size_bytes >= file.body.segment_bytes + file.body.series_bytes:
            self.close_file(file)
        # Mostly there is one part, which is not copied.
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close_file(self, file: ListedFile) -> None:
        """See SourceStore."""
        if (opened := self._open.pop(file.body.file, None)) is not None:
            opened.close()

    def touch(self) -> None:
        """See SourceStore."""
        for url, snapshot in self._snapshots.values():
            # A snapshot that is gone shows itself at the next read.
            with suppress(HeadraceError):
                self._call(url, "POST", f"/snapshot/{snapshot}", {}, timeout_s=CONNECT_TIMEOUT_S)

    def release(self) -> None:
        """See SourceStore."""
        for opened in self._open.values():
            opened.close()
        self._open = {}
        for url, snapshot in self._snapshots.values():
            with suppress(HeadraceError):
                self._call(url, "DELETE", f"/snapshot/{snapshot}", None, timeout_s=CONNECT_TIMEOUT_S)
        self._snapshots = {}

    def set_progress(self, progress: Mapping[str, int], lower: bool) -> None:
        """See SourceStore."""
        for node, url in self._nodes.items():
            try:
                self._call(url, "POST", "/progress", {**self._centre, "groups": dict(progress), "lower": lower})
            except NodeUnreachable:
                # Another member learns it in the next round. Without any of them nothing was noted. One that kept a
                # higher progress might be asked for files, and leave out those below.
                if lower or node == next(iter(self._nodes)):
                    raise
            except NodeRefused as error:
                if error.document.get("kind") == "CentreUnknown":
                    raise CentreForgotten(error.message, action=error.action, retriable=True) from error
                raise

    def _opened(self, listing: Listing, file: ListedFile) -> _OpenFile:
        known = self._open.get(file.body.file)
        if known is not None:
            return known
        opened: _OpenFile | None = None
        if self._direct:
            with suppress(OSError):
                opened = _LocalFile(Path(listing.directory), file)
        if opened is None:
            url, snapshot = self._snapshots.get(listing.identity, ("", ""))
            opened = _RemoteFile(f"{url}/api/v1/sync/snapshot/{snapshot}", file)
        self._open[file.body.file] = opened
        return opened

    @staticmethod
    def _call(
        url: str,
        method: str,
        path: str,
        document: Mapping[str, Any] | None,
        *,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> Any:
        return _answer(f"{url}/api/v1/sync{path}", method, document, timeout_s)


def _answer(
    url: str, method: str = "GET", document: Mapping[str, Any] | None = None, timeout_s: float = ANSWER_TIMEOUT_S
) -> Any:
    """What a node answers, from JSON. Raises NodeRefused, with the action of the node, and NodeUnreachable."""
    try:
        with request_node(
            url, method=method, document=document, timeout_s=timeout_s, connect_timeout_s=CONNECT_TIMEOUT_S
        ) as answer:
            return answer.json()
    except NodeRefused as error:
        raise _with_action(url, error) from error
    except (AnswerCut, ValueError) as error:
        raise NodeUnreachable(f"{url} did not answer whole", reason="its answer was cut") from error


def _centres(url: str) -> Any:
    """The store at an address, and the centres that it sends to. Raises as `_answer`, and NodeRefused for another service."""
    found = _answer(f"{url}/api/v1/sync/centres")
    if not isinstance(found, dict) or not {"store", "centres"} <= found.keys():
        raise NodeRefused(
            f"{url} answers, and not as a node of this build does", action="is this the address of a node?"
        )
    return found


def _with_action(url: str, error: NodeRefused) -> NodeRefused:
    """A refusal whose action is one: that of the client has it behind its message, for lines that show no other."""
    document = error.document
    if not document.get("action"):
        return error
    return NodeRefused(
        f"{url}: {document['message']}",
        action=str(document["action"]),
        retriable=error.retriable,
        status=error.status,
        body=error.body,
        document=document,
        retry_after_s=error.retry_after_s,
    )


class _OpenFile(Protocol):
    def read(self, offset: int, size_bytes: int) -> bytes:
        """Up to so many bytes of segment and series, one behind the other; empty at the end."""
        ...

    def close(self) -> None: ...


class _LocalFile:
    """Both parts, opened in the node's directory."""

    def __init__(self, directory: Path, file: ListedFile) -> None:
        self._split = file.body.segment_bytes
        self._segment = os.open(directory / file.segment, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._series = os.open(directory / file.series, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(self._segment)
            raise

    def read(self, offset: int, size_bytes: int) -> bytes:
        try:
            if offset < self._split:
                return os.pread(self._segment, min(size_bytes, self._split - offset), offset)
            return os.pread(self._series, size_bytes, offset - self._split)
        except OSError as error:
            raise FileDamaged(f"the disk of the node cannot read a file: {error}") from error

    def close(self) -> None:
        os.close(self._segment)
        os.close(self._series)


class _RemoteFile:
    """Both parts over HTTP, of a snapshot at `url`; what is read in order takes one request for each part."""

    def __init__(self, url: str, file: ListedFile) -> None:
        self._url, self._file = url, file
        self._answer: NodeAnswer | None = None
        self._at = -1

    def read(self, offset: int, size_bytes: int) -> bytes:
        split = self._file.body.segment_bytes
        size_bytes = min(size_bytes, split - offset) if offset < split else size_bytes
        try:
            data = self._read(offset, size_bytes)
        except AnswerCut:
            # A line may have been cut. A disk that cannot be read ends the second answer as well.
            try:
                data = self._read(offset, size_bytes)
            except AnswerCut as error:
                raise self._cut() from error
        self._at = offset + len(data)
        return data

    def _read(self, offset: int, size_bytes: int) -> bytes:
        if self._answer is None or self._at != offset or offset == self._file.body.segment_bytes:
            self._request(offset)
        assert self._answer is not None
        try:
            return self._answer.read(size_bytes)
        except AnswerCut:
            self.close()
            raise

    def _cut(self) -> HeadraceError:
        """Why no answer comes to its end: a node that has restarted does not know the snapshot."""
        try:
            _answer(self._url, "POST", {}, CONNECT_TIMEOUT_S)
        except (NodeRefused, NodeUnreachable):
            return SnapshotLost("the node ended its answer in the middle of a file", retriable=True)
        return FileDamaged(
            f"the node cannot read {self._file.body.file} to its end", action="look at its log and its disk"
        )

    def _request(self, offset: int) -> None:
        self.close()
        body = self._file.body
        part, start = (
            (self._file.segment, offset)
            if offset < body.segment_bytes
            else (self._file.series, offset - body.segment_bytes)
        )
        try:
            self._answer = request_node(
                f"{self._url}/file?name={part}&offset={start}",
                timeout_s=ANSWER_TIMEOUT_S,
                connect_timeout_s=CONNECT_TIMEOUT_S,
            )
        except (NodeRefused, NodeUnreachable) as error:
            raise SnapshotLost(f"{body.file} cannot be read any more: {error.message}", retriable=True) from error

    def close(self) -> None:
        if self._answer is not None:
            self._answer.__exit__(None, None, None)
            self._answer = None
        self._at = -1


def forget_centre(url: str, cluster: str) -> list[str]:
    """Let the nodes of a store forget every centre of a name; their identities. Raises CentreNotHere, NodeUnreachable."""
    root = f"{url.rstrip('/')}/api/v1/sync"
    known = _centres(url.rstrip("/"))["centres"]
    found = [str(each["centre"]) for each in known if each["cluster"] == cluster]
    if not found:
        names = ", ".join(sorted({str(each["cluster"]) for each in known})) or "none"
        raise CentreNotHere(f"the store sends to no centre {cluster}", action=f"it sends to {names}")
    for centre in found:
        _answer(f"{root}/centres/{quote(centre, safe='')}", "DELETE")
    return found
