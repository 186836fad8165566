"""Kafka clients in a process that was forked from that which made them: left alone, for good.

librdkafka's threads do not survive a fork. Destroying a client waits for them, and ends the process with a dump.
"""

from __future__ import annotations

import ctypes
import os
from weakref import WeakSet

_owners: WeakSet[object] = WeakSet()


def keep_after_fork(owner: object) -> None:
    """Never destroy an object that holds Kafka clients, nor them, in a process that is forked from this one."""
    # An object each, and not the clients: these have no weak references.
    _owners.add(owner)


def _leak() -> None:
    # A reference that nobody gives back: what a module holds is destroyed when the interpreter ends.
    for owner in list(_owners):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


os.register_at_fork(after_in_child=_leak)
