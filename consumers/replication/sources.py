"""A member's snapshot over HTTP: the other end of consumers.serve.snapshots."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Iterator
from urllib.parse import quote, urlencode, urlsplit

from connectors.files import Buffer
from connectors.http import NodeRefused, NodeUnreachable, call_node
from consumers.replication.transfer import PIECE_BYTES, Snapshot, SourceFailed

ANSWER_TIMEOUT_S = 10.0
SNAPSHOT_TIMEOUT_S = 60.0
RELEASE_TIMEOUT_S = 2.0


class HttpSource:
    """See Source. A connection a request, so that a dead member costs no more than a timeout."""

    def __init__(self, url: str, group: str) -> None:
        """`url` is the member's address as its status says it."""
        self._url = url.rstrip("/")
        self._group = group

    def open(self) -> Snapshot:
        """See Source."""
        try:
            document = call_node(
                f"{self._url}/api/v1/snapshots?{urlencode({'group': self._group})}",
                method="POST",
                timeout_s=SNAPSHOT_TIMEOUT_S,
            )
        except (NodeUnreachable, NodeRefused) as error:
            raise SourceFailed(error.message, retriable=True) from error
        return Snapshot.parse(document)

    def read(self, snapshot: Snapshot, path: str, offset: int) -> Iterator[Buffer]:
        """See Source."""
        parts = urlsplit(self._url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=ANSWER_TIMEOUT_S)
        try:
            query = urlencode({"path": path, "offset": offset})
            connection.request("GET", f"/api/v1/snapshots/{quote(snapshot.id, safe='')}/file?{query}")
            response = connection.getresponse()
            if response.status != http.client.OK:
                said = response.read(1_000).decode(errors="replace")
                raise SourceFailed(f"{self._url} answers {response.status} for {path}: {said}", retriable=True)
            piece = memoryview(bytearray(PIECE_BYTES))
            while received := response.readinto(piece):
                yield piece[:received]
        except (OSError, http.client.HTTPException) as error:
            raise SourceFailed(f"{self._url} ended while it sent {path}: {error!r}", retriable=True) from error
        finally:
            connection.close()

    def release(self, snapshot: Snapshot) -> None:
        """See Source; a member that does not answer deletes it by itself after a while."""
        with contextlib.suppress(NodeUnreachable, NodeRefused):
            url = f"{self._url}/api/v1/snapshots/{quote(snapshot.id, safe='')}"
            call_node(url, method="DELETE", timeout_s=RELEASE_TIMEOUT_S)


def chain_of_member(url: str, group: str, version: int) -> bytes | None:
    """A member's chain after a record, None when it does not say."""
    query = urlencode({"group": group, "version": version, "sealed_version": 0})
    try:
        answer = call_node(f"{url.rstrip('/')}/api/v1/evidence?{query}", timeout_s=ANSWER_TIMEOUT_S)
        return bytes.fromhex(answer["chain"])
    except (NodeUnreachable, NodeRefused, ValueError, KeyError, TypeError):
        return None
