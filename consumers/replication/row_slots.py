"""Which slots the rows of a row batch have, and the rows of some slots. Pure, and nothing per row in Python.

The slot of a row follows from its database, its series and its time, as in `producers.router`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from headrace.consumers.store.slots import row_slots
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import Slots
from headrace.schemas.messages import Write
from headrace.schemas.payload import SERIES_TYPE
from headrace.schemas.tables import DatabaseSchema

SlotsOf = Callable[[Write, int], Slots]
"""The distinct slots of the rows of a write, of so many slots in all. Raises PayloadInvalid."""


class SlotsUnknown(HeadraceError):
    """A record concerns slots that moved, and nobody here computes the slots of its rows."""


def no_slots(_write: Write, _slots_total: int) -> Slots:
    """The answer of a build that does not follow slots: the group stops. Raises SlotsUnknown."""
    raise SlotsUnknown(
        "slots of this group have moved, and this build does not follow that", action="upgrade this node"
    )


def rows_of_slots(rows: pa.RecordBatch, database: DatabaseSchema, slots_total: int, slots: Slots) -> pa.RecordBatch:
    """The rows of these slots, in their order, with only the series that they use."""
    chosen = np.flatnonzero(np.isin(row_slots(rows, database, slots_total), slots))
    if len(chosen) == len(rows):
        return rows
    taken = rows.take(pa.array(chosen))
    codes, keys = taken.column(0).indices.to_numpy(), taken.column(0).dictionary
    used = np.zeros(len(keys), np.bool_)
    used[codes] = True
    renumbered = pa.array((np.cumsum(used, dtype=np.int32) - 1)[codes], pa.int32())
    series = pa.DictionaryArray.from_arrays(renumbered, keys.filter(pa.array(used))).cast(SERIES_TYPE)
    return pa.RecordBatch.from_arrays([series, *taken.columns[1:]], schema=rows.schema)
