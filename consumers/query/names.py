"""Which tables the names in a statement mean.

A table is `database.table`; its bare name will do where only one database has it. SQL does not tell names apart by case, and neither does the
catalogue, so resolving folds case. A bare name that a WITH clause defines, and no database has, is not a table at all.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from consumers.query.errors import UnknownTable
from consumers.query.guard import TableName

NEAR_MAX = 3

TableKey = tuple[str, str]
"""Database and table, spelled as the catalogue spells them."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """What the names mean: `by_path` maps each folded path to its table; `shadowed` holds tables whose bare name a WITH clause also uses."""

    by_path: Mapping[tuple[str, ...], TableKey]
    shadowed: frozenset[TableKey]

    @property
    def tables(self) -> tuple[TableKey, ...]:
        """Every table once, in order of name."""
        return tuple(sorted(set(self.by_path.values())))


def resolve(names: Sequence[TableName], cte_names: frozenset[str], known: Iterable[TableKey]) -> Resolved:
    """The tables that `names` mean. Raises UnknownTable, with the nearest names, for one that means none or several."""
    tables = sorted(known)
    by_path: dict[tuple[str, ...], TableKey] = {}
    shadowed: set[TableKey] = set()
    for name in names:
        path = fold(name.path)
        found = _candidates(path, tables)
        is_cte = len(path) == 1 and path[0] in cte_names
        if is_cte and len(found) != 1:
            continue
        if len(found) != 1:
            raise _unknown(name.path, found, tables)
        by_path[path] = found[0]
        if is_cte:
            shadowed.add(found[0])
    return Resolved(by_path, frozenset(shadowed))


def fold(path: Iterable[str]) -> tuple[str, ...]:
    """A path as SQL compares it."""
    return tuple(part.lower() for part in path)


def _candidates(path: tuple[str, ...], tables: Sequence[TableKey]) -> list[TableKey]:
    if len(path) == 1:
        return [key for key in tables if key[1].lower() == path[0]]
    return [key for key in tables if fold(key) == path]


def _unknown(path: tuple[str, ...], found: Sequence[TableKey], tables: Sequence[TableKey]) -> UnknownTable:
    shown = ".".join(path)
    if found:
        return UnknownTable(
            f"several databases have a table {shown!r}", action=f"write {' or '.join(map('.'.join, found))}"
        )
    near = _near(path, tables)
    if near:
        return UnknownTable(f"there is no table {shown!r}", action=f"did you mean {', '.join(near)}?")
    return UnknownTable(
        f"there is no table {shown!r}",
        action="SHOW TABLES lists what there is" if tables else "nothing has been written yet",
    )


def _near(path: tuple[str, ...], tables: Sequence[TableKey]) -> list[str]:
    """Names like the one asked for: by the whole name, else by the table's name alone."""
    whole = {".".join(key).lower(): ".".join(key) for key in tables}
    near = difflib.get_close_matches(".".join(path).lower(), whole, n=NEAR_MAX, cutoff=0.6)
    if near:
        return [whole[name] for name in near]
    last = difflib.get_close_matches(path[-1].lower(), {key[1].lower() for key in tables}, n=NEAR_MAX, cutoff=0.6)
    return [".".join(key) for key in tables if key[1].lower() in last][:NEAR_MAX]
