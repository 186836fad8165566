"""Keeps the messages of one writer on the newest route while the members of the cluster change.

Every block is routed by the newest slot table, or by one that is kept. Before the first block of a newer table
everything that an older one routed has its delivery report, so that of two values of one row the later one wins. A
message that a closed or missing topic refused is routed again: it is certainly in no log. Where a group has only lost
slots, nothing is to be done here: its log takes the rows, and the group hands them over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.port import AppendFailed
from headrace.producers.acks import Quorum
from headrace.producers.cluster import Cluster, Route, SlotRouting, groups_of
from headrace.producers.router import encode_writes, route_again
from headrace.producers.sender import Refused, RoutedMessage, Sender
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.messages import Write, decode_message
from headrace.schemas.payload import decode_rows


class RouteKeeper:
    """The route of one writer, whose owner makes one call at a time."""

    def __init__(self, cluster: Cluster, sender: Sender, quorum: Quorum, compression: str) -> None:
        self._cluster = cluster
        self._sender = sender
        self._quorum = quorum
        self._compression = compression
        self._version = 0
        self._kept: Route | None = None

    def begin(self, timeout_s: float, *, keeps: bool) -> None:
        """Begin with the table of now, and keep it while its groups are there if `keeps`. Raises as `Routing.look`.

        Rows that another process wrote before would outrank those by an older table. An attempt of a batch keeps its
        table: if it is given up, it writes nothing by one that came when a later batch had an older one.
        """
        route = self._cluster.routing.look(timeout_s)
        self._kept = route if keeps else None

    def route(self, timeout_s: float) -> Route:
        """The route of the next block. Raises as `Routing.route`, and as `settle`."""
        # Again after each wait: messages may have been refused during it, and another change of members may count.
        while True:
            route = self._chosen(self._cluster.routing.route)
            moved = route.table.version != self._version and self._sender.unsettled
            if not moved and not self._sender.has_refused:
                self._version = route.table.version
                return route
            self.settle(timeout_s)
            if moved:
                self._version = route.table.version

    def _chosen(self, newest: Route) -> Route:
        if self._kept is not None and not all(newest.holds(group) for group in groups_of(self._kept.table)):
            # The log of a group that has ended takes no rows, or will soon take none.
            self._kept = None
        return self._kept or newest

    def settle(self, timeout_s: float) -> None:
        """Wait until every message is in a log, or has failed. Raises WriteFailed, WriteUnknown."""
        deadline = Deadline(timeout_s)
        while refused := self._sender.settled(deadline):
            self._send_again(refused, deadline)

    def _send_again(self, refused: Sequence[Refused], deadline: Deadline) -> None:
        """Route refused messages by the table of now; those whose group is still there have failed."""
        try:
            # A group ends with the table that lacks it, before its topic is closed: a look from now on finds it.
            route = self._cluster.routing.look(deadline.left_s())
        except HeadraceError as error:
            self._fail(refused, error)
            return
        ended = [each for each in refused if not route.holds(each.message.group)]
        # A group that is still in the table owns its slots, so its rows are nobody else's. Its topic was closed or
        # deleted by hand, which the caller has to see.
        for each in refused:
            if each not in ended:
                self._sender.fail(each.message, each.error)
        if not ended:
            return
        bodies = [body for each in ended for body in self._routed(route.table, each.message)]
        messages = self._sender.encode(bodies)
        try:
            self._quorum.prepare(each.group for each in messages)
        except HeadraceError as error:
            self._fail(ended, error)
            return
        self._sender.append(messages, again=True)

    def _routed(self, table: SlotRouting, message: RoutedMessage) -> Iterator[tuple[GroupKey, Write, int]]:
        """The rows of a message, by the groups that own them in a table."""
        write = decode_message(message.value).body
        assert isinstance(write, Write), write
        tables = self._cluster.tables
        schema = tables.catalogue.at(write.database, write.table, write.schema_version)
        assert schema is not None, "this process has encoded the rows by that version"
        database = tables.ensure_database(write.database)
        for part in route_again(table, database, schema, decode_rows(write.rows)):
            group = GroupKey(part.group, table.birth(part.group))
            for each in encode_writes(schema, table.version, part.rows, self._compression):
                yield group, each, each.row_count

    def _fail(self, refused: Sequence[Refused], error: HeadraceError) -> None:
        for each in refused:
            message = f"{each.error.message}, and where its rows belong now is not known: {error.message}"
            self._sender.fail(each.message, AppendFailed(message, action=error.action, retriable=True))
