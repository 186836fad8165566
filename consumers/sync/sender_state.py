"""What a sender remembers between its starts: files, deletes, progress and counters, as records of a log. Pure.

Every change is noted and taken by whoever writes the log, before anything that relies on it is sent.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from headrace.consumers.sync.file_states import FileEvent, FileRecord, FileState
from headrace.consumers.sync.send_settings import REJECTED_KEPT_MAX

NUMBERS_RESERVED = 1_000
DELETES_REJECTED = "deletes up to version"
_COUNTERS = b"counters"
_FILE, _GROUP = b"f/", b"g/"


@dataclass(frozen=True, slots=True)
class Counters:
    """`session` counts the starts. Numbers below `reserved` may have been given; `verdict_offset` is the next to read.

    `accepted` and `rejected` count files, with those that are forgotten, and none twice for being sent again.
    """

    session: int = 0
    reserved: int = 1
    verdict_offset: int = 0
    accepted: int = 0
    rejected: int = 0
    bytes_accepted: int = 0


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One group of the edge: its progress, and the version up to which its deletes are accepted.

    `deletes_number` is the newest number under which deletes were sent: it voids every file of a lower one. They reach
    up to version `deletes_sent`, and `deletes_body` is a digest of them while they have no verdict.
    """

    group: str
    progress: int = 0
    deletes_accepted: int = 0
    deletes_number: int = 0
    deletes_sent: int = 0
    deletes_body: str = ""
    error: str = ""

    @property
    def rejection(self) -> str:
        """Why deletes of it were rejected, "" if none were."""
        return self.error if self.error.startswith(DELETES_REJECTED) else ""


@dataclass(frozen=True, slots=True)
class Changes:
    """Records to write, None for those to delete. `sync`: durable before anything else happens."""

    records: Mapping[bytes, bytes | None]
    sync: bool


class SenderState:
    """Owned by one thread."""

    def __init__(self, records: Mapping[bytes, bytes]) -> None:
        """What the log has."""
        self.counters = Counters(**json.loads(records[_COUNTERS])) if _COUNTERS in records else Counters()
        self.files = {
            each.file: each for key, value in records.items() if key.startswith(_FILE) for each in [_file(value)]
        }
        groups = (_group(value) for key, value in records.items() if key.startswith(_GROUP))
        self.groups = {each.group: each for each in groups}
        # Those that a former start may have given are skipped: a number names one manifest for ever.
        self._next = self.counters.reserved
        self._changed: dict[bytes, bytes | None] = {}
        self._sync = False
        self._by_number = {each.number: each.file for each in self.files.values() if each.number}
        self.held: set[int] = set()
        """Numbers of files that the centre has whole, see `is_held`. Not kept: it names them again, now and then."""
        self.held_until_s = 0.0
        self.rejected: Counter[str] = Counter()
        """Rejected files by the directory of their names; only those that have any."""
        for each in self.files.values():
            self._count_rejected(each, 1)

    def begin_session(self) -> None:
        """A start of the sender."""
        self._put_counters(replace(self.counters, session=self.counters.session + 1), sync=True)

    def new_number(self) -> int:
        """A number that was never given before. Durable before it is used, a thousand at a time."""
        if self._next >= self.counters.reserved:
            self._put_counters(replace(self.counters, reserved=self._next + NUMBERS_RESERVED), sync=True)
        self._next += 1
        return self._next - 1

    def was_given(self, number: int) -> bool:
        """Whether a number may be one of this state directory."""
        return number < max(self._next, self.counters.reserved)

    def group(self, group: str) -> GroupRecord:
        """What is known of a group."""
        return self.groups.get(group, GroupRecord(group))

    def put_group(self, record: GroupRecord, *, sync: bool = False) -> None:
        """Remember a group."""
        self.groups[record.group] = record
        self._note(_GROUP + record.group.encode(), json.dumps(asdict(record)).encode(), sync)

    def of_number(self, number: int) -> FileRecord | None:
        """The file that is under way under a number."""
        found = self.files.get(self._by_number.get(number, ""))
        return found if found is not None and found.number == number else None

    def is_held(self, record: FileRecord) -> bool:
        """Whether the centre has all of a file, and waits for what it needs to load it."""
        # Deletes that came since have made it void: nobody waits with it any more.
        is_void = record.number <= self.group(record.group).deletes_number
        return record.is_whole and record.number in self.held and not is_void

    def put_file(self, record: FileRecord) -> None:
        """Remember a file. Not synced: what a power cut takes back is read, or sent, once more."""
        before = self.files.get(record.file)
        if before is not None and before.number != record.number:
            self._by_number.pop(before.number, None)
        if record.number:
            self._by_number[record.number] = record.file
        if before is not None:
            self._count_rejected(before, -1)
        self._count_rejected(record, 1)
        self.files[record.file] = record
        self._note(_FILE + record.file.encode(), json.dumps(asdict(record)).encode(), False)
        self._count(before, record)

    def step(self, record: FileRecord, event: FileEvent, **changes: Any) -> FileRecord:
        """The record after an event, remembered; the same one when the event has no effect."""
        found = record.after(event, **changes)
        if found is None:
            return record
        self.put_file(found)
        return found

    def _count(self, before: FileRecord | None, record: FileRecord) -> None:
        if before is not None and before.state is record.state:
            return
        if before is not None and before.decided:
            self._add(before, -1)
        if record.decided:
            self._add(record, 1)

    def _add(self, record: FileRecord, change: int) -> None:
        """Count a file that is decided, or no longer is."""
        found = self.counters
        if record.state is FileState.REJECTED:
            self._put_counters(replace(found, rejected=found.rejected + change))
        else:
            size = found.bytes_accepted + change * record.size_bytes
            self._put_counters(replace(found, accepted=found.accepted + change, bytes_accepted=size))

    def forget_decided(self) -> None:
        """Forget files that no node lists any more, between rounds; the newest rejected ones are kept for people."""
        listed_no_more = [each for each in self.files.values() if each.version <= self.group(each.group).progress]
        rejected = [each for each in listed_no_more if each.state is FileState.REJECTED]
        accepted = [each for each in listed_no_more if each.state is FileState.ACCEPTED]
        oldest = sorted(rejected, key=lambda each: each.number)[:-REJECTED_KEPT_MAX]
        for each in (*accepted, *oldest):
            self.drop_file(each.file)

    def forget_unlisted(self, identity: str, listed: Collection[str], after: int, through: int) -> None:
        """Forget files of a group that nobody will list, behind a whole listing of what came above a version.

        The edge may have merged one that is to come again. And of some a verdict alone is known: it came twice, and
        the file was forgotten when it had counted.
        """
        for each in list(self.files.values()):
            if each.file in listed or not each.file.startswith(f"{identity}/"):
                continue
            if not each.group:
                self._add(each, -1)
                self.drop_file(each.file)
            elif after < each.version <= through and not each.decided:
                self.drop_file(each.file)

    def drop_file(self, file: str) -> None:
        """Forget a file: its rows are decided, and nobody lists it any more."""
        record = self.files.pop(file, None)
        if record is not None:
            self._by_number.pop(record.number, None)
            self._count_rejected(record, -1)
            self._note(_FILE + file.encode(), None, False)

    def _count_rejected(self, record: FileRecord, change: int) -> None:
        if record.state is FileState.REJECTED:
            directory = record.file.rpartition("/")[0]
            self.rejected[directory] += change
            if not self.rejected[directory]:
                del self.rejected[directory]

    def read_verdicts(self, offset: int) -> None:
        """Verdicts below an offset are in the state."""
        if offset != self.counters.verdict_offset:
            self._put_counters(replace(self.counters, verdict_offset=offset))

    def ask_again(self, files: Iterable[str] | None) -> list[str]:
        """Send files again that an operator names, None for all: the progress of their groups falls below them.

        Returns the names that are not known.
        """
        wanted = list(self.files) if files is None else list(files)
        lowest: dict[str, int] = {} if files is not None else dict.fromkeys(self.groups, 1)
        unknown = [file for file in wanted if file not in self.files]
        for file in wanted:
            if (record := self.files.get(file)) is not None:
                self.step(record, FileEvent.AGAIN, tries=0, error="", chunk=0, number=0)
                lowest[record.group] = min(record.version, lowest.get(record.group, record.version))
        if files is None:
            # Those that were forgotten are new when they are listed, and count then.
            self._put_counters(replace(self.counters, accepted=0, rejected=0, bytes_accepted=0))
        for group, version in lowest.items():
            known = self.group(group)
            error = known.error if files is not None else ""
            progress = min(known.progress, version - 1)
            self.put_group(replace(known, progress=progress, error=error), sync=True)
        return unknown

    def rejections(self) -> list[str]:
        """What the centre has rejected and still lacks, each with the reason."""
        files = [f"{each.file}: {each.error}" for each in self.files.values() if each.state is FileState.REJECTED]
        groups = sorted(self.groups.items())
        return [*sorted(files), *(f"group {name}: {each.rejection}" for name, each in groups if each.rejection)]

    def changes(self) -> Changes:
        """What was changed since `written`."""
        return Changes(dict(self._changed), self._sync)

    def written(self) -> None:
        """The changes so far are in the log."""
        self._changed, self._sync = {}, False

    def everything(self) -> dict[bytes, bytes]:
        """All records, for a log that has lost some."""
        found = {_COUNTERS: json.dumps(asdict(self.counters)).encode()}
        found |= {_FILE + name.encode(): json.dumps(asdict(each)).encode() for name, each in self.files.items()}
        return found | {_GROUP + name.encode(): json.dumps(asdict(each)).encode() for name, each in self.groups.items()}

    def _put_counters(self, counters: Counters, *, sync: bool = False) -> None:
        self.counters = counters
        self._note(_COUNTERS, json.dumps(asdict(counters)).encode(), sync)

    def _note(self, key: bytes, value: bytes | None, sync: bool) -> None:
        self._changed[key] = value
        self._sync = self._sync or sync


def _group(value: bytes) -> GroupRecord:
    content = json.loads(value)
    # Of an earlier build: that a lower progress was to be noted, which members show themselves.
    content.pop("lower", None)
    return GroupRecord(**content)


def _file(value: bytes) -> FileRecord:
    content = json.loads(value)
    return FileRecord(**{**content, "state": FileState(content["state"])})
