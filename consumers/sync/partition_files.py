"""The files of one partition at the receiver that holds it: what each record does, and how far to commit. Pure.

A manifest and its chunks are in partitions of one number. The two are read at their own pace: a chunk of a manifest
that is not known waits until the manifests were read as far as they went when the chunk was there. A sender appends
the chunks behind its manifest, so a chunk that is unknown by then has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.consumers.sync.chunk_states import STEPS, ChunkAction, ChunkEvent, FileState
from headrace.schemas.sync_records import SyncChunk, SyncFile, SyncManifest

SILENCE_GROWTH = 2.0
SILENCE_S_MAX = 600.0
FileKey = tuple[str, int]
"""(sender, number of the manifest)."""
FileName = tuple[str, str]
"""(sender, the file or the group of deletes)."""


@dataclass(slots=True)
class OpenFile:
    """A manifest without a verdict. `chunks_from` is the offset of its first chunk, None until that arrives."""

    manifest: SyncManifest
    offset: int
    state: FileState = FileState.EXPECTED
    next_chunk: int = 0
    session: int = 0
    chunks_from: int | None = None
    heard_s: float = 0.0
    silence_s: float = 0.0

    @property
    def key(self) -> FileKey:
        """What names it."""
        return self.manifest.sender, self.manifest.number

    @property
    def name(self) -> str:
        """The file, or the group of deletes, at its sender."""
        body = self.manifest.body
        return body.file if isinstance(body, SyncFile) else body.group

    @property
    def group(self) -> str:
        """`group/birth` of it at its sender."""
        # A file is group/birth/name.
        return "/".join(self.name.split("/", 2)[:2])

    @property
    def received_bytes(self) -> int:
        """Bytes that are here."""
        body = self.manifest.body
        if not isinstance(body, SyncFile):
            return 0
        return min(self.next_chunk * body.chunk_bytes, body.segment_bytes + body.series_bytes)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with a record: the file that it is about, the action, and the chunk to ask for again."""

    file: OpenFile | None
    action: ChunkAction
    complete: bool = False
    superseded: tuple[OpenFile, ...] = ()


_NOTHING = Decision(None, ChunkAction.NOTHING)


def _supersedes(newer: OpenFile, older: OpenFile) -> bool:
    if newer.manifest.sender != older.manifest.sender or older.manifest.number >= newer.manifest.number:
        return False
    is_fence = not isinstance(newer.manifest.body, SyncFile)
    return newer.name == older.name or (is_fence and newer.name == older.group)


@dataclass(slots=True)
class PartitionFiles:
    """All open files of one partition. Changed record by record; all of it may be lost, and is read again."""

    resend_s: float
    files: dict[FileKey, OpenFile] = field(default_factory=dict)
    newest: dict[FileName, int] = field(default_factory=dict)
    """The newest manifests: of the open files, and of decided ones until they are released."""

    def take_manifest(self, offset: int, manifest: SyncManifest, now_s: float) -> Decision:
        """A manifest comes: COMPLETE at once if it has no chunks, and those that it supersedes end.

        These are older ones of the same file. Deletes also make the older files of their group void: such a file does
        not bring them along, and would undo them if it were loaded behind them.
        """
        file = OpenFile(manifest, offset, session=manifest.session, heard_s=now_s, silence_s=self.resend_s)
        known = self.files.get(file.key)
        if known is not None:
            # Announced again by a sender that has started again: what is here is kept.
            known.session = max(known.session, manifest.session)
            return _NOTHING
        if manifest.number <= max(self.newest.get((manifest.sender, name), 0) for name in (file.name, file.group)):
            return _NOTHING
        self.newest[manifest.sender, file.name] = manifest.number
        older = tuple(each for each in self.files.values() if _supersedes(file, each))
        for each in older:
            self._step(each, ChunkEvent.DECIDE)
            del self.files[each.key]
            # The manifest that supersedes them is newer.
            self.release(each)
        self.files[file.key] = file
        if not isinstance(manifest.body, SyncFile):
            file.state = FileState.COMPLETE
        return Decision(file, ChunkAction.NOTHING, file.state is FileState.COMPLETE, older)

    def knows(self, chunk: SyncChunk) -> bool:
        """Whether the manifest of a chunk is open here."""
        return (chunk.sender, chunk.number) in self.files

    def take_chunk(self, offset: int, chunk: SyncChunk, now_s: float) -> Decision:
        """A chunk comes. One without an open manifest is nothing."""
        file = self.files.get((chunk.sender, chunk.number))
        if file is None:
            return _NOTHING
        event = self._event(file, chunk)
        if event is not ChunkEvent.KNOWN:
            file.heard_s, file.silence_s = now_s, self.resend_s
        before = file.state
        action = self._step(file, event)
        if action is ChunkAction.WRITE:
            file.next_chunk += 1
            # What a receiver has written is not kept: the next one begins with the first chunk.
            file.chunks_from = offset if file.chunks_from is None or chunk.chunk == 0 else file.chunks_from
        complete = file.state is FileState.COMPLETE is not before
        return Decision(file, action, complete)

    def silent(self, now_s: float) -> Iterator[OpenFile]:
        """Files whose chunks do not come although the partition was read to its end: they are asked for again."""
        for file in self.files.values():
            if now_s - file.heard_s < file.silence_s:
                continue
            if self._step(file, ChunkEvent.SILENCE) is ChunkAction.RESEND:
                # A sender that is away for days reads one answer, and not thousands.
                file.heard_s, file.silence_s = now_s, min(SILENCE_S_MAX, file.silence_s * SILENCE_GROWTH)
                yield file

    def undo(self, file: OpenFile, state: FileState, chunks_from: int | None) -> None:
        """The newest chunk could not be written: it will be read again."""
        file.state, file.next_chunk, file.chunks_from = state, file.next_chunk - 1, chunks_from

    def decide(self, key: FileKey) -> None:
        """A file has its verdict."""
        file = self.files.pop(key, None)
        if file is not None:
            self._step(file, ChunkEvent.DECIDE)

    def release(self, file: OpenFile) -> None:
        """Older manifests of a file are known elsewhere: a name would be kept for each file that ever came."""
        name = file.manifest.sender, file.name
        if self.newest.get(name) == file.manifest.number:
            del self.newest[name]

    def manifests_from(self, position: int) -> int:
        """The offset to commit for the manifests, which are read up to a position."""
        return min((file.offset for file in self.files.values()), default=position)

    def chunks_from(self, position: int) -> int:
        """The offset to commit for the chunks, which are read up to a position."""
        begun = (file.chunks_from for file in self.files.values() if file.chunks_from is not None)
        return min(begun, default=position)

    def _step(self, file: OpenFile, event: ChunkEvent) -> ChunkAction:
        file.state, action = STEPS[file.state][event]
        return action

    def _event(self, file: OpenFile, chunk: SyncChunk) -> ChunkEvent:
        body = file.manifest.body
        if not isinstance(body, SyncFile) or chunk.session < file.session:
            return ChunkEvent.KNOWN
        file.session = chunk.session
        if chunk.chunk < file.next_chunk:
            return ChunkEvent.KNOWN
        last = body.chunks - 1
        left = body.segment_bytes + body.series_bytes - chunk.chunk * body.chunk_bytes
        if chunk.chunk > last or len(chunk.data) != min(body.chunk_bytes, left):
            return ChunkEvent.MISFIT
        if chunk.chunk > file.next_chunk:
            return ChunkEvent.AHEAD
        return ChunkEvent.LAST if chunk.chunk == last else ChunkEvent.NEXT
