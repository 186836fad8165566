"""A sender: rounds over the files of a store, one step of them at a time. All decisions are in `SendRound`.

`turn` is one step, so a test, or a simulation, drives it without threads. The steps have names, at which tests kill
the process.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.connectors.log.port import RecordTooLarge
from headrace.consumers.sync.file_states import FileState
from headrace.consumers.sync.listing import ListedFile, Listing
from headrace.consumers.sync.pages import Pages, as_part
from headrace.consumers.sync.send_round import CheckFile, RoundCounts, SendChunk, SendManifest, SendRound
from headrace.consumers.sync.send_settings import CHUNK_BYTES, SendSettings
from headrace.consumers.sync.sender_ports import (
    Centre,
    CentreForgotten,
    FileDamaged,
    SnapshotLost,
    SourceStore,
    StateLog,
    StateUnwritable,
    StoreDescription,
)
from headrace.consumers.sync.sender_state import SenderState
from headrace.consumers.sync.verdicts import apply_verdict
from headrace.schemas.errors import HeadraceError
from headrace.schemas.sync_records import SyncChunk, SyncManifest, Verdict, encode_chunk, encode_manifest

PROGRESS_INTERVAL_S = 5.0
TOUCH_INTERVAL_S = 30.0
LOST_PAUSE_S = 1.0
IDLE_S = 0.05
VERDICTS_AWAITED_S = 60.0
"""How long a round waits for verdicts alone. Then the next one continues these files, and lists new ones."""
ACTIONS_AT_ONCE = 16
"""Manifests and chunks between two writes of the state."""
STEPS = (
    "session",
    "described",
    "sealed",
    "listed",
    "checked",
    "state written",
    "manifest queued",
    "chunk queued",
    "confirmed",
    "verdict",
    "progress raised",
    "released",
)


NOTHING_SENT: Mapping[str, Any] = {
    "sender": "",
    **dict.fromkeys(("accepted", "rejected", "failed", "waiting", "bytes", "chunks_sent", "chunks_resent"), 0),
}
"""The counts of a run that ended before its sender was known."""


class StoreForeign(HeadraceError):
    """A state directory that is about another store."""


@dataclass(frozen=True, slots=True)
class SenderName:
    """Who sends: the UUID, the identity of its store, and what people call it."""

    sender: str
    store: str
    name: str


class Sender:
    """Owned by one thread."""

    def __init__(
        self,
        who: SenderName,
        state: SenderState,
        log: StateLog,
        store: SourceStore,
        centre: Centre,
        settings: SendSettings,
        *,
        md5: bool = False,
        databases: frozenset[str] = frozenset(),
        once: bool = False,
        clock: Callable[[], float] = time.monotonic,
        on_step: Callable[[str], None] = lambda _name: None,
    ) -> None:
        """`databases` limits what is sent, none: everything. `once`: the round is the last one.

        `on_step` is called with each name of STEPS.
        """
        self.who = who
        self.state = state
        self.settings = settings
        self.counts = RoundCounts()
        self.round: SendRound | None = None
        self.last_error = ""
        self._log = log
        self._store = store
        self._centre = centre
        self._md5 = md5
        self._databases = databases
        self._once = once
        self._clock = clock
        self._on_step = on_step
        self._listings: dict[str, Listing] = {}
        self._description: StoreDescription | None = None
        self._stale_log = False
        self._untold: dict[str, int] = {}
        self._pages = Pages()
        self._raise_at_s = self._touch_at_s = self._act_at_s = self._moved_s = 0.0

    # Rounds.

    def start(self) -> None:
        """A new session; what the centre has decided meanwhile is read before anything is sent."""
        self.state.begin_session()
        self._write()
        self._on_step("session")

    def begin_round(self) -> None:
        """Describe, seal and list. Raises what the store and the centre raise; then it is called again."""
        self._centre.check()
        description = self._description = self._store.describe()
        if description.store != self.who.store:
            raise StoreForeign(
                f"this state directory is about store {self.who.store}, and the node is of store {description.store} "
                f"(cluster {description.cluster})",
                action="use another --data-dir for this store",
            )
        self._on_step("described")
        self._reconcile(description)
        self._store.seal(self.settings.seal_age_s)
        self._on_step("sealed")
        self.state.forget_decided()
        listings = [self._selected(self._store.list(each, self._pages.above(each))) for each in description.names]
        self._listings = {each.identity: each for each in listings}
        self.round = SendRound(self.state, listings, self.settings, self.counts)
        self._write()
        self._moved_s = self._clock()
        self._raise_at_s = self._touch_at_s = self._moved_s + PROGRESS_INTERVAL_S
        self._on_step("listed")

    def _reconcile(self, description: StoreDescription) -> None:
        """Tell each member what was decided while it was away; and what an operator wanted once more meanwhile."""
        raised, lowered = dict[str, int](), dict[str, int]()
        for each in description.groups:
            known, noted = self.state.group(each.group).progress, each.progress.values()
            # The state is ahead of every member, unless it was lowered: a member that is ahead would leave files out.
            if max(noted, default=known) > known:
                lowered[each.group] = known
            if min(noted, default=known) < known:
                raised[each.group] = known
        self._untold = {}
        if lowered:
            self._store.set_progress(lowered, lower=True)
        if raised:
            self._store.set_progress(raised, lower=False)

    def _selected(self, listing: Listing) -> Listing:
        listing = as_part(listing, self.state.group(listing.group).progress)
        if not self._databases:
            return listing
        # What is left out counts as decided: an operator who adds a database later sends it with `sync resend`.
        files = tuple(each for each in listing.files if each.body.database in self._databases)
        deletes = tuple(each for each in listing.deletes if each.database in self._databases)
        return replace(listing, files=files, deletes=deletes)

    def turn(self) -> bool:
        """One step of the round; whether it has ended. Raises what the centre raises; then it is called again."""
        assert self.round is not None, "no round has begun"
        # First what a full disk has kept back: nothing is sent that the state does not have.
        self._write()
        acted = self._clock() >= self._act_at_s and self._act()
        confirmations, verdicts, offset = self._centre.events(0.0 if acted else IDLE_S)
        for each in confirmations:
            if each.lost:
                # A topic that may not be written to, or a broker that is short of copies: not at once again.
                self._act_at_s = self._clock() + LOST_PAUSE_S
                self.last_error = each.error or self.last_error
                self.round.lost(each.number)
            else:
                self.round.confirmed(each.number, each.chunk)
                self._on_step("confirmed")
        for verdict in verdicts:
            self.round.verdict(verdict)
            self.last_error = verdict.message or self.last_error
            self._on_step("verdict")
        self.state.read_verdicts(offset)
        self._write()
        self._keep()
        # That the centre holds a file, or lacks a chunk of one, ends nothing: what is sent then moves.
        decided = any(each.state is not Verdict.RESEND for each in verdicts)
        return self._is_complete or self._is_held_up(moved=bool(acted or confirmations or decided))

    @property
    def _is_complete(self) -> bool:
        """Whether the round has nothing more to wait for; a single one also waits for files that the centre holds."""
        assert self.round is not None
        return self.round.finished and not (self._once and self.round.holds and not self.round.relist)

    def _is_held_up(self, *, moved: bool) -> bool:
        """Whether the round ends without some verdicts: a full disk at the centre keeps back those of one group alone."""
        assert self.round is not None
        now_s = self._clock()
        if moved or not self.round.awaits_verdicts:
            self._moved_s = now_s
        return not self._once and now_s - self._moved_s >= VERDICTS_AWAITED_S

    def ask_again(self, files: list[str] | None) -> list[str]:
        """Send files again, None for everything; those that are not known. Raises StateUnwritable."""
        unknown, self._pages = self.state.ask_again(files), Pages()
        self._write(sync=True)
        return unknown

    def read_verdicts(self, timeout_s: float) -> None:
        """Take verdicts while no round runs."""
        _, verdicts, offset = self._centre.events(timeout_s)
        for verdict in verdicts:
            apply_verdict(self.state, verdict, self.settings.tries_max)
        self.state.read_verdicts(offset)
        self._write()

    def end_round(self) -> bool:
        """Raise the progress and release the files; whether another round has something to do at once."""
        assert self.round is not None, "no round has begun"
        if self.round.finished and not (self.round.relist or self.round.deletes_left):
            again = self._pages.turn(self._listings.values())
        else:
            again = self.round.relist or not (self.round.complete or self.round.counted(FileState.FAILED))
        try:
            self._raise_progress()
        except CentreForgotten as error:
            # Asked again alone, it would answer the same for ever. The next round makes the node known to it first.
            self.last_error, again = error.message, True
        self._store.release()
        self._on_step("released")
        return again

    # One step.

    def _act(self) -> bool:
        assert self.round is not None
        acted, due = False, deque[SendManifest | SendChunk]()
        try:
            for action in self.round.actions(self._clock()):
                acted = True
                if isinstance(action, CheckFile):
                    self._check(action)
                else:
                    due.append(action)
                if len(due) >= ACTIONS_AT_ONCE:
                    self._send_all(due)
            self._send_all(due)
            return acted
        except BaseException:
            for each in reversed(due):
                self.round.not_done(each)
            raise

    def _send_all(self, due: deque[SendManifest | SendChunk]) -> None:
        # The state first, once for all of them: after a crash it must know of all that may be in the log.
        self._write()
        while due:
            self._send(due[0])
            due.popleft()

    def _send(self, action: SendManifest | SendChunk) -> None:
        if isinstance(action, SendChunk):
            self._send_chunk(action)
            return
        assert self.round is not None
        try:
            self._centre.send_manifest(action.number, self._manifest(action))
        except RecordTooLarge as error:
            # A file brings all deletes that outrank it. Whatever they name, the other files are sent.
            if action.file is None:
                raise
            self._leave(action.file, error)
        self._on_step("manifest queued")

    def _check(self, action: CheckFile) -> None:
        assert self.round is not None
        file = action.file
        try:
            md5 = self._store.check(self._listing(file), file, self._md5)
        except SnapshotLost as error:
            self.last_error = error.message
            self.round.snapshot_lost(file)
        except FileDamaged as error:
            self._leave(file, error)
        except BaseException:
            self.round.not_done(action)
            raise
        else:
            self.round.checked(file, md5)
            if self.state.files[file.body.file].is_whole:
                # Nothing is read of it, and many such files may follow each other.
                self._store.close_file(file)
            self._on_step("checked")

    def _send_chunk(self, action: SendChunk) -> None:
        assert self.round is not None
        file = action.file
        try:
            data = self._store.read(self._listing(file), file, action.chunk * CHUNK_BYTES, action.size_bytes)
        except SnapshotLost as error:
            self.last_error = error.message
            self.round.snapshot_lost(file)
            return
        except FileDamaged as error:
            self._leave(file, error)
            return
        chunk = SyncChunk(self.who.sender, self.state.counters.session, action.number, action.chunk, data)
        self._centre.send_chunk(action.number, action.chunk, encode_chunk(chunk))
        self._on_step("chunk queued")

    def _leave(self, file: ListedFile, error: HeadraceError) -> None:
        assert self.round is not None
        self.last_error = error.message
        self._store.close_file(file)
        self.round.unreadable(file, error.message)

    def _manifest(self, action: SendManifest) -> bytes:
        assert self._description is not None
        who, session = self.who, self.state.counters.session
        return encode_manifest(
            SyncManifest(who.sender, who.store, who.name, session, action.number, self._description.format, action.body)
        )

    def _listing(self, file: ListedFile) -> Listing:
        # group/birth are the first two parts of a file's name.
        return self._listings["/".join(file.body.file.split("/", 2)[:2])]

    def _keep(self) -> None:
        now_s = self._clock()
        if now_s >= self._touch_at_s:
            self._touch_at_s = now_s + TOUCH_INTERVAL_S
            self._store.touch()
        if now_s >= self._raise_at_s:
            self._raise_at_s = now_s + PROGRESS_INTERVAL_S
            try:
                self._raise_progress()
            except StateUnwritable:
                raise
            except HeadraceError as error:
                # The node restarts, or its disk is full: the end of the round raises it.
                self.last_error = error.message

    def _raise_progress(self) -> None:
        assert self.round is not None
        for group, version in self.round.raisable().items():
            self._untold[group] = version
            self.state.put_group(replace(self.state.group(group), progress=version), sync=True)
        if not self._untold:
            return
        # The state first: what the node merges from now on must never be sent as undecided.
        self._write()
        self._store.set_progress(self._untold, lower=False)
        self._untold = {}
        self._on_step("progress raised")

    def _write(self, *, sync: bool = False) -> None:
        if self._stale_log:
            self._log.rewrite(self.state.everything())
            self._stale_log = False
            self.state.written()
        changes = self.state.changes()
        if changes.records or sync:
            try:
                self._log.write(replace(changes, sync=changes.sync or sync))
            except StateUnwritable as error:
                self._stale_log = error.rewrite
                raise
            self.state.written()
            self._on_step("state written")

    def figures(self) -> dict[str, Any]:
        """Counts of this run, as `headrace sync send --json` prints them; and of files that are left."""
        states = Counter(each.state for each in self.state.files.values()) if self.round else Counter[FileState]()
        return {
            "sender": self.who.sender,
            "accepted": self.counts.accepted,
            "rejected": self.counts.rejected,
            "failed": states[FileState.FAILED],
            "waiting": states[FileState.WAITING] + states[FileState.SENDING],
            "bytes": self.counts.bytes,
            "chunks_sent": self.counts.chunks_sent,
            "chunks_resent": self.counts.chunks_resent,
        }
