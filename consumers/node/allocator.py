"""Keeps freed memory in a node's process for some time, or does the opposite for a node without Kafka.

A node fills and frees the same hundreds of MB again and again. Memory that was returned to the system comes
back as pages to be zeroed, one fault each, under a lock of the process that all its threads share: 7 % of a
busy node's CPU time in one profile, 19 % in another.
"""

from __future__ import annotations

import ctypes
import os

GIVE_BACK_INTERVAL_S = 60.0
_PURGE_DELAY_MS = 10_000
_KEPT_BYTES_MAX = 1 << 30
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_SMALL_ARENAS, _SMALL_KEPT_BYTES = 2, 128 * 1024


def keep_freed(kept_bytes_max: int = _KEPT_BYTES_MAX) -> None:
    """Let malloc keep so much freed memory for reuse, and Arrow's allocator for some seconds all of it.

    Settings of these allocators in the environment win.

    Must be called before pyarrow is loaded: its allocator reads the environment once, when the library is
    loaded.
    """
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", str(_PURGE_DELAY_MS))
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, ctypes.c_int(_KEPT_BYTES_MAX))
        mallopt(_M_TRIM_THRESHOLD, ctypes.c_int(kept_bytes_max))


def stay_small() -> None:
    """Let the allocators return freed memory, and share few arenas: for a node on a small machine.

    Settings in the environment win. Must be called before pyarrow and polars are loaded.
    """
    # An edge node with 1,600 writers had a peak 40 MB below that with `keep_freed`.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, ctypes.c_int(_SMALL_ARENAS))
        mallopt(_M_TRIM_THRESHOLD, ctypes.c_int(_SMALL_KEPT_BYTES))


def give_back() -> None:
    """Return free memory to the system.

    To be called every GIVE_BACK_INTERVAL_S, so that an idle node becomes small.
    """
    # Imported here: whoever imports this module calls `keep_freed` before pyarrow is loaded.
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
