"""A model of a centre: one partition, a receiver that keeps the rules of docs/internals/sync.md, and what it loads."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random

from headrace.consumers.sync.sender_ports import Confirmation
from headrace.schemas.messages import CarriedDelete
from headrace.schemas.sync_records import (
    SyncChunk,
    SyncDelete,
    SyncDeletes,
    SyncFile,
    SyncManifest,
    SyncVerdict,
    Verdict,
    decode_chunk,
    decode_manifest,
)
from tests.unit.sync.edge_model import Key


@dataclass
class Incoming:
    """A file at the receiver."""

    body: SyncFile
    data: bytearray = field(default_factory=bytearray)
    next_chunk: int = 0
    gapped: bool = False


@dataclass
class ModelCentre:
    """Kafka, receiver and store at once. See Centre for the part of the sender."""

    random: Random
    faults: bool = True
    queue: list[tuple[int, int, SyncManifest | SyncChunk]] = field(default_factory=list)
    log: list[SyncManifest | SyncChunk] = field(default_factory=list)
    read: int = 0
    verdicts: list[SyncVerdict] = field(default_factory=list)
    delivered: int = 0
    applied: list[SyncFile | SyncDelete] = field(default_factory=list)
    contents: dict[str, list[tuple[str, int, int]]] = field(default_factory=dict)
    incoming: dict[int, Incoming] = field(default_factory=dict)
    decided: set[int] = field(default_factory=set)
    bodies: dict[int, str] = field(default_factory=dict)
    known_accepted: set[str] = field(default_factory=set)
    sent_after_acceptance: list[str] = field(default_factory=list)
    rejecting: set[str] = field(default_factory=set)
    held_up: dict[int, Incoming] = field(default_factory=dict)
    full: bool = False
    """Whether the disk of the group is full: its files wait."""
    stuck: set[str] = field(default_factory=set)
    """Files that wait for a group of their own; their sender reads so."""
    deletes_order: list[int] = field(default_factory=list)

    # The sender's side, see Centre.

    def check(self) -> None:
        """See Centre."""

    def send_manifest(self, number: int, value: bytes) -> None:
        """See Centre. A number has one body for ever."""
        manifest = decode_manifest(value)
        body = manifest.body
        text = f"{body.file} {body.deletes}" if isinstance(body, SyncFile) else repr(body)
        assert self.bodies.setdefault(number, text) == text, f"number {number} was given twice"
        self._note_sending(body.file if isinstance(body, SyncFile) else "")
        self.queue.append((number, -1, manifest))

    def send_chunk(self, number: int, chunk: int, value: bytes) -> None:
        """See Centre."""
        self._note_sending(self.bodies[number].partition(" ")[0])
        self.queue.append((number, chunk, decode_chunk(value)))

    def _note_sending(self, file: str) -> None:
        if file in self.known_accepted:
            self.sent_after_acceptance.append(file)

    def events(self, _timeout_s: float) -> tuple[list[Confirmation], list[SyncVerdict], int]:
        """See Centre."""
        confirmed = []
        for _ in range(self.random.randrange(4)):
            if not self.queue:
                break
            number, chunk, record = self.queue.pop(0)
            lost = self.faults and self.random.random() < 0.05
            if not lost or self.random.random() < 0.5:
                self.log.append(record)
            confirmed.append(Confirmation(number, chunk, lost=lost))
        self.receive()
        found = self.verdicts[self.delivered :][: self.random.randrange(4)]
        self.delivered += len(found)
        self.known_accepted |= {each.file for each in found if each.state is Verdict.ACCEPTED}
        return confirmed, found, self.delivered

    def sender_dies(self) -> None:
        """Some of what its producer had reaches the log, the rest never does."""
        kept = self.random.randrange(len(self.queue) + 1)
        self.log += [record for _, _, record in self.queue[:kept]]
        self.queue = []

    # The receiver.

    def receive(self) -> None:
        """Read some records."""
        if self.faults and self.random.random() < 0.03:
            # A rebalance: what is on the disk is gone, and undecided files are read again.
            self.incoming, self.read = {}, 0
        for _ in range(self.random.randrange(6)):
            if self.read >= len(self.log):
                return
            record = self.log[self.read]
            self.read += 1
            if isinstance(record, SyncChunk):
                self._chunk(record)
            elif record.number not in self.decided:
                self._manifest(record)

    def _manifest(self, manifest: SyncManifest) -> None:
        if isinstance(manifest.body, SyncDeletes):
            # Whatever was sent before them, and is not decided, does not bring them along: it is void.
            self.decided |= {number for number in self.bodies if number < manifest.number and number in self.incoming}
            self.incoming = {number: each for number, each in self.incoming.items() if number > manifest.number}
            self.applied += manifest.body.deletes
            self.deletes_order += [each.version for each in manifest.body.deletes]
            self._decide(manifest, manifest.body.group, b"", Verdict.ACCEPTED)
            return
        older = [n for n, each in self.incoming.items() if each.body.file == manifest.body.file and n < manifest.number]
        for number in older:
            del self.incoming[number]
            self.decided.add(number)
        self.incoming.setdefault(manifest.number, Incoming(manifest.body))
        self._manifests = {**getattr(self, "_manifests", {}), manifest.number: manifest}

    def _chunk(self, chunk: SyncChunk) -> None:
        found = self.incoming.get(chunk.number)
        if found is None or chunk.chunk < found.next_chunk:
            return
        if chunk.chunk > found.next_chunk or (self.faults and self.random.random() < 0.03):
            # Missing, or dropped by Kafka: asked for once, until it comes.
            if not found.gapped:
                self._answer(chunk.number, found.body, Verdict.RESEND, found.next_chunk)
            found.gapped = True
            return
        found.gapped = False
        found.data += chunk.data
        found.next_chunk += 1
        if found.next_chunk == found.body.chunks:
            self._complete(chunk.number, found)

    def make_room(self) -> None:
        """The disk has space again: what has waited is loaded."""
        self.full, held = False, self.held_up
        self.held_up = {}
        for number, each in held.items():
            self._complete(number, each)

    def _complete(self, number: int, found: Incoming) -> None:
        if self.full or found.body.file in self.stuck:
            self.held_up[number] = found
            if found.body.file in self.stuck:
                self._answer(number, found.body, Verdict.RESEND, found.body.chunks)
            return
        del self.incoming[number]
        self.decided.add(number)
        if self.faults and self.random.random() < 0.1:
            self._answer(number, found.body, Verdict.RETRY)
            return
        if found.body.file in self.rejecting:
            self._answer(number, found.body, Verdict.REJECTED)
            return
        if found.body.file not in self.contents:
            self.contents[found.body.file] = json.loads(bytes(found.data))
            self.applied.append(found.body)
        self._answer(number, found.body, Verdict.ACCEPTED)
        if self.faults and self.random.random() < 0.1:
            self._answer(number, found.body, Verdict.ACCEPTED)

    def _answer(self, number: int, body: SyncFile, state: Verdict, chunk: int = 0) -> None:
        kind = "" if state is Verdict.ACCEPTED else "Test"
        self.verdicts.append(SyncVerdict("s", number, body.file, body.content_digest, state, chunk, kind, kind))

    def _decide(self, manifest: SyncManifest, file: str, digest: bytes, state: Verdict) -> None:
        self.decided.add(manifest.number)
        self.verdicts.append(SyncVerdict("s", manifest.number, file, digest, state))

    # What queries see.

    def rows(self) -> dict[Key, int]:
        """The visible rows: of each key the highest order that no delete hides."""
        found: dict[Key, tuple[str, int]] = {}
        for place, each in enumerate(self.applied):
            if not isinstance(each, SyncFile):
                continue
            later = [delete for delete in self.applied[place + 1 :] if isinstance(delete, SyncDelete)]
            deletes: list[CarriedDelete | SyncDelete] = [*each.deletes, *later]
            for series, time, value in self.contents[each.file]:
                hidden = any(_matches(dict(d.tags), d.start_ns, d.end_ns, series, time) for d in deletes)
                if not hidden and each.order >= found.get((series, time), ("", 0))[0]:
                    found[series, time] = (each.order, value)
        return {key: value for key, (_, value) in found.items()}


def _matches(tags: dict[str, tuple[str, ...]], start: int | None, end: int | None, series: str, time: int) -> bool:
    assert start is not None
    assert end is not None
    return series in tags["s"] and start <= time < end
