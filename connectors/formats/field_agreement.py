"""Field types on which the rows of one table agree.

A declared type decides, otherwise the first row that has the field and is accepted. int64 and float64 in one field become
float64; a row with any other difference is rejected. SQL does not distinguish names by case, so a second spelling of a
name is a difference, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats.chunks import Rejections, TableChunk
from headrace.connectors.formats.interface import FormatOptions
from headrace.schemas.tables import FieldType, widened

DECISIONS_MAX = 32
"""So often rows of one table are compared again, since a rejected row had been the first with a field. Behind that its
type counts: such a chain of rows that contradict each other is no data, and each comparison reads all fields."""


@dataclass(frozen=True, slots=True, order=True)
class _FirstType:
    """A field as the first line that has it has it."""

    line: int
    name: str
    kind: FieldType

    def as_known(self, name: str) -> tuple[FieldType | None, str]:
        """(the type that a field `name` must have, None for another spelling; the spelling of its name)."""
        return self.kind if name == self.name else None, self.name


@dataclass(frozen=True, slots=True)
class FieldAgreement:
    """Finds the types of one table after the other, and rejects the rows that do not agree with them."""

    options: FormatOptions
    rejections: Rejections

    def agreeing(self, table: str, chunks: Iterable[TableChunk]) -> tuple[list[TableChunk], dict[str, FieldType]]:
        """The rows of the chunks of one table that agree, and the type of each column they have."""
        declared = self.options.declared_types(table)
        full = (self._without_twins(chunk.without_empty_fields()) for chunk in chunks)
        chunks = self._matching(full, declared)
        chunks = self._with_first_types(chunks)
        return chunks, _seen_types(chunks, declared)

    def _with_first_types(self, chunks: list[TableChunk]) -> list[TableChunk]:
        """The rows that agree with the accepted rows before them: what a rejected row has decides nothing."""
        for _ in range(DECISIONS_MAX):
            firsts = _first_types(chunks)
            refused = _first_conflict(chunks, firsts)
            if refused is None:
                return chunks
            # No row before the first conflict is rejected, so what these decide is final.
            chunks = self._matching(chunks, {each.name: each.kind for each in firsts.values() if each.line < refused})
        return self._matching(chunks, {each.name: each.kind for each in _first_types(chunks).values()})

    def _without_twins(self, chunk: TableChunk) -> TableChunk:
        """The rows that have no two fields whose names differ only in case; others are rejected, whichever is known."""
        spellings = defaultdict[str, list[str]](list)
        for name in sorted(chunk.fields):
            spellings[name.lower()].append(name)
        refused = np.zeros(len(chunk.lines), np.bool_)
        for first, *others in [each for each in spellings.values() if len(each) > 1]:
            present = [chunk.fields[name].is_valid().to_numpy(zero_copy_only=False) for name in (first, *others)]
            twins = np.sum(present, axis=0) > 1
            if twins.any():
                problem = f"fields {first!r} and {others[-1]!r} of table {chunk.table!r} differ only in case"
                self.rejections.add(chunk.lines[twins], problem)
                refused |= twins
        return chunk.where(pa.array(~refused)) if refused.any() else chunk

    def _matching(self, chunks: Iterable[TableChunk], types: Mapping[str, FieldType]) -> list[TableChunk]:
        matching = (self._matching_rows(chunk, types) for chunk in chunks)
        return [chunk for chunk in matching if len(chunk.lines)]

    def _matching_rows(self, chunk: TableChunk, types: Mapping[str, FieldType]) -> TableChunk:
        """The rows of a chunk whose fields agree with `types`; rows with a conflict are rejected."""
        # SQL does not distinguish names by case, so two fields that differ only in case would be one column.
        folded = {name.lower(): name for name in types}
        tags = {*self.options.declared_tags.get(chunk.table, ()), *dict(self.options.static_tags)}
        for name, kind in chunk.kinds().items():
            # The rows that are left may have no value of it.
            values = chunk.fields.get(name)
            if values is None:
                continue
            problem = _problem(name, kind, types.get(name), folded.get(name.lower(), name), is_tag=name in tags)
            if problem is not None:
                present = values.is_valid()
                rejected = chunk.lines[present.to_numpy(zero_copy_only=False)]
                self.rejections.add(rejected, f"field {name!r} of table {chunk.table!r} {problem}")
                chunk = chunk.where(pc.invert(present), without=name)
        return chunk


def _problem(name: str, seen: FieldType, known: FieldType | None, same_folded: str, *, is_tag: bool) -> str | None:
    if is_tag:
        return "is a tag and the line has it as a field"
    if known is None:
        return f"differs from {same_folded!r} only in case" if same_folded != name else None
    return f"is {known} and the line has {seen}" if widened(known, seen) is None else None


def _first_types(chunks: list[TableChunk]) -> dict[str, _FirstType]:
    """The first line of each field, by its name without case: names that differ only in case count as one."""
    firsts: dict[str, _FirstType] = {}
    for chunk in chunks:
        for name, kind in chunk.kinds().items():
            candidate = _FirstType(chunk.first_line(name), name, kind)
            firsts[name.lower()] = min(candidate, firsts.get(name.lower(), candidate))
    return firsts


def _first_conflict(chunks: list[TableChunk], firsts: Mapping[str, _FirstType]) -> int | None:
    """The first line that does not agree with the first line of one of its fields; None if all do."""
    conflicts = (
        chunk.first_line(name)
        for chunk in chunks
        for name, kind in chunk.kinds().items()
        if _problem(name, kind, *firsts[name.lower()].as_known(name), is_tag=False) is not None
    )
    return min(conflicts, default=None)


def _seen_types(chunks: list[TableChunk], declared: Mapping[str, FieldType]) -> dict[str, FieldType]:
    types: dict[str, FieldType] = {}
    for chunk in chunks:
        for name, seen in chunk.kinds().items():
            wide = widened(types.get(name, seen), seen)
            assert wide is not None
            types[name] = wide
    # A table has the types that were seen; the writer widens the schema. Only float64 is applied here.
    for name, kind in types.items():
        if declared.get(name) is FieldType.FLOAT64:
            types[name] = widened(kind, FieldType.FLOAT64) or kind
    return types
