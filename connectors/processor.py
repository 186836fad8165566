"""What the operating system gives a thread of processor time: less of it for background work, and how long it waited.

Linux only; elsewhere nothing is changed, and nothing is known.
"""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

NICE_MAX = 19
_SCHEDULED = Path("/proc/thread-self/schedstat")


class ProcessorTime(NamedTuple):
    """How long a thread has run, and how long it was ready and had no processor, both in seconds."""

    ran_s: float
    waited_s: float


def lower_priority(nice: int) -> None:
    """Add to the niceness of the calling thread: others have the processors before it from now on.

    The system compares threads of one session or control group: processes of other services keep their shares.
    """
    if nice:
        _lower_to(_niceness() + nice)


def yield_processor() -> None:
    """Let a thread that is ready have the processor of the calling one, if any waits for it. Takes half a microsecond.

    Without it a thread that wakes may wait for the next tick (4 ms) behind one that computes, also behind one with a
    higher niceness.
    """
    if hasattr(os, "sched_yield"):
        os.sched_yield()


def background_threads(count: int, name: str, nice: int) -> ThreadPoolExecutor:
    """Threads with the niceness of the calling thread and an added one, whoever starts them; see `lower_priority`."""
    # A pool starts its threads when they are needed, and a thread begins with the niceness of the one that starts it:
    # those that encode for a store were as nice as could be.
    return ThreadPoolExecutor(count, name, _lower_to, (_niceness() + nice,))


def _niceness() -> int:
    """That of the calling thread."""
    # By the id of the thread. Elsewhere that would be the id of some process.
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) if sys.platform == "linux" else 0


def _lower_to(niceness: int) -> None:
    """Give the calling thread a niceness, unless it has that, or a higher one."""
    if sys.platform == "linux" and niceness > _niceness():
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(NICE_MAX, niceness))


def processor_time(native_id: int | None = None) -> ProcessorTime:
    """Of a thread of this process since it began, by default the calling one.

    Zeros where the system does not count it, and for a thread that has ended.
    """
    path = _SCHEDULED if native_id is None else Path(f"/proc/self/task/{native_id}/schedstat")
    try:
        ran_ns, waited_ns = path.read_bytes().split()[:2]
        return ProcessorTime(int(ran_ns) / 1e9, int(waited_ns) / 1e9)
    except (OSError, ValueError):
        return ProcessorTime(0.0, 0.0)
