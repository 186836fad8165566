"""Which files are copied ahead: those that groups of a running first phase have, of the slots that they will give.

A slot leaves with everything that its group has, and queries of it wait for all that is not here. So the new holder
fetches in the first phase what is in files by then, and after the cut only what was sealed since. It is no condition
of anything: nothing names these files until a load does, a cancelled change removes them, and one that was merged or
failed meanwhile is fetched, or not, like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

import structlog

from headrace.consumers.membership.running_change import RunningChange
from headrace.consumers.migration.copies_ahead import CopyNote
from headrace.consumers.migration.file_puller import FilePuller
from headrace.consumers.migration.pull_environment import PullEnvironment
from headrace.consumers.migration.slot_pull import Pair, donors_of, moved_pairs
from headrace.consumers.migration.wanted_file import WantedFile
from headrace.consumers.store import SegmentEntry, awaited_entry
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.messages import Load

LIST_EVERY_S = 1.0
"""Between two lists of one donor: its group seals in the first phase, and files join."""
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Ahead:
    """One pair: the nodes to ask, the request under way, and the files that they have, by content."""

    pair: Pair
    donors: tuple[str, ...]
    asked: Future[tuple[Load, ...] | None] | None = None
    ask_at_s: float = 0.0
    files: dict[bytes, SegmentEntry] = field(default_factory=dict)
    left: int = 0
    left_bytes: int = 0
    is_listed: bool = False


class EarlyCopies:
    """Owned by the puller's thread."""

    def __init__(
        self, environment: PullEnvironment, files: FilePuller, pool: Executor, wake: Callable[[], None]
    ) -> None:
        """`pool` runs the requests, after each of which `wake` is called."""
        self._environment = environment
        self._files = files
        self._pool = pool
        self._wake = wake
        self._number = 0
        self._pairs: list[_Ahead] = []

    def turn(self, change: RunningChange | None, now_s: float) -> None:
        """Follow the change, and ask the donors for their files."""
        number = change.number if change is not None and not change.formal else 0
        if number != self._number:
            self._number, self._pairs = number, self._begin(change) if change is not None and number else []
            self._files.begin_ahead(change.number if change is not None else 0)
        for each in self._pairs:
            self._take(each, now_s)
            if each.asked is None and now_s >= each.ask_at_s and self._group_is_here(each):
                each.asked = self._pool.submit(self._ask, each, change.table.slots if change is not None else 0)
                each.asked.add_done_callback(lambda _: self._wake())

    def wanted(self) -> list[WantedFile]:
        """The files to copy now, the newest rows first: merges concern these least."""
        found: list[WantedFile] = []
        for each in self._pairs:
            topic = self._environment.topic(each.pair.target)
            group = self._environment.groups.get(topic)
            if group is None:
                continue
            sources = tuple((node, each.pair.donor) for node in each.donors)
            entries = each.files.values()
            left = [entry for entry in entries if not self._files.was_tried_ahead(topic, entry.content_digest)]
            each.left, each.left_bytes = len(left), sum(entry.size_bytes for entry in left)
            found += (WantedFile(topic, group, entry, sources, ahead=True, yields=True) for entry in left)
        return sorted(found, key=lambda file: -file.entry.max_time_ns)

    @property
    def progress(self) -> tuple[int, int]:
        """(bytes that were copied, bytes of all files), zeros while nothing is copied ahead."""
        total = sum(entry.size_bytes for each in self._pairs for entry in each.files.values())
        return total - sum(each.left_bytes for each in self._pairs), total

    def _begin(self, change: RunningChange) -> list[_Ahead]:
        node = self._environment.node
        pairs = ((pair, donors_of(change, pair, node)) for pair in moved_pairs(change, node))
        # A node that is a member of both groups links what it has.
        return [_Ahead(pair, donors) for pair, donors in pairs if node not in donors]

    def _group_is_here(self, ahead: _Ahead) -> bool:
        return self._environment.topic(ahead.pair.target) in self._environment.groups

    def _ask(self, ahead: _Ahead, slots_total: int) -> tuple[Load, ...] | None:
        """The files of the first donor that answers, None if nobody does. Each donor may be the leader."""
        sources = [self._environment.source(node, ahead.pair.donor) for node in ahead.donors]
        # Before the first list something is left, whatever it is.
        note = CopyNote(self._number, self._environment.node, ahead.left + (not ahead.is_listed))
        found: tuple[Load, ...] | None = None
        for source in filter(None, sources):
            try:
                source.note(note)
                found = source.present(ahead.pair, slots_total) if found is None else found
            except HeadraceError as error:
                _log.debug("files not listed ahead", node=source.name, error=error.message)
        ahead.is_listed = ahead.is_listed or found is not None
        return found

    def _take(self, ahead: _Ahead, now_s: float) -> None:
        asked = ahead.asked
        if asked is None or not asked.done():
            return
        ahead.asked, ahead.ask_at_s = None, now_s + LIST_EVERY_S
        try:
            loads = asked.result()
        except Exception:
            _log.exception("list of files failed", donor=ahead.pair.donor.group)
            return
        if loads is not None:
            known = ahead.files
            # An entry costs more than a look at it, and most files were in the list before.
            ahead.files = {
                load.content_digest: known.get(load.content_digest) or awaited_entry(0, load) for load in loads
            }


def keeps_staged(change: RunningChange | None, key: GroupKey) -> bool:
    """Whether files may be staged for a group that no record names yet."""
    if change is None or key.group not in change.gained:
        return False
    return change.table.birth(key.group) == key.birth
