"""The tables of this very node: the stores of its groups, seen as one source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress

from connectors.log.deadline import Deadline
from consumers.query.source import Scan
from consumers.replication.group import Group
from consumers.store import TableUnknown
from schemas.tables import Catalogue, TableSchema


class LocalSource:
    """Scans every group this node is a member of; here that is all of them, so no other node need be asked."""

    def __init__(self, groups: Callable[[], Sequence[Group]], catalogue: Catalogue) -> None:
        self._groups = groups
        self._catalogue = catalogue

    def tables(self) -> Sequence[tuple[str, str]]:
        """See TableSource: every table the table log names, also one that has no rows yet."""
        return sorted(self._catalogue.tables)

    def schema(self, database: str, table: str) -> TableSchema:
        """See TableSource."""
        return self._catalogue.newest(database, table)

    def scan(
        self,
        database: str,
        table: str,
        *,
        columns: Sequence[str] | None,
        start_ns: int | None,
        end_ns: int | None,
        tags: Mapping[str, Sequence[str]] | None,
    ) -> Sequence[Scan]:
        """See TableSource; a group that was never sent rows of the table has nothing to scan."""
        scans: list[Scan] = []
        with ExitStack() as opened:
            for group in self._groups():
                with suppress(TableUnknown):
                    scan = group.store.scan(
                        database, table, columns=columns, start_ns=start_ns, end_ns=end_ns, tags=tags
                    )
                    scans.append(opened.enter_context(scan))
            # All are open: they are the caller's now.
            opened.pop_all()
        return scans

    def wait_for(self, offsets: Mapping[str, int], timeout_s: float) -> bool:
        """See WaitingSource; a group that is not here is nothing to wait for."""
        deadline = Deadline(timeout_s)
        by_name = {group.name: group for group in self._groups()}
        return all(
            by_name[name].wait_for_offset(offset, deadline.left_s())
            for name, offset in offsets.items()
            if name in by_name
        )
