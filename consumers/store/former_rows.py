"""Rows of slots that moved, as their former holder has them: for scans at the next one, whose files are on their way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headrace.consumers.store.memtable import LiveBatch, TableKey, TableMetadata, by_rank, newer_schema
from headrace.consumers.store.slots import batch_without_handed
from headrace.consumers.store.store_view import StoreView, TableView
from headrace.consumers.store.tombstone_set import NO_TOMBSTONES


@dataclass(frozen=True, slots=True)
class RankedRows:
    """A row batch of one rank. That of a file has the rank of its newest row, as where the file is attached."""

    era: int
    version: int
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class FormerRows:
    """Rows of one table, of slots that are held here since `held_since`, an era.

    Some may be here as well, in files of the cut that have arrived: they have the same ranks there.
    """

    metadata: TableMetadata
    held_since: int
    batches: tuple[RankedRows, ...]

    def live(self) -> Iterator[LiveBatch]:
        """The rows as batches in memory; no reader keeps anything of them."""
        for each in self.batches:
            if len(each.rows):
                bounds = pc.min_max(each.rows.column(1))
                span = bounds["min"].as_py(), bounds["max"].as_py()
                yield LiveBatch(each.era, each.version, each.rows, *span, held_since=self.held_since)


def table_view(
    view: StoreView, key: TableKey, former: FormerRows | None, on_entries: Callable[[Iterable[str]], None]
) -> TableView:
    """One table at this instant, see `StoreView.table`, with `former` beside it. Raises TableUnknown without `former`."""
    if former is None:
        return view.table(*key, on_entries)
    with view.lock:
        # A group that has no row of the table yet may know deletes of it.
        deletes = view.tombstones_by_table().get(key, NO_TOMBSTONES)
        known = TableView(former.metadata, (), (), deletes)
        if view.metadata(key) is not None:
            known = view.table(*key, on_entries)
    database = known.metadata.database
    # What was handed over with the slots deletes rows before they are merged, as those in memory here.
    given = (batch_without_handed(batch, database, known.tombstones.limited) for batch in former.live())
    live = by_rank((*known.live, *(batch for batch in given if batch is not None)))
    newest = newer_schema(known.schema, former.metadata.schema)
    return TableView(TableMetadata(database, newest), known.entries, tuple(live), known.tombstones)
