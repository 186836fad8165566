"""Which slots a scan may read. Pure."""

from __future__ import annotations

from collections.abc import Collection

from headrace.schemas.series import slot_of
from headrace.schemas.tables import DatabaseSchema

PLACES_MAX = 20_000
"""A scan of more slices and buckets than this may read every slot."""


def touched(
    slots: Collection[int], slots_total: int, database: DatabaseSchema, start_ns: int | None, end_ns: int | None
) -> frozenset[int]:
    """Those of some slots that a scan of a database in a range of time may read."""
    # Not narrowed by tags: rows may have a tag that the schema at hand does not name yet, and then another bucket.
    if start_ns is None or end_ns is None:
        return frozenset(slots)
    if end_ns <= start_ns:
        return frozenset()
    slices = range(start_ns // database.slice_ns, (end_ns - 1) // database.slice_ns + 1)
    if len(slices) * database.buckets > PLACES_MAX:
        return frozenset(slots)
    wanted = frozenset(slots)
    places = (
        slot_of(database.database, bucket, number, slots_total)
        for number in slices
        for bucket in range(database.buckets)
    )
    return frozenset(slot for slot in places if slot in wanted)
