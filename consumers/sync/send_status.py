"""What `headrace sync status` shows of a sender: its state as a document. Pure."""

from __future__ import annotations

from collections import deque
from typing import Any

from headrace.consumers.sync.file_states import FileRecord, FileState
from headrace.consumers.sync.send_settings import CHUNK_BYTES
from headrace.consumers.sync.sender_state import SenderState

FILES_SHOWN_MAX = 10_000
RATE_WINDOW_S = 30.0
_UNDECIDED = (FileState.WAITING, FileState.SENDING, FileState.FAILED)


class SendRate:
    """Bytes a second over the last half minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def note(self, now_s: float, sent_bytes: int) -> float:
        """Take the bytes sent so far; the rate."""
        self._samples.append((now_s, sent_bytes))
        while len(self._samples) > 2 and self._samples[0][0] < now_s - RATE_WINDOW_S:
            self._samples.popleft()
        first_s, first = self._samples[0]
        return (sent_bytes - first) / (now_s - first_s) if now_s > first_s else 0.0


def sender_document(
    sender: str, name: str, state: SenderState, bytes_per_second: float, last_error: str
) -> dict[str, Any]:
    """One entry of `senders`; sizes in bytes, None where the time left is unknown."""
    records = sorted(state.files.values(), key=lambda each: (each.state not in _UNDECIDED, each.version, each.file))
    left = sum(bytes_left(each) for each in records)
    errors = [each.error for each in records if each.error] + [
        each.error for each in state.groups.values() if each.error
    ]
    return {
        "sender": sender,
        "name": name,
        "accepted": state.counters.accepted,
        "rejected": state.counters.rejected,
        "waiting": sum(each.state in _UNDECIDED for each in records),
        "bytes_left": left,
        "bytes_per_second": round(bytes_per_second),
        "seconds_left": round(left / bytes_per_second, 1) if bytes_per_second > 0 else (None if left else 0),
        "last_error": last_error or (errors[0] if errors else ""),
        "files": [_file(each) for each in records[:FILES_SHOWN_MAX] if each.state is not FileState.ACCEPTED],
    }


def bytes_left(record: FileRecord) -> int:
    """Bytes of a file that Kafka has not confirmed, 0 for one that is decided."""
    return 0 if record.decided else max(0, record.size_bytes - record.chunk * CHUNK_BYTES)


def _file(record: FileRecord) -> dict[str, Any]:
    return {
        "file": record.file,
        "state": str(record.state),
        "chunk": record.chunk,
        "chunks": record.chunks or -(-record.size_bytes // CHUNK_BYTES),
        "tries": record.tries,
        "error": record.error,
    }
