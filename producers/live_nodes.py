"""The nodes that can be asked, by what the status topic shows."""

from __future__ import annotations

from headrace.producers.cluster import MemberStatuses
from headrace.schemas.records import Role


def live_nodes(statuses: MemberStatuses) -> list[str]:
    """URLs of the nodes that are alive, those first that serve most groups."""
    # A group that is not in sync is behind its log: a query that waits for newer offsets fails there with
    # NotCaughtUp.
    serving: dict[str, int] = {}
    for status in statuses.online():
        if status.http:
            serving[status.http] = serving.get(status.http, 0) + int(status.role is not Role.UNSYNCED)
    return sorted(serving, key=lambda url: -serving[url])
