"""A limit of bytes a second. Pure: the time is passed in."""

from __future__ import annotations


class ByteRate:
    """Lets bytes pass at a rate; what is taken at once may exceed it, and is waited for behind it."""

    def __init__(self, bytes_per_s: int) -> None:
        """0 is no limit."""
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    def take(self, size_bytes: int, now_s: float) -> bool:
        """Whether these bytes may be sent now; if so they count."""
        if not self._bytes_per_s:
            return True
        if now_s < self._free_at_s:
            return False
        # No credit for silence: a line that others share sees the rate and no bursts.
        self._free_at_s = now_s + size_bytes / self._bytes_per_s
        return True
