"""`headrace sync send` as one object: opens what a sender needs, runs its rounds, and waits where waiting helps."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.client import INTERNAL_SERVER_ERROR
from pathlib import Path
from typing import Any, Protocol, TypeVar

import structlog

from headrace.connectors.http import NodeRefused
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.sync.centre_link import CentreLink, topic_ids
from headrace.consumers.sync.send_round import SendRound
from headrace.consumers.sync.send_settings import CHUNK_BYTES, SendSettings
from headrace.consumers.sync.send_status import SendRate, sender_document
from headrace.consumers.sync.sender import NOTHING_SENT, Sender, SenderName
from headrace.consumers.sync.sender_ports import StateUnwritable
from headrace.consumers.sync.source_store import NodeStore
from headrace.consumers.sync.state_directory import StateDirectory
from headrace.schemas.errors import HeadraceError

PAUSE_FIRST_S = 0.2
PAUSE_MAX_S = 15.0
SHOW_INTERVAL_S = 1.0
STOP_POLL_S = 0.2
Result = TypeVar("Result")
_log = structlog.get_logger(__name__)


class Stopped(Exception):
    """The sender was asked to stop."""


class Watcher(Protocol):
    """Who waits for a sender."""

    def stopping(self) -> bool:
        """Whether it is to stop."""
        ...

    def note(self, line: str) -> None:
        """A line for people."""
        ...

    def progress(self, sent_bytes: int, total_bytes: int) -> None:
        """How far the round is."""
        ...


@dataclass(frozen=True, slots=True)
class SendOptions:
    """What a sender is started with. `kafka` is librdkafka's, verbatim."""

    node: str
    bootstrap: str
    cluster: str
    directory: Path
    settings: SendSettings
    name: str = ""
    databases: frozenset[str] = frozenset()
    once: bool = False
    md5: bool = False
    direct: bool = True
    kafka: Mapping[str, str] = field(default_factory=dict)


class SendLoop:
    """Runs one sender on the calling thread."""

    def __init__(
        self, options: SendOptions, watcher: Watcher, on_step: Callable[[str], None] = lambda _name: None
    ) -> None:
        self._options = options
        self._watcher = watcher
        self._on_step = on_step
        self._topics = Topics(options.cluster)
        self._rate = SendRate()
        self._confirmed_bytes = self._total_bytes = 0
        self._show_at_s = 0.0
        self._shown: tuple[Sender, StateDirectory] | None = None
        self._failing_since_s: float | None = None
        self._pause_s = PAUSE_FIRST_S
        self.rejections: list[str] = []
        """What the centre has rejected by the end of `run`, in this run or before."""

    def run(self) -> dict[str, Any]:
        """Send until all is sent (`once`), or until it is to stop; the counts of this run.

        Raises DirectoryHeld, DatabaseNotHere, StateForeign, CentreForeign, CentreTaken, SenderCloned and others that waiting does not cure.
        """
        begin_s = time.monotonic()
        with ExitStack() as opened:
            try:
                sender, state = self._open(opened)
            except Stopped:
                return {**NOTHING_SENT, "seconds": round(time.monotonic() - begin_s, 3)}
            try:
                self._rounds(sender, state)
            except Stopped:
                pass
            finally:
                self._show(sender, state, force=True)
                self.rejections = sender.state.rejections()
            return sender.figures() | {"seconds": round(time.monotonic() - begin_s, 3)}

    def _open(self, opened: ExitStack) -> tuple[Sender, StateDirectory]:
        options = self._options
        log = KafkaLog(options.bootstrap, options.kafka)
        opened.callback(log.close)
        ids = self._patiently(lambda: topic_ids(log, self._topics))
        state = StateDirectory.open(options.directory, options.cluster, ids)
        opened.callback(state.close)
        store = NodeStore(
            options.node,
            ids[self._topics.membership],
            options.cluster,
            state.identity.sender,
            options.name,
            direct=options.direct,
        )
        # Before the node learns of the sender: one with a directory of another store must not take the place of its own.
        identity = state.claim(self._patiently(store.identity), options.name)
        # What is left out counts as decided: a name with a letter wrong would leave out everything.
        self._patiently(lambda: store.check_databases(options.databases, may_come=not options.once))
        recovered = self._patiently(state.recover)
        link = self._patiently(
            lambda: CentreLink(log, self._topics, state, recovered.counters.verdict_offset, options.kafka)
        )
        opened.callback(link.close)
        sender = Sender(
            SenderName(identity.sender, identity.store, identity.name),
            recovered,
            state,
            store,
            link,
            options.settings,
            md5=options.md5,
            databases=options.databases,
            once=options.once,
            on_step=self._on_step,
        )
        self._shown = sender, state
        self._patiently(sender.start, forever=True)
        end = self._patiently(link.verdict_end)
        while link.verdicts_read < end:
            self._patiently(lambda: sender.read_verdicts(STOP_POLL_S))
        return sender, state

    def _rounds(self, sender: Sender, state: StateDirectory) -> None:
        while True:
            self._patiently(lambda: self._take_requests(sender, state), forever=True)
            self._patiently(sender.begin_round, forever=not self._options.once)
            assert sender.round is not None
            self._begin_counting(sender.round)
            while not self._patiently(sender.turn, forever=True):
                self._show(sender, state)
            again = self._patiently(sender.end_round, forever=not self._options.once)
            self._show(sender, state, force=True)
            self._report(sender)
            if again:
                continue
            if self._options.once:
                return
            self._wait(sender, state)

    def _take_requests(self, sender: Sender, state: StateDirectory) -> None:
        for path, files in state.requests():
            for unknown in sender.ask_again(files):
                self._watcher.note(f"{unknown} is not known here, and not sent again")
            path.unlink(missing_ok=True)

    def _wait(self, sender: Sender, state: StateDirectory) -> None:
        end_s = time.monotonic() + self._options.settings.interval_s
        while (left_s := end_s - time.monotonic()) > 0:
            # A file that was left may be accepted after all.
            self._patiently(lambda: sender.read_verdicts(min(STOP_POLL_S, left_s)), forever=True)
            self._show(sender, state)

    def _patiently(self, call: Callable[[], Result], *, forever: bool = False) -> Result:
        """The result of a call that is repeated while waiting may help. Raises Stopped, and what does not pass."""
        while True:
            if self._watcher.stopping():
                raise Stopped
            began_s = time.monotonic()
            try:
                result = call()
            except HeadraceError as error:
                self._show_error(str(error))
                if not _passes(error):
                    raise
                now_s = time.monotonic()
                self._failing_since_s = began_s if self._failing_since_s is None else self._failing_since_s
                waits = forever or not self._options.once or isinstance(error, StateUnwritable)
                # A try takes some seconds as well: one behind the end of its patience would end long behind it.
                if not waits and now_s + self._pause_s - self._failing_since_s >= self._options.settings.wait_s:
                    raise
                self._watcher.note(f"waiting: {error}")
                self._sleep(self._pause_s)
                self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
            else:
                if self._failing_since_s is not None:
                    self._show_error("")
                self._failing_since_s, self._pause_s = None, PAUSE_FIRST_S
                return result

    def _sleep(self, pause_s: float) -> None:
        end_s = time.monotonic() + pause_s
        while (left_s := end_s - time.monotonic()) > 0 and not self._watcher.stopping():
            time.sleep(min(STOP_POLL_S, left_s))

    # What people see.

    def _begin_counting(self, found: SendRound) -> None:
        self._total_bytes = sum(each.size_bytes for each in found.files)

    def _show(self, sender: Sender, state: StateDirectory, *, force: bool = False) -> None:
        now_s = time.monotonic()
        if now_s < self._show_at_s and not force:
            return
        self._show_at_s = now_s + SHOW_INTERVAL_S
        rate = self._rate.note(now_s, sender.counts.chunks_sent * CHUNK_BYTES)
        if sender.round is not None:
            # A round that could not begin, as with a full disk, has not been counted.
            done = max(0, self._total_bytes - sender.round.bytes_left())
            self._watcher.progress(done, self._total_bytes)
        state.show(sender_document(sender.who.sender, sender.who.name, sender.state, rate, sender.last_error))

    def _show_error(self, text: str) -> None:
        """Show what a sender waits for, or has ended by, "" once it has passed: few people read the log of a service."""
        if self._shown is not None:
            sender, state = self._shown
            sender.last_error = text
            self._show(sender, state, force=True)

    def _report(self, sender: Sender) -> None:
        found = sender.figures()
        counted = (f"{found[name]} {name}" for name in ("accepted", "rejected", "failed", "waiting"))
        self._watcher.note(f"round ended: {', '.join(counted)}")


def _passes(error: HeadraceError) -> bool:
    """Whether an error may be gone at the next try."""
    if isinstance(error, NodeRefused):
        document = error.document
        # A node that failed to answer refuses nothing, and its next answer may be another one.
        if error.status >= INTERNAL_SERVER_ERROR:
            return True
        # A node that starts answers in other words than one that refuses for good.
        return bool(document.get("retriable", error.retriable)) or document.get("kind") in (
            "NotLeader",
            "SegmentAwaited",
        )
    return error.retriable
