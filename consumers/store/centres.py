"""What a store asks about the centres that it sends its rows to (docs/internals/sync.md)."""

from __future__ import annotations

from typing import Protocol


class CentreProgress(Protocol):
    """How far the centres of a store have decided about its rows; see `consumers.sync.centres`. For any thread."""

    def lowest(self, group: str) -> int | None:
        """The version up to which every centre has decided about all rows of a group; None without centres."""
        ...


class _NoCentres:
    """A store that sends to nobody."""

    def lowest(self, _group: str) -> int | None:
        """See CentreProgress."""
        return None


NO_CENTRES: CentreProgress = _NoCentres()
