"""Fetches the files that groups of this node await, and attaches them: as many at once as a limit allows.

What is due is given anew at each turn, the most urgent first. What has been done is on the disk alone: a complete
file in the staging directory is attached, a partial one is continued. While one worker attaches files of a group, the
others fetch, and what they have fetched is attached with one commit after that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import islice

import structlog

from headrace.connectors.clock import SYSTEM_CLOCK, Clock
from headrace.consumers.migration.cut_source import CutRefused, FileGone, FileMerged
from headrace.consumers.migration.file_bundle import bundle_of
from headrace.consumers.migration.pull_environment import PullEnvironment
from headrace.consumers.migration.pull_rate import PullRate, YieldingRate
from headrace.consumers.migration.wanted_file import WantedFile
from headrace.consumers.recovery.file_copy import SourceCorrupt, SourceFailed
from headrace.consumers.recovery.progress import TransferStopped
from headrace.consumers.replication.group import Group
from headrace.consumers.store import StagedFileInvalid, StoreFull
from headrace.schemas.errors import HeadraceError

RETRY_S = 1.0
"""Pause before a file is tried again, and before anything is fetched after the disk was full."""
LOG_INTERVAL_S = 10.0
"""Between two lines of the log about files of one group that are not fetched."""
PATIENCE_S = 30.0
"""How long no file of a group comes before these lines are warnings."""
DISTRUST_S = 60.0
"""How long a node that has sent wrong bytes of a file is not asked for that file."""
LOOKED_AT_MAX = 1_000
"""Files that are due behind a small one, among which those that may come with it are looked for."""
GONE_S = 10.0
"""How long no member has a file, and one of them does not await it either, before its other files are copied."""
OWN_WAIT_S = 30.0
"""How long a file is expected of this node's own group, which may be behind, before other nodes are asked."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Staged:
    """A file in the staging directory, who sent it, and whether its bytes are known to be verified and synced."""

    file: WantedFile
    sender: str
    verified: bool


class NoSource(HeadraceError):
    """No copy of a group gives a file now; names why each of them does not."""


class FilePuller:
    """Owns the staging directories. `want` belongs to one thread; the rest is for any."""

    def __init__(
        self,
        environment: PullEnvironment,
        pool: Executor,
        fetches_max: int,
        rate: PullRate,
        clock: Clock = SYSTEM_CLOCK,
        on_idle: Callable[[], None] = lambda: None,
        busy_share: float = 1.0,
    ) -> None:
        """`pool` runs the fetches, at most `fetches_max` at once. `on_idle` is called when nothing is left to do now.

        `busy_share`: see YieldingRate, for files that are copied ahead.
        """
        self._busy_share = busy_share
        self._environment = environment
        self._on_idle = on_idle
        self._pool = pool
        self._fetches_max = fetches_max
        self._rate = rate
        self._clock = clock
        self._lock = threading.Lock()
        self._due: dict[tuple[str, str], WantedFile] = {}
        self._active: set[tuple[str, str]] = set()
        self._ahead: set[tuple[str, str]] = set()
        self._alone: set[tuple[str, str]] = set()
        self._ahead_number, self._ahead_full = 0, False
        self._staged: dict[Group, dict[str, _Staged]] = {}
        self._attaching: set[Group] = set()
        self._workers, self._stopped = 0, False
        self._retry_at_s: dict[tuple[str, str], float] = {}
        self._distrusted_until_s: dict[tuple[str, str], float] = {}
        self._expected_since_s: dict[tuple[str, str], float] = {}
        self._gone_since_s: dict[tuple[str, str], float] = {}
        self._resume_s = 0.0
        self._swept: set[str] = set()
        self._faults: dict[str, tuple[float, str]] = {}
        self._logged_s: dict[str, float] = {}
        self.errors = self.files = 0
        self.disk_fault = ""

    def want(self, files: Sequence[WantedFile]) -> None:
        """These are due, in this order, and no others."""
        keys = {file.key for file in files}
        with self._lock:
            self._due = {file.key: file for file in reversed(files) if file.key not in self._active}
            for kept in (self._retry_at_s, self._expected_since_s, self._gone_since_s):
                for key in kept.keys() - keys:
                    kept.pop(key, None)
            topics = {file.topic for file in files}
            # Copies: workers note meanwhile what they find.
            self._faults = {topic: fault for topic, fault in list(self._faults.items()) if topic in topics}
            self._swept -= topics
            self._alone &= keys
            self._logged_s = {topic: at_s for topic, at_s in list(self._logged_s.items()) if topic in topics}
            if not files:
                self.disk_fault = ""
            started = max(0, min(len(files), self._fetches_max) - self._workers)
            self._workers += started
        for _ in range(started):
            self._pool.submit(self._work)

    def begin_ahead(self, number: int) -> None:
        """Files are copied ahead for the change of this number; those of another one are forgotten."""
        with self._lock:
            if number != self._ahead_number:
                self._ahead_number, self._ahead, self._ahead_full = number, set(), False

    def was_tried_ahead(self, topic: str, content_digest: str) -> bool:
        """Whether a file of a group was copied ahead, or could not be."""
        with self._lock:
            return self._ahead_full or (topic, content_digest) in self._ahead

    def sweep(self, topic: str, group: Group) -> None:
        """Remove what is staged for a group that awaits nothing: a crash leaves files that were attached."""
        with self._lock:
            if topic in self._swept or any(active == topic for active, _ in self._active):
                return
            self._swept.add(topic)
        group.store.clear_staging()

    def fault(self, topic: str) -> str:
        """Why the files of a group do not arrive, empty while they do."""
        return self.disk_fault or self._faults.get(topic, (0.0, ""))[1]

    def stop(self) -> None:
        """Begin no more fetches."""
        with self._lock:
            self._stopped = True

    def _work(self) -> None:
        worked = False
        while files := self._next():
            worked = True
            together = self._stage_together(files) if len(files) > 1 else {}
            staged = list[_Staged]()
            for file in self._put_back(files, together):
                try:
                    found = self._attempt(file, together.get(file.key))
                except Exception:
                    # Whatever went wrong, the file is awaited still, and is due again.
                    _log.exception("fetching a file failed", group=file.group.name, file=file.entry.name)
                    found = RETRY_S
                if isinstance(found, _Staged):
                    staged.append(found)
                else:
                    self._end(file, found)
            if staged:
                self._attach(staged)
        # Whoever is woken asks for files in a pause again: without end, if a worker that finds no others woke them.
        if worked:
            self._on_idle()

    def _end(self, file: WantedFile, pause_s: float) -> None:
        """An attempt has ended; the file is tried again after a pause, if it is due then."""
        with self._lock:
            self._active.discard(file.key)
            if pause_s:
                self._retry_at_s[file.key] = self._clock.monotonic_s() + pause_s

    def _next(self) -> list[WantedFile]:
        """The most urgent file that nobody fetches now, with small ones of the same source; none ends the worker."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            if now_s < self._resume_s or self._stopped:
                self._workers -= 1
                return []
            # The last one comes first, since a dict gives up its last entry at no cost.
            free = (
                self._due[key]
                for key in reversed(self._due)
                if key not in self._active and now_s >= self._retry_at_s.get(key, 0.0)
            )
            if (first := next(free, None)) is None:
                self._workers -= 1
                return []
            found = self._with_others(first, free)
            for file in found:
                self._active.add(file.key)
                del self._due[file.key]
            return found

    def _with_others(self, first: WantedFile, free: Iterator[WantedFile]) -> list[WantedFile]:
        """A file with those that may come with the same request. Own files are links: a request is dearer."""
        if not first.is_small or first.key in self._alone or first.sources[0][0] == self._environment.node:
            return [first]
        others = islice(free, LOOKED_AT_MAX)
        alike = [first, *(file for file in others if file.is_like(first) and file.key not in self._alone)]
        return alike[: bundle_of([file.entry for file in alike])]

    def _stage_together(self, files: Sequence[WantedFile]) -> dict[tuple[str, str], _Staged]:
        """Bring small files with one request, by key, with those that are staged; the others are staged alone."""
        staged, file = dict[tuple[str, str], _Staged](), files[0]
        (node, key), staging = file.sources[0], file.group.store.staging_directory
        try:
            wanted = [file for file in files if file.is_wanted]
            staged |= {file.key: _Staged(file, "", verified=False) for file in wanted if file.is_staged}
            left = {file.entry.content_digest: file for file in wanted if file.key not in staged}
            source, entries = self._environment.source(node, key), [each.entry for each in left.values()]
            if entries and source is not None:
                found = source.stage_together(entries, staging, self._rate_of(file))
                staged |= {left[digest].key: _Staged(left[digest], node, verified=True) for digest in found}
        except Exception as error:
            # Whatever went wrong: staged alone, each file that fails shows its own reason.
            _log.debug("files not staged together", group=file.group.name, files=len(files), error=repr(error))
        return staged

    def _put_back(self, files: Sequence[WantedFile], together: Collection[tuple[str, str]]) -> list[WantedFile]:
        """The files that came together, and the first that did not: the others are due again, each alone."""
        left = [file for file in files if file.key not in together]
        with self._lock:
            for file in reversed(left[1:]):
                self._alone.add(file.key)
                self._active.discard(file.key)
                self._due[file.key] = file
        return [file for file in files if file not in left[1:]]

    def _attempt(self, file: WantedFile, together: _Staged | None) -> _Staged | float:
        """Fetch one file, unless it came with others, to be attached; or the seconds to wait before it is tried again.

        0 if it is not due any more.
        """
        if file.ahead:
            self._copy_ahead(file, together)
            return 0.0
        try:
            return (together or _Staged(file, *self._stage(file))) if file.is_wanted else 0.0
        except TransferStopped:
            return RETRY_S
        except StoreFull as error:
            self._pause_for_disk(error)
        except HeadraceError as error:
            self._note(file, error)
        return RETRY_S

    def _copy_ahead(self, file: WantedFile, together: _Staged | None) -> None:
        """Stage a file that is not due yet. One that fails is fetched when it is."""
        try:
            if file.is_wanted and (together.verified if together else self._stage(file)[1]):
                file.group.store.note_verified(file.entry.content_digest)
                file.group.store.prepare(file.entry)
        except StoreFull as error:
            # What is due needs the space: nothing more is copied ahead for this change.
            _log.warning("no files are copied ahead", group=file.group.name, error=error.message)
            with self._lock:
                self._ahead_full = True
                self._due = {key: due for key, due in self._due.items() if not due.ahead}
        except (HeadraceError, TransferStopped) as error:
            _log.debug("file not copied ahead", group=file.group.name, file=file.entry.name, error=str(error))
        finally:
            # Whatever went wrong: one that counted as left would hold up the change.
            with self._lock:
                self._ahead.add(file.key)

    def _attach(self, staged: Sequence[_Staged]) -> None:
        """Attach files of one group, with those that others fetch meanwhile; or leave it to the worker that is about it."""
        group = staged[0].file.group
        with self._lock:
            self._staged.setdefault(group, {}).update({each.file.entry.content_digest: each for each in staged})
            if group in self._attaching:
                return
            self._attaching.add(group)
        while batch := self._take_staged(group):
            try:
                pauses = self._attach_together(group, batch)
            except Exception:
                _log.exception("attaching files failed", group=group.name, files=len(batch))
                pauses = dict.fromkeys(batch, RETRY_S)
            for digest, each in batch.items():
                self._end(each.file, pauses.get(digest, 0.0))

    def _take_staged(self, group: Group) -> dict[str, _Staged]:
        """What was staged meanwhile; nothing ends the attaching."""
        with self._lock:
            if not (batch := self._staged.pop(group, {})):
                self._attaching.discard(group)
            return batch

    def _attach_together(self, group: Group, batch: Mapping[str, _Staged]) -> dict[str, float]:
        """Attach files with one commit; the pause before another attempt, for those that need one."""
        pauses: dict[str, float] = {}
        verified = {digest for digest, each in batch.items() if each.verified}
        try:
            self.files += group.store.attach(*batch, verified=verified)
        except StagedFileInvalid as error:
            for digest in error.digests:
                self._distrust(batch[digest].file, batch[digest].sender, error)
                pauses[digest] = RETRY_S
            self.files += len(batch) - len(pauses)
        except StoreFull as error:
            self._pause_for_disk(error)
            return dict.fromkeys(batch, RETRY_S)
        except HeadraceError as error:
            self._note(next(iter(batch.values())).file, error)
            return dict.fromkeys(batch, RETRY_S)
        self.disk_fault = ""
        if not pauses:
            self._faults.pop(next(iter(batch.values())).file.topic, None)
        return pauses

    def _stage(self, file: WantedFile) -> tuple[str, bool]:
        """Bring a file from the first copy that gives it.

        Returns its node, empty when it was staged already, and whether its bytes were verified and synced. Raises
        NoSource, StoreFull, StoreUnwritable, TransferStopped.
        """
        staging, refusals, gone, merged = file.group.store.staging_directory, list[str](), set[str](), set[str]()
        if file.is_staged:
            return "", False
        now_s = self._clock.monotonic_s()
        for node, key in file.sources:
            if now_s < self._distrusted_until_s.get((file.entry.content_digest, node), 0.0):
                refusals.append(f"{node} has sent wrong bytes")
                continue
            if (source := self._environment.source(node, key)) is None:
                refusals.append(f"{node} is not online")
                continue
            try:
                loaded = file.entry.loaded_version if key == file.group.birth_key else 0
                return node, source.stage(file.entry, staging, self._rate_of(file), loaded)
            except SourceCorrupt as error:
                self._distrust(file, node, error)
                refusals.append(error.message)
            except (SourceFailed, CutRefused) as error:
                refusals.append(error.message)
                kind = error.kind if isinstance(error, CutRefused) else ""
                if kind in (FileGone.__name__, FileMerged.__name__):
                    (merged if kind == FileMerged.__name__ else gone).add(node)
                if self._expects_own(file, node, now_s):
                    break
        self._note_gone(file, gone, merged, now_s)
        raise NoSource(f"file {file.entry.name}: {'; '.join(refusals) or 'no node has it'}", retriable=True)

    def _rate_of(self, file: WantedFile) -> PullRate | YieldingRate:
        return YieldingRate(self._rate, self._busy_share) if file.yields else self._rate

    def _note_gone(self, file: WantedFile, gone: set[str], merged: set[str], now_s: float) -> None:
        """Members that have merged a file have its rows, and no record brings these to a member that awaits it."""
        # So it is for a member that reads the log from its beginning, long after the donors have released the file.
        if file.has_donors or not gone | merged:
            self._gone_since_s.pop(file.key, None)
        # A member that has loaded the file knows; one that has not may only be behind, so its answer must last.
        elif merged or now_s - self._gone_since_s.setdefault(file.key, now_s) >= GONE_S:
            self._gone_since_s.pop(file.key, None)
            why = f"it awaits {file.entry.name}, which other members have merged or dropped"
            self._environment.replace_data(file.topic, why, frozenset(merged or gone))

    def _expects_own(self, file: WantedFile, node: str, now_s: float) -> bool:
        """Whether the file will be a link: this node's own copy of the donor has not come so far yet."""
        if node != self._environment.node:
            return False
        since_s = self._expected_since_s.setdefault(file.key, now_s)
        return now_s - since_s < OWN_WAIT_S

    def _distrust(self, file: WantedFile, node: str, error: HeadraceError) -> None:
        if node:
            self._distrusted_until_s[file.entry.content_digest, node] = self._clock.monotonic_s() + DISTRUST_S
        self._note(file, error)

    def _note(self, file: WantedFile, error: HeadraceError) -> None:
        self.errors += 1
        now_s = self._clock.monotonic_s()
        since_s, _ = self._faults.get(file.topic, (now_s, ""))
        self._faults[file.topic] = since_s, error.message
        # There may be thousands of files, each of which is tried every second.
        if now_s - self._logged_s.get(file.topic, -LOG_INTERVAL_S) >= LOG_INTERVAL_S:
            self._logged_s[file.topic] = now_s
            # Whoever has a file may be behind for a moment.
            log = _log.info if error.retriable and now_s - since_s < PATIENCE_S else _log.warning
            log("file not fetched", group=file.group.name, file=file.entry.name, error=error.message)

    def _pause_for_disk(self, error: StoreFull) -> None:
        self.errors += 1
        if not self.disk_fault:
            _log.error("pulling waits for space on the disk", error=error.message)
        self.disk_fault = f"the disk is full: {error.message}"
        with self._lock:
            self._resume_s = self._clock.monotonic_s() + RETRY_S
