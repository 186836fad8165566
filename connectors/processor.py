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
    # By the id of the thread. Elsewhere that would be the id of some process.
    if nice and sys.platform == "linux":
        with suppress(OSError):
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, min(NICE_MAX, os.getpriority(os.PRIO_PROCESS, thread) + nice))


def background_threads(count: int, name: str, nice: int) -> ThreadPoolExecutor:
    """Threads with an added niceness, see `lower_priority`."""
    return ThreadPoolExecutor(count, thread_name_prefix=name, initializer=lower_priority, initargs=(nice,))


def processor_time() -> ProcessorTime:
    """Of the calling thread since it began; zeros where the system does not count it."""
    try:
        ran_ns, waited_ns = _SCHEDULED.read_bytes().split()[:2]
        return ProcessorTime(int(ran_ns) / 1e9, int(waited_ns) / 1e9)
    except (OSError, ValueError):
        return ProcessorTime(0.0, 0.0)
