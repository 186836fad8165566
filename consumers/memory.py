"""How long a node's process keeps memory that it has freed.

A node fills and frees the same hundreds of MB again and again. Memory that went back to the system in between comes back as pages to be zeroed, one
fault each, under a lock of the process that all its threads share: 7 % of a busy node's CPU time in one profile, 19 % in another.
"""

from __future__ import annotations

import ctypes
import os

GIVE_BACK_INTERVAL_S = 60.0
_PURGE_DELAY_MS = 10_000
_KEPT_BYTES_MAX = 1 << 30
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed() -> None:
    """Let malloc and Arrow's allocator use freed memory again before the system gets it. To be called before pyarrow is loaded; settings of these
    allocators in the environment win."""
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", str(_PURGE_DELAY_MS))
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, ctypes.c_int(_KEPT_BYTES_MAX))
        mallopt(_M_TRIM_THRESHOLD, ctypes.c_int(_KEPT_BYTES_MAX))


def give_back() -> None:
    """Return what is free now to the system; to be called every GIVE_BACK_INTERVAL_S, so that a node that has become idle grows small."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
