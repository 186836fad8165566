"""Names that one table cannot have beside each other: of a tag and of a field, or in two spellings.

SQL does not distinguish names by case. What the table has decides, or else the first row that has the name; rows with
the other role or spelling are refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from headrace.connectors.formats.lines import Booleans
from headrace.connectors.formats.text_columns import Columns


@dataclass(frozen=True, slots=True)
class ColumnName:
    """A name and its role."""

    name: str
    is_tag: bool

    @property
    def role(self) -> str:
        """As users call it."""
        return "tag" if self.is_tag else "field"

    def refusal(self, known: ColumnName) -> str:
        """Why a row with this one does not fit into a table that has `known`."""
        if self.name == known.name:
            return f"is a {known.role} and the line has it as a {self.role}"
        return f"differs from {known.name!r} only in case"


def known_names(tags: Iterable[str], fields: Iterable[str]) -> dict[str, ColumnName]:
    """The names of a table, by their form without case."""
    found = [*(ColumnName(name, is_tag=False) for name in fields), *(ColumnName(name, is_tag=True) for name in tags)]
    return {each.name.lower(): each for each in found}


def name_clashes(
    tags: Columns, fields: Columns, known: dict[str, ColumnName]
) -> Iterator[tuple[ColumnName, Booleans, str]]:
    """Columns with rows that are refused: the name, which rows have it, and why."""
    spellings = defaultdict[str, list[ColumnName]](list)
    for each in (
        *(ColumnName(name, is_tag=True) for name in tags),
        *(ColumnName(name, is_tag=False) for name in fields),
    ):
        spellings[each.name.lower()].append(each)
    for folded, names in spellings.items():
        if len(names) == 1 and known.get(folded, names[0]) == names[0]:
            continue
        present = [
            (tags if each.is_tag else fields)[each.name].is_valid().to_numpy(zero_copy_only=False) for each in names
        ]
        yield from _refused(names, present, known.get(folded))


def _refused(
    names: list[ColumnName], present: list[Booleans], known: ColumnName | None
) -> Iterator[tuple[ColumnName, Booleans, str]]:
    if known is None:
        # A row that has two of them is refused whichever is first, so it does not decide.
        twice = np.sum(present, axis=0) > 1
        if twice.any():
            yield names[1], twice, names[1].refusal(names[0])
        present = [each & ~twice for each in present]
        firsts = [int(each.argmax()) if each.any() else len(each) for each in present]
        known = names[int(np.argmin(firsts))]
    for name, rows in zip(names, present, strict=True):
        if name != known and rows.any():
            yield name, rows, name.refusal(known)
