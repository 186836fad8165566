"""The rollup of a segment: aggregates of each of its series and hours, computed from its rows.

Rows of a segment are sorted by (series, time), so that the rows of one series and hour are neighbours. A rollup is one
Arrow batch with a row for each of them, in their order. It has the columns of `rollup_columns` for every field of the
file: count, sum, minimum, maximum, first and last value of numbers, all but the sum of booleans, the count of texts.
A field without nulls has no count and no times of its own, since they are those of all rows.

DuckDB's rules hold: a NaN is above all numbers, the minimum ignores it where there is a number, and nulls count nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.consumers.store.batch_columns import Int64s, Mask
from headrace.consumers.store.rollup_columns import FIRST_NS, HOUR, HOUR_NS, LAST_NS, ROWS, SERIES, Rolled
from headrace.consumers.store.segment import MICROSECOND_NS, Runs, SegmentRows
from headrace.schemas.tables import FieldType

TIME_NS_MAX = 1 << 62
"""Beyond it, about 146 years around 1970, the begin of an hour may not be a time any more."""
_LOW_BITS = 32
_LOW_MASK = (1 << _LOW_BITS) - 1
_FIELDS = b"headrace.fields"


def pays(runs: Runs, rows: int, rows_min: int) -> bool:
    """Whether a rollup has at most one row for `rows_min` rows of the segment, by the first and last times of its series."""
    hours = runs.last_ns // HOUR_NS - runs.first_ns // HOUR_NS + 1
    # As floats: of times far apart the product may be no int64.
    return float(hours.astype(np.float64).sum()) * rows_min <= rows


def rollup_of(rows: SegmentRows) -> pa.RecordBatch | None:
    """The rollup of all rows of a segment; None for times that SQL may round into another hour."""
    if not _is_exact(rows.times):
        return None
    groups = _Groups.of(rows)
    columns: dict[str, pa.Array] = {
        SERIES: pa.array(groups.series.astype(np.int32)),
        HOUR: pa.array(groups.hours),
        ROWS: pa.array(groups.lengths),
        FIRST_NS: pa.array(rows.times[groups.starts]),
        LAST_NS: pa.array(rows.times[groups.starts + groups.lengths - 1]),
    }
    kinds: dict[str, str] = {}
    for name, values in rows.fields.items():
        kind = _kind(values.type)
        kinds[name] = kind.value
        columns |= {part.of(name): found for part, found in _rolled(kind, values, rows.times, groups).items()}
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return batch.replace_schema_metadata({_FIELDS: json.dumps(kinds).encode()})


def fields_of(schema: pa.Schema) -> dict[str, FieldType]:
    """The fields that a rollup is of, and their types in the file."""
    return {name: FieldType(kind) for name, kind in json.loads((schema.metadata or {})[_FIELDS]).items()}


@dataclass(frozen=True, slots=True)
class _Groups:
    """The rows of each series and hour: group i is rows `starts[i]` to `starts[i] + lengths[i]` of series `series[i]`."""

    starts: Int64s
    lengths: Int64s
    series: Int64s
    hours: Int64s

    @classmethod
    def of(cls, rows: SegmentRows) -> _Groups:
        # NumPy divides unsigned numbers eight times faster than signed ones.
        base = int(rows.times.min()) // HOUR_NS * HOUR_NS
        hours = (rows.times - base).view(np.uint64) // np.uint64(HOUR_NS)
        changed = np.ones(len(hours), np.bool_)
        np.not_equal(hours[1:], hours[:-1], out=changed[1:])
        begins = np.cumsum(rows.runs.lengths) - rows.runs.lengths
        changed[begins] = True
        starts = np.flatnonzero(changed)
        lengths = np.diff(np.append(starts, len(hours)))
        series = np.searchsorted(begins, starts, "right") - 1
        return cls(starts, lengths, series, hours[starts].astype(np.int64) * HOUR_NS + base)


def _is_exact(times: Int64s) -> bool:
    """Whether SQL, which computes in microseconds, has each time in the hour that it is in."""
    if max(abs(int(times.min())), abs(int(times.max()))) >= TIME_NS_MAX:
        return False
    return bool(np.array_equal(times // MICROSECOND_NS * MICROSECOND_NS, times))


def _kind(arrow_type: pa.DataType) -> FieldType:
    # string and large_string are two layouts of the same values.
    kind = FieldType.of_arrow(pa.string() if arrow_type == pa.large_string() else arrow_type)
    assert kind is not None, arrow_type
    return kind


def _rolled(kind: FieldType, values: pa.Array, times: Int64s, groups: _Groups) -> Mapping[Rolled, pa.Array]:
    """The columns of one field."""
    if not values.null_count:
        whole = _numbers(kind, values)
        return {} if whole is None else _aggregates(kind, whole, groups.starts, groups.lengths, None)
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    counts = np.add.reduceat(valid, groups.starts, dtype=np.int64)
    found = {Rolled.COUNT: pa.array(counts)}
    numbers = _numbers(kind, values.drop_null())
    if numbers is None:
        return found
    # Of the values alone: a group without any has no place among them.
    present, starts, lengths = counts > 0, (np.cumsum(counts) - counts)[counts > 0], counts[counts > 0]
    known = times[valid]
    found[Rolled.FIRST_TIME] = _placed(known[starts], present)
    found[Rolled.LAST_TIME] = _placed(known[starts + lengths - 1], present)
    return found | _aggregates(kind, numbers, starts, lengths, present)


def _numbers(kind: FieldType, values: pa.Array) -> npt.NDArray[np.generic] | None:
    """Values without nulls as numbers; None for text."""
    if kind is FieldType.STRING:
        return None
    numbers: npt.NDArray[np.generic] = values.to_numpy(zero_copy_only=False)
    return numbers


def _aggregates(
    kind: FieldType, numbers: npt.NDArray[np.generic], starts: Int64s, lengths: Int64s, present: Mask | None
) -> dict[Rolled, pa.Array]:
    """Aggregates of neighbours; those of group i are at the i-th true place of `present`."""
    found = {Rolled.FIRST: numbers[starts], Rolled.LAST: numbers[starts + lengths - 1]}
    if not len(starts):
        # Of a column without any value; a reduction takes no empty one.
        found |= dict.fromkeys((Rolled.MIN, Rolled.MAX), numbers[:0])
        found |= dict.fromkeys(_sums_of(kind), numbers[:0])
    else:
        with np.errstate(all="ignore"):
            found[Rolled.MIN] = (np.fmin if kind is FieldType.FLOAT64 else np.minimum).reduceat(numbers, starts)
            found[Rolled.MAX] = np.maximum.reduceat(numbers, starts)
            if kind is FieldType.FLOAT64:
                found[Rolled.SUM] = np.add.reduceat(numbers, starts)
            elif kind is FieldType.INT64:
                high, low = _long_sums(numbers, starts, found[Rolled.MIN], found[Rolled.MAX], lengths)
                found |= {Rolled.SUM_HIGH: high, Rolled.SUM_LOW: low}
    return {part: _placed(values, present) for part, values in found.items()}


def _sums_of(kind: FieldType) -> tuple[Rolled, ...]:
    if kind is FieldType.FLOAT64:
        return (Rolled.SUM,)
    return (Rolled.SUM_HIGH, Rolled.SUM_LOW) if kind is FieldType.INT64 else ()


def _long_sums(
    numbers: npt.NDArray[np.generic],
    starts: Int64s,
    lowest: npt.NDArray[np.generic],
    highest: npt.NDArray[np.generic],
    lengths: Int64s,
) -> tuple[Int64s, Int64s]:
    """Sums of integers in two halves. No half overflows: there are fewer rows of an hour than 2**31."""
    integers: Int64s = numbers.astype(np.int64, copy=False)
    bound = max(abs(int(lowest.min())), abs(int(highest.max()))) * int(lengths.max())
    if bound <= np.iinfo(np.int64).max:
        sums = np.add.reduceat(integers, starts)
        return sums >> _LOW_BITS, sums & _LOW_MASK
    return np.add.reduceat(integers >> _LOW_BITS, starts), np.add.reduceat(integers & _LOW_MASK, starts)


def _placed(values: npt.NDArray[np.generic], present: Mask | None) -> pa.Array:
    """The values at the places that are present, null at the others."""
    if present is None or present.all():
        return pa.array(values)
    spread = np.zeros(len(present), values.dtype)
    spread[present] = values
    return pa.array(spread, mask=~present)


def widened_sum(high: pa.Array, low: pa.Array) -> pa.Array:
    """The sum of integers as float64, of a field that is float64 by now."""
    # Not safe: such a cast raises for what float64 rounds.
    wide, narrow = (pc.cast(half, pa.float64(), safe=False) for half in (high, low))
    return pc.add(pc.multiply(wide, float(1 << _LOW_BITS)), narrow)
