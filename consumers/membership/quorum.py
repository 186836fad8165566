"""Waits until enough members of a group hold a record durably (DESIGN 6, write acknowledgement)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping

from connectors.log.port import Log
from connectors.log.topics import Topics
from consumers.membership.slots import SlotTable
from consumers.replication.broadcast import StatusReader
from consumers.replication.status import StatusBoard
from schemas.errors import HeadraceError, StateUnknown

RETRY_S = 0.5
POLL_S = 0.1


class QuorumInvalid(HeadraceError):
    """A quorum that cannot be asked for."""


class QuorumTooLarge(QuorumInvalid):
    """A quorum of more members than a group has; it is never clipped."""


class QuorumTimeout(StateUnknown):
    """Rows are in the log, and not enough members confirmed in time that they hold them: they will be applied everywhere, or nowhere.

    `lagging` says for each group that fell short how each of its members stands.
    """

    def __init__(self, message: str, *, rows: int, lagging: Mapping[str, Mapping[str, str]]) -> None:
        super().__init__(message, action="look whether the nodes named are up; writing them again is safe")
        self.rows = rows
        self.lagging = lagging


class StatusWatch:
    """Follows the status topic in a thread of its own, from the first use on. Safe to share between threads."""

    def __init__(self, log: Log, topics: Topics) -> None:
        self._log = log
        self._topic = topics.status
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self.board = StatusBoard()
        self.error = ""

    def start(self) -> None:
        """Begin to follow; a second call changes nothing."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._follow, name="status-watch", daemon=True)
                self._thread.start()

    def wait_for(self, holds: Callable[[StatusBoard], bool], timeout_s: float) -> bool:
        """Whether `holds` comes true of the board within `timeout_s`; it is asked at every change, so it must be quick."""
        self.start()
        with self._changed:
            return self._changed.wait_for(lambda: holds(self.board), timeout_s)

    def close(self) -> None:
        """Stop following."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(10.0)

    def _follow(self) -> None:
        while not self._stopping.is_set():
            try:
                with contextlib.closing(StatusReader(self._log, self._topic)) as reader:
                    self.board = reader.board
                    self._follow_reader(reader)
            except HeadraceError as error:
                self.error = error.message
                self._stopping.wait(RETRY_S)

    def _follow_reader(self, reader: StatusReader) -> None:
        while not self._stopping.is_set():
            if reader.follow(POLL_S):
                self.error = ""
                with self._changed:
                    self._changed.notify_all()


class Quorum:
    """Confirms that `copies` members hold what was written. Raises QuorumInvalid and QuorumTooLarge on construction."""

    def __init__(
        self, log: Log, topics: Topics, slot_table: SlotTable, watch: StatusWatch, copies: int, timeout_ms: int
    ) -> None:
        if copies < 0:
            raise QuorumInvalid(f"quorum {copies} is negative", action="use 0, 1 or up to the replication")
        if copies > slot_table.replication:
            raise QuorumTooLarge(
                f"quorum {copies} is more than the {slot_table.replication} members of a group",
                action=f"use at most {slot_table.replication}",
            )
        self.copies = copies
        self._timeout_ms = timeout_ms
        self._slot_table = slot_table
        self._watch = watch
        self._topic_ids: dict[str, str] = {}
        if self.watched:
            self._topic_ids = {name: log.describe(topics.forward(name)).topic_id for name in slot_table.headers}
            watch.start()

    @property
    def watched(self) -> bool:
        """Whether the log's own acknowledgement is not enough."""
        return self.copies >= 2

    def confirm(self, offsets: Mapping[str, int], rows: int, counted: str = "rows") -> None:
        """Wait until everything up to these offsets is durable at enough members. Raises QuorumTimeout."""
        if not self.watched:
            return
        self._watch.wait_for(lambda board: not self._short(board, offsets), self._timeout_ms / 1_000)
        board = self._watch.board
        short = self._short(board, offsets)
        if not short:
            return
        lagging = {group: self._standing(board, group, offsets[group]) for group in short}
        described = "; ".join(
            f"group {group}: {', '.join(f'{node} {stands}' for node, stands in members.items())}"
            for group, members in lagging.items()
        )
        unreadable = f" (status not readable: {self._watch.error})" if self._watch.error else ""
        raise QuorumTimeout(
            f"{rows:,} {counted} are in the log but were not confirmed by {self.copies} members within {self._timeout_ms} ms: "
            f"{described}{unreadable}",
            rows=rows,
            lagging=lagging,
        )

    def _short(self, board: StatusBoard, offsets: Mapping[str, int]) -> list[str]:
        """The groups of which fewer than enough live members hold what was written."""
        return [
            group
            for group, offset in offsets.items()
            if board.durable_copies(group, self._slot_table.group(group), self._topic_ids[group], offset) < self.copies
        ]

    def _standing(self, board: StatusBoard, group: str, offset: int) -> dict[str, str]:
        return {node: self._stands(board, group, node, offset) for node in self._slot_table.group(group)}

    def _stands(self, board: StatusBoard, group: str, node: str, offset: int) -> str:
        status = board.status(group, node)
        if status is None:
            return "was never heard"
        if not board.alive(group, node):
            return f"is offline since {board.silent_ms(group, node) / 1_000:.0f} s"
        if status.topic_id != self._topic_ids[group]:
            return "follows another topic of that name"
        if status.durable_offset >= offset:
            return "holds it"
        reason = f": {status.reason}" if status.reason else ""
        return f"holds up to offset {status.durable_offset} of {offset}{reason}"
