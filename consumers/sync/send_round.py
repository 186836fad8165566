"""One round of a sender: what to send next, and what each answer changes. Pure: values in, actions out.

Deletes go first, and files wait until those of all groups are accepted. Of each file one chunk at a time is under way,
so a cut link costs at most that one. docs/internals/sync.md has the schedules that these rules answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.consumers.sync.file_states import FileEvent, FileRecord, FileState
from headrace.consumers.sync.listing import ListedFile, Listing
from headrace.consumers.sync.rate import ByteRate
from headrace.consumers.sync.round_parts import GroupDeletes, ListedGroup, UnderWay
from headrace.consumers.sync.selection import (
    SettledOrders,
    body_digest,
    decided_up_to,
    deletes_digest,
    file_body,
    merged_order,
    undecided_files,
    unsent_deletes,
)
from headrace.consumers.sync.send_settings import CHUNK_BYTES, SendSettings
from headrace.consumers.sync.sender_state import SenderState
from headrace.consumers.sync.verdicts import apply_deletes_verdict, apply_verdict, check_verdict
from headrace.schemas.sync_records import SyncDeletes, SyncFile, SyncVerdict, Verdict

ANNOUNCE_AGAIN_S = 3_600.0
"""A manifest without a verdict is sent again: Kafka may have dropped it while no receiver ran."""
IN_MIDDLE_MAX = 16
"""Files that are sent at a time: over a slow line more of them would only end later. Others wait for verdicts."""
DELETES_KEPT_REASON = "deletes of its store are not accepted yet"


@dataclass(frozen=True, slots=True)
class SendManifest:
    """Send the manifest of a file, or of deletes, under a number."""

    number: int
    body: SyncFile | SyncDeletes
    file: ListedFile | None = None


@dataclass(frozen=True, slots=True)
class SendChunk:
    """Send one chunk of a file under a number."""

    number: int
    chunk: int
    size_bytes: int
    file: ListedFile


@dataclass(frozen=True, slots=True)
class CheckFile:
    """Compare a file with its digests, and call `checked` or `unreadable` before the next action is taken."""

    file: ListedFile


Action = CheckFile | SendManifest | SendChunk


@dataclass(slots=True)
class RoundCounts:
    """What a round has done, in files, bytes and chunks; deletes that were rejected count as one file each."""

    accepted: int = 0
    rejected: int = 0
    bytes: int = 0
    chunks_sent: int = 0
    chunks_resent: int = 0


class SendRound:
    """Owned by one thread."""

    def __init__(
        self, state: SenderState, listings: Sequence[Listing], settings: SendSettings, counts: RoundCounts
    ) -> None:
        """`state` is changed by every call; its owner writes the changes before it carries out the next actions."""
        self._state = state
        self._settings = settings
        self._rate = ByteRate(settings.rate_limit_bytes)
        self.counts = counts
        self._groups: dict[str, ListedGroup] = {}
        self._groups_by_file: dict[str, str] = {}
        self._waiting: deque[tuple[str, ListedFile]] = deque()
        self._under_way: dict[int, UnderWay] = {}
        self._held: dict[str, ListedFile] = {}
        self._bytes_under_way = 0
        self.relist = False
        found: list[tuple[str, ListedFile]] = []
        for listing in listings:
            group = ListedGroup(listing, GroupDeletes(deque(unsent_deletes(listing, state.group(listing.group)))))
            self._groups[listing.identity] = group
            for each in listing.files:
                self._complete_record(listing, each)
            if not listing.files_left and listing.after <= state.group(listing.group).progress:
                names = {each.body.file for each in listing.files}
                state.forget_unlisted(listing.identity, names, listing.after, listing.through)
            for each in undecided_files(listing, state.files, state.group(listing.group)):
                group.files[each.body.file] = each
                self._groups_by_file[each.body.file] = listing.identity
                self._know(listing, each)
                found.append((listing.identity, each))
            group.settled = SettledOrders(group.files.values())
        self._waiting.extend(merged_order(found))

    def _complete_record(self, listing: Listing, listed: ListedFile) -> None:
        """Where a verdict alone is known of a file, the listing has the rest."""
        known = self._state.files.get(listed.body.file)
        if known is not None and known.version != listed.version:
            self._state.put_file(replace(known, group=listing.group, version=listed.version))

    def _know(self, listing: Listing, listed: ListedFile) -> None:
        """The record of a file as a round begins with it."""
        body, known = listed.body, self._state.files.get(listed.body.file)
        if known is None or known.digest != body.content_digest.hex():
            size = body.segment_bytes + body.series_bytes
            digest = body.content_digest.hex()
            self._state.put_file(FileRecord(body.file, listing.group, listed.version, size, digest))
            return
        known = self._state.step(known, FileEvent.ROUND)
        if (known.tries or known.error) and not self._state.is_held(known):
            self._state.put_file(replace(known, tries=0, error=""))

    # What is left.

    @property
    def finished(self) -> bool:
        """Whether nothing is under way, and nothing can begin."""
        deletes = any(each.deletes.parts and not each.deletes.left for each in self._groups.values())
        if self.relist and not self._under_way:
            return not any(each.deletes.sent for each in self._groups.values())
        return not (self._under_way or self._waiting or deletes)

    @property
    def holds(self) -> bool:
        """Whether the centre has files whole, and waits for something that they need: none of them is under way."""
        return bool(self._held)

    @property
    def awaits_verdicts(self) -> bool:
        """Whether Kafka has all of what is under way, and the centre is to answer."""
        deletes = any(each.deletes.parts and not each.deletes.left for each in self._groups.values())
        whole = (each.announced and each.in_flight is None for each in self._under_way.values())
        return bool(self._under_way) and not (deletes or self._in_middle) and all(whole)

    @property
    def files(self) -> list[FileRecord]:
        """The files of this round."""
        return [
            self._state.files[name]
            for group in self._groups.values()
            for name in group.files
            if name in self._state.files
        ]

    def counted(self, *states: FileState) -> int:
        """How many files of the round are in some states."""
        return sum(each.state in states for each in self.files)

    def bytes_left(self) -> int:
        """Bytes of files without a verdict that Kafka has not confirmed."""
        left = (each for each in self.files if not each.decided)
        return sum(max(0, each.size_bytes - each.chunk * CHUNK_BYTES) for each in left)

    def raisable(self) -> dict[str, int]:
        """For each group the version up to which everything is decided, where that is above its progress."""
        found = {}
        for group in self._groups.values():
            known = self._state.group(group.listing.group)
            version = decided_up_to(group.listing, self._state.files, known)
            if version > known.progress:
                found[group.listing.group] = version
        return found

    @property
    def deletes_left(self) -> bool:
        """Whether deletes were left for the next round: until they are accepted no file may be sent."""
        return any(each.deletes.left for each in self._groups.values())

    @property
    def complete(self) -> bool:
        """Whether no listing has left files out."""
        return all(not each.listing.files_left for each in self._groups.values())

    # What to send.

    def actions(self, now_s: float) -> Iterator[Action]:
        """What is due. Each action is outstanding from then on, until `confirmed` or `lost`."""
        self._forget_held(now_s)
        yield from self._due_deletes(now_s)
        yield from self._due_chunks(now_s)
        while (listed := self._next_file()) is not None:
            yield CheckFile(listed)
            yield from self._due_chunks(now_s)

    def _forget_held(self, now_s: float) -> None:
        """After an hour files that are held begin again, as those without a verdict are announced again."""
        state = self._state
        if not state.held:
            state.held_until_s = now_s + ANNOUNCE_AGAIN_S
        elif now_s >= state.held_until_s:
            state.held.clear()
            self._waiting.extend((self._groups_by_file[file], listed) for file, listed in self._held.items())
            self._held.clear()

    def _due_deletes(self, now_s: float) -> Iterator[Action]:
        for identity, group in self._groups.items():
            deletes = group.deletes
            waiting = deletes.sent and now_s - deletes.sent_s < ANNOUNCE_AGAIN_S
            if deletes.done or deletes.left or waiting or self.relist:
                continue
            if not deletes.number:
                deletes.number = self._number_of_deletes(group)
            deletes.sent, deletes.sent_s = True, now_s
            yield SendManifest(deletes.number, SyncDeletes(identity, deletes.parts[0]))

    def _number_of_deletes(self, group: ListedGroup) -> int:
        part, known = group.deletes.parts[0], self._state.group(group.listing.group)
        digest = deletes_digest(part)
        if known.deletes_body == digest:
            return known.deletes_number
        number = self._state.new_number()
        sent = replace(known, deletes_number=number, deletes_sent=part[-1].version, deletes_body=digest)
        # Durable before it is sent: after a restart nothing below this number may be continued.
        self._state.put_group(sent, sync=True)
        return number

    def _due_chunks(self, now_s: float) -> Iterator[Action]:
        for number, each in list(self._under_way.items()):
            record = self._state.of_number(number)
            if each.in_flight is not None or record is None or number not in self._under_way:
                continue
            if now_s - each.announced_s >= ANNOUNCE_AGAIN_S and record.chunk >= record.chunks:
                each.announced = False
            if not each.announced:
                each.in_flight, each.announced_s = -1, now_s
                yield SendManifest(number, each.body, each.listed)
            elif record.chunk < record.chunks:
                size = self._chunk_bytes(record)
                if not self._rate.take(size, now_s):
                    return
                each.in_flight = record.chunk
                self.counts.chunks_sent += 1
                self.counts.chunks_resent += record.chunk < each.sent_below
                each.sent_below = max(each.sent_below, record.chunk + 1)
                yield SendChunk(number, record.chunk, size, each.listed)

    @property
    def _in_middle(self) -> int:
        """Files with chunks that Kafka has not confirmed."""
        records = (self._state.of_number(number) for number in self._under_way)
        return sum(each is not None and each.chunk < each.chunks for each in records)

    @staticmethod
    def _chunk_bytes(record: FileRecord) -> int:
        return min(CHUNK_BYTES, record.size_bytes - record.chunk * CHUNK_BYTES)

    def _next_file(self) -> ListedFile | None:
        """The next file to begin, no longer waiting; None where none may begin now."""
        if self.relist or len(self._under_way) >= self._settings.files_max or self._in_middle >= IN_MIDDLE_MAX:
            return None
        # A delete of a user is in the log of each group. That of any of them hides what the others have loaded by then.
        deletes = [each.deletes for each in self._groups.values()]
        left, done = any(each.left for each in deletes), all(each.done for each in deletes)
        while self._waiting and (done or left):
            _, listed = self._waiting[0]
            record = self._state.files[listed.body.file]
            if left or record.state not in (FileState.WAITING, FileState.SENDING):
                self._waiting.popleft()
                if left:
                    self._state.step(record, FileEvent.LEAVE, error=DELETES_KEPT_REASON)
            elif self._state.is_held(record):
                # Nothing is to be sent of it, and it takes no place from others.
                self._held[listed.body.file] = self._waiting.popleft()[1]
            elif self._under_way and self._bytes_under_way + record.size_bytes > self._settings.window_bytes:
                return None
            else:
                self._waiting.popleft()
                return listed
        return None

    # What comes back.

    def checked(self, listed: ListedFile, md5: bytes = b"") -> None:
        """A file is as the node has sealed it; `md5` is that of its segment where it is wanted."""
        group = self._group_of(listed.body.file)
        settled = group.settled.settled(listed, self._state.files, self._state.rejected)
        body = file_body(listed, md5, settled)
        digest, record = body_digest(body), self._state.files[listed.body.file]
        known = self._state.group(group.listing.group)
        # Bytes that Kafka has confirmed are continued under their number, also by another start of this sender. Not
        # those of another body, nor those that deletes have made void since.
        continued = record.state is FileState.SENDING and record.body == digest and record.number > known.deletes_number
        if not continued:
            record = self._state.step(record, FileEvent.VOID)
            number = self._state.new_number()
            record = self._state.step(record, FileEvent.BEGIN, number=number, body=digest, chunk=0, chunks=body.chunks)
        self._under_way[record.number] = UnderWay(listed, body, sent_below=record.chunk)
        self._bytes_under_way += record.size_bytes

    def unreadable(self, listed: ListedFile, error: str) -> None:
        """A file is not what the node has sealed: it is left, and shown."""
        record = self._state.files[listed.body.file]
        self._end(record.number)
        self._state.step(record, FileEvent.LEAVE, error=error)

    def snapshot_lost(self, listed: ListedFile) -> None:
        """The node has no snapshot any more: nothing begins, and the next round continues what is not complete."""
        self.relist = True
        self._end(self._state.files[listed.body.file].number)

    def confirmed(self, number: int, chunk: int) -> None:
        """Kafka has a chunk, or the manifest (chunk -1)."""
        each, record = self._under_way.get(number), self._state.of_number(number)
        if each is None or record is None:
            return
        each.in_flight = None
        if chunk < 0:
            each.announced = True
        elif chunk == record.chunk:
            self._state.step(record, FileEvent.CONFIRM, chunk=chunk + 1)

    def lost(self, number: int) -> None:
        """Nobody knows whether Kafka has what was sent under a number: it is sent once more."""
        if (each := self._under_way.get(number)) is not None:
            each.in_flight = None
        for group in self._groups.values():
            if group.deletes.number == number:
                group.deletes.sent = False

    def not_done(self, action: Action) -> None:
        """An action could not be carried out now: it is due again."""
        if isinstance(action, CheckFile):
            file = action.file.body.file
            # It may have begun before that.
            if not any(each.listed is action.file for each in self._under_way.values()):
                self._waiting.appendleft((self._groups_by_file[file], action.file))
            return
        self.lost(action.number)
        self.counts.chunks_sent -= isinstance(action, SendChunk)

    def verdict(self, verdict: SyncVerdict) -> None:
        """The centre has decided something. Raises SenderCloned."""
        if (group := self._groups.get(verdict.file)) is not None:
            check_verdict(self._state, verdict)
            self._deletes_verdict(group, verdict)
            return
        record = apply_verdict(self._state, verdict, self._settings.tries_max)
        if record is None or (record.state is FileState.SENDING and record.file not in self._held):
            known = self._state.files.get(verdict.file)
            if known is not None and self._state.is_held(known) and (held := self._end(known.number)) is not None:
                self._held[known.file] = held.listed
            return
        counts = self.counts
        counts.accepted += record.state is FileState.ACCEPTED
        counts.bytes += record.size_bytes if record.state is FileState.ACCEPTED else 0
        counts.rejected += record.state is FileState.REJECTED
        ended, listed = self._end(record.number), self._held.pop(record.file, None)
        listed = listed if ended is None else ended.listed
        if listed is not None and not (record.decided or record.state is FileState.FAILED):
            self._waiting.appendleft((self._groups_by_file[record.file], listed))

    def _deletes_verdict(self, group: ListedGroup, verdict: SyncVerdict) -> None:
        deletes = group.deletes
        if not apply_deletes_verdict(self._state, verdict) or not deletes.number:
            return
        deletes.number, deletes.sent = 0, False
        if verdict.state in (Verdict.RETRY, Verdict.RESEND):
            deletes.tries += 1
            deletes.left = deletes.tries >= self._settings.tries_max
            return
        self.counts.rejected += verdict.state is Verdict.REJECTED
        deletes.tries = 0
        deletes.parts.popleft()

    def _end(self, number: int) -> UnderWay | None:
        ended = self._under_way.pop(number, None)
        if ended is not None:
            body = ended.body
            self._bytes_under_way -= body.segment_bytes + body.series_bytes
        return ended

    def _group_of(self, file: str) -> ListedGroup:
        return self._groups[self._groups_by_file[file]]
