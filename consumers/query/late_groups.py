"""Which groups of a new slot table a query waits for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping


class LateGroups:
    """The groups of a new slot table that have not served since it counts; threads share it.

    A query waits for them: a new group, or one of other members, serves in a moment. A group that has served and does
    so no longer has lost its members, which no query can wait for.
    """

    def __init__(self, version: int, names: Iterable[str]) -> None:
        """`version` is that of the table, `names` are its groups."""
        self._version = version
        self._names = set(names)

    def note(self, version: int, serving: Iterable[str]) -> None:
        """These groups serve, as a query of a table finds them."""
        if version == self._version and self._names:
            self._names.difference_update(serving)

    def waits_for(self, version: int, lacking: Collection[str]) -> bool:
        """Whether all groups that a query of a table lacks are late; also when it lacks none by now."""
        return version <= self._version and self._names.issuperset(lacking)


def show_lacking(lacking: Mapping[str, str], awaited: dict[str, str] | None) -> None:
    """Show in `awaited` what a query lacks now, and nothing else."""
    if awaited is None:
        return
    # Never empty in between: another thread may look at any moment.
    awaited.update(lacking)
    for name in awaited.keys() - lacking.keys():
        del awaited[name]
