"""A member's snapshot over HTTP: the client of headrace.consumers.serve.snapshots."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from urllib.parse import quote, urlencode

from headrace.connectors.files import Buffer
from headrace.connectors.http import AnswerCut, NodeRefused, NodeUnreachable, call_node, request_node
from headrace.consumers.recovery.file_copy import Snapshot, SourceFailed

ANSWER_TIMEOUT_S = 10.0
# A link for each segment and a checkpoint of the index, on a disk that is busy: longer than any other answer.
SNAPSHOT_TIMEOUT_S = 60.0
RELEASE_TIMEOUT_S = 2.0


class PeerSource:
    """See Source. One connection per request, so that a dead member costs no more than a timeout."""

    def __init__(self, url: str, group: str, on_silence: Callable[[float], None] | None = None) -> None:
        """`url` is the member's address in its status. `on_silence`: see `request_node`."""
        self._on_silence = on_silence
        self._url = url.rstrip("/")
        self._group = group

    def open(self) -> Snapshot:
        """See Source."""
        try:
            document = call_node(
                f"{self._url}/api/v1/snapshots?{urlencode({'group': self._group})}",
                method="POST",
                timeout_s=SNAPSHOT_TIMEOUT_S,
                on_silence=self._on_silence,
            )
        except (NodeUnreachable, NodeRefused) as error:
            raise SourceFailed(error.message, retriable=True) from error
        return Snapshot.parse(document)

    def read(self, snapshot: Snapshot, path: str, offset: int) -> Iterator[Buffer]:
        """See Source."""
        query = urlencode({"path": path, "offset": offset})
        url = f"{self._url}/api/v1/snapshots/{quote(snapshot.id, safe='')}/file?{query}"
        try:
            with request_node(url, timeout_s=ANSWER_TIMEOUT_S, on_silence=self._on_silence) as answer:
                yield from answer.views()
        except NodeRefused as error:
            raise SourceFailed(
                f"{self._url} answers {error.status} for {path}: {error.body[:1_000]}", retriable=True
            ) from error
        except (NodeUnreachable, AnswerCut) as error:
            raise SourceFailed(
                f"{self._url} failed while it sent {path}: {error.__cause__!r}", retriable=True
            ) from error

    def release(self, snapshot: Snapshot) -> None:
        """See Source; a member that does not answer deletes the snapshot once it was not read for a minute."""
        with contextlib.suppress(NodeUnreachable, NodeRefused):
            url = f"{self._url}/api/v1/snapshots/{quote(snapshot.id, safe='')}"
            call_node(url, method="DELETE", timeout_s=RELEASE_TIMEOUT_S)


def chain_of_member(url: str, group: str, version: int) -> bytes | None:
    """A member's chain after a record, None when it does not answer or does not remember."""
    query = urlencode({"group": group, "version": version, "sealed_version": 0})
    try:
        answer = call_node(f"{url.rstrip('/')}/api/v1/evidence?{query}", timeout_s=ANSWER_TIMEOUT_S)
        return bytes.fromhex(answer["chain"])
    # A member that no longer remembers the chain answers with a sentence in its place, which is no
    # hexadecimal number.
    except (NodeUnreachable, NodeRefused, ValueError, KeyError, TypeError):
        return None
