"""The threads that encode the files of seals."""

from __future__ import annotations

from concurrent.futures import Executor

from headrace.connectors.processor import background_threads
from headrace.consumers.store.settings import StoreSettings


def encoding_threads(settings: StoreSettings, nice: int = 0) -> Executor:
    """Threads that encode segments, with an added niceness; all stores of a node share them."""
    # Kept from seal to seal. A new thread begins with allocator memory of its own, so each seal would fault
    # in again the hundreds of MB that the one before has freed. The pool starts its threads on first use.
    return background_threads(settings.encode_threads, "encode", nice)
