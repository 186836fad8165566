"""Pauses the topics of groups whose queues are full, and resumes them once these have drained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.connectors.log.port import Reader
from headrace.consumers.replication.group import Group


def pause_full(reader: Reader, groups: Mapping[str, Group], reading: Iterable[str], paused: set[str]) -> set[str]:
    """Pause and resume topics of a reader; returns those that are paused now. `reading` are its topics."""
    # Paused per topic: one group that waits for a full disk must not stop the others.
    full = {topic for topic in reading if groups[topic].full} - paused
    drained = {topic for topic in paused if groups[topic].drained}
    if full:
        reader.pause(full)
    if drained:
        reader.resume(drained)
    return (paused | full) - drained
