"""How far senders are, as the topics of a centre show it. Pure.

Kafka knows what was announced and what was decided. What lies between, the chunks that a receiver has, is in no topic:
the sender shows it, and the receiver's metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.schemas.sync_records import SyncFile, SyncManifest, SyncVerdict, Verdict

FILES_SHOWN_MAX = 1_000
"""Files of one sender that are not accepted; more are counted and not listed."""
RATE_WINDOW_MS = 600_000
"""Over so long the rate is taken, up to the newest verdict."""
WAITING, REJECTED = "waiting", "rejected"


@dataclass(slots=True)
class _File:
    """A file, or the deletes of a group: its newest manifest and verdict."""

    number: int = 0
    size_bytes: int = 0
    chunks: int = 0
    tries: int = 0
    verdict: SyncVerdict | None = None
    decided_ms: int = 0

    @property
    def state(self) -> str:
        """accepted, rejected or waiting."""
        verdict = self.verdict
        if verdict is None or verdict.number < self.number or verdict.state in (Verdict.RETRY, Verdict.RESEND):
            # What was accepted once stays so, whatever is announced again.
            return WAITING
        return "accepted" if verdict.state is Verdict.ACCEPTED else REJECTED


@dataclass(slots=True)
class SenderFiles:
    """Everything that one sender has announced and that is still in the topics."""

    name: str = ""
    files: dict[str, _File] = field(default_factory=dict)

    def announce(self, manifest: SyncManifest) -> None:
        """A manifest, in the order of its partition."""
        body = manifest.body
        self.name = manifest.name
        file = self.files.setdefault(body.file if isinstance(body, SyncFile) else body.group, _File())
        file.tries += 1
        if manifest.number > file.number:
            file.number = manifest.number
            if isinstance(body, SyncFile):
                file.size_bytes, file.chunks = body.segment_bytes + body.series_bytes, body.chunks

    def decide(self, verdict: SyncVerdict, at_ms: int) -> None:
        """A verdict, in the order of its topic."""
        file = self.files.setdefault(verdict.file, _File())
        if file.verdict is None or verdict.number >= file.verdict.number:
            file.verdict, file.decided_ms = verdict, at_ms

    def document(self, sender: str, name: str) -> dict[str, Any]:
        """What `headrace sync status` shows of it; None where nobody knows."""
        open_files = sorted(
            ((key, each) for key, each in self.files.items() if each.state != "accepted"),
            key=lambda each: (each[1].state, -each[1].number),
        )
        left = sum(each.size_bytes for _, each in open_files if each.state == WAITING)
        rate = self._bytes_per_second()
        newest = max(
            (each for each in self.files.values() if each.verdict is not None and each.verdict.message),
            key=lambda each: each.decided_ms,
            default=None,
        )
        error = "" if newest is None or newest.verdict is None else newest.verdict.message
        states = [each.state for each in self.files.values()]
        return {
            "sender": sender,
            "name": name or self.name,
            "accepted": states.count("accepted"),
            "rejected": states.count(REJECTED),
            "waiting": states.count(WAITING),
            "bytes_left": left,
            "bytes_per_second": None if rate is None else round(rate),
            "seconds_left": round(left / rate, 1) if rate else (None if left else 0),
            "last_error": error,
            "files": [_shown(key, each) for key, each in open_files[:FILES_SHOWN_MAX]],
        }

    def _bytes_per_second(self) -> float | None:
        accepted = [each for each in self.files.values() if each.state == "accepted" and each.size_bytes]
        newest_ms = max((each.decided_ms for each in accepted), default=0)
        recent = [each for each in accepted if each.decided_ms > newest_ms - RATE_WINDOW_MS]
        oldest_ms = min((each.decided_ms for each in recent), default=0)
        if newest_ms == oldest_ms:
            return None
        return sum(each.size_bytes for each in recent) * 1_000 / (newest_ms - oldest_ms)


def _shown(name: str, file: _File) -> dict[str, Any]:
    verdict = file.verdict
    asked = verdict is not None and verdict.number == file.number and verdict.state is Verdict.RESEND
    return {
        "file": name,
        "state": file.state,
        "chunk": verdict.chunk if verdict is not None and asked else None,
        "chunks": file.chunks,
        "tries": file.tries,
        "error": verdict.message if verdict is not None else "",
    }


def sender_documents(
    manifests: Iterable[SyncManifest], verdicts: Iterable[tuple[SyncVerdict, int]], names: Mapping[str, str]
) -> list[dict[str, Any]]:
    """One entry for each sender, by name. `verdicts` come with their time in ms, `names` are those of their enrolment."""
    senders: dict[str, SenderFiles] = {}
    for manifest in manifests:
        senders.setdefault(manifest.sender, SenderFiles()).announce(manifest)
    for verdict, at_ms in verdicts:
        senders.setdefault(verdict.sender, SenderFiles()).decide(verdict, at_ms)
    found = [each.document(sender, names.get(sender, "")) for sender, each in senders.items()]
    return sorted(found, key=lambda each: (each["name"], each["sender"]))
