"""What the scan of one group has read, for EXPLAIN ANALYZE."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ScanFigures:
    """Figures of one group. `segments_read` and `segments_skipped` count files of the table; `milliseconds` is wall time.

    `row_groups_read` counts those that rows came from. `from_index`: the rows are the newest of their series.
    `rolled_up` segments were answered by their rollups.
    """

    node: str = ""
    group: str = ""
    segments_read: int = 0
    segments_skipped: int = 0
    row_groups_read: int = 0
    rows: int = 0
    milliseconds: float = 0.0
    from_index: bool = False
    rolled_up: int = 0

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def parse(cls, document: Any) -> ScanFigures:
        """The inverse of `document`; what is not understood is left out."""
        given = document if isinstance(document, dict) else {}
        names = cls.__dataclass_fields__
        return cls(**{name: value for name, value in given.items() if name in names})
