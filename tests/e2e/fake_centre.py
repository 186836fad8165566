"""A centre for tests of senders: its topics on a real broker, and a receiver that only checks and remembers."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.connectors.log.topics import Topics
from headrace.schemas.sync_records import (
    SyncDelete,
    SyncFile,
    SyncManifest,
    SyncVerdict,
    Verdict,
    decode_chunk,
    decode_manifest,
    encode_verdict,
    verdict_key,
)

PARTITIONS = 3
QUIET = {"log_level": 0}
Decide = Callable[[SyncManifest, int], tuple[Verdict, str]]
"""The verdict for a whole file, and why: by its manifest and how many files were decided before."""


def accept(_manifest: SyncManifest, _decided: int) -> tuple[Verdict, str]:
    """Every file is accepted."""
    return Verdict.ACCEPTED, ""


def make_centre(bootstrap: str, cluster: str) -> Topics:
    """The topics of a centre."""
    topics = Topics(cluster)
    wide, narrow = (topics.sync_manifest, topics.sync_chunk), (topics.membership, topics.sync_verdict)
    with AdminClient({"bootstrap.servers": bootstrap, **QUIET}) as client:
        new = [NewTopic(each, PARTITIONS, 1, config={"max.message.bytes": "16777216"}) for each in wide]
        for made in client.create_topics([*new, *(NewTopic(each, 1, 1) for each in narrow)]).values():
            made.result(30)
    return topics


@dataclass
class Received:
    """One file as it arrived."""

    manifest: SyncManifest
    chunks: dict[int, bytes] = field(default_factory=dict)


class FakeReceiver:
    """Reads all partitions from the beginning on a thread. `files` are the accepted ones, in the order of verdicts."""

    def __init__(self, bootstrap: str, topics: Topics, decide: Decide = accept) -> None:
        self.decide = decide
        self.files: list[tuple[SyncFile, pa.Table]] = []
        self.deletes: list[SyncDelete] = []
        self.manifests: list[SyncManifest] = []
        self.problems: list[str] = []
        self.chunks_read = 0
        self.paused = False
        self._topics = topics
        self._open: dict[tuple[str, int], Received] = {}
        self._decided: dict[tuple[str, int], bool] = {}
        self._early: list[Any] = []
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest", **QUIET}
        )
        self._producer = Producer({"bootstrap.servers": bootstrap, **QUIET})
        self._consumer.assign(
            [
                TopicPartition(topic, partition, 0)
                for topic in (topics.sync_manifest, topics.sync_chunk)
                for partition in range(PARTITIONS)
            ]
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a second call does nothing."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._thread.join(20)
        self._consumer.close()

    def rows(self) -> pa.Table:
        """All rows of the accepted files."""
        return pa.concat_tables([table for _, table in self.files], promote_options="permissive")

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self.paused:
                self._stopping.wait(0.05)
                continue
            message = self._consumer.poll(0.1)
            if message is None or message.error():
                continue
            try:
                self._take(message.topic() or "", message.value() or b"")
            except Exception as error:
                self.problems.append(repr(error))

    def _take(self, topic: str, value: bytes) -> None:
        if topic == self._topics.sync_chunk:
            chunk = decode_chunk(value)
            self.chunks_read += 1
            key = (chunk.sender, chunk.number)
            if key in self._open:
                self._open[key].chunks.setdefault(chunk.chunk, bytes(chunk.data))
                self._finish(key)
            elif key not in self._decided:
                self._early.append((key, chunk))
            return
        manifest = decode_manifest(value)
        self.manifests.append(manifest)
        key = (manifest.sender, manifest.number)
        if key in self._decided:
            return
        if isinstance(manifest.body, SyncFile):
            self._open.setdefault(key, Received(manifest))
            for early_key, chunk in self._early:
                if early_key == key:
                    self._open[key].chunks.setdefault(chunk.chunk, bytes(chunk.data))
            self._early = [each for each in self._early if each[0] != key]
            self._finish(key)
            return
        self._decided[key] = True
        self.deletes.extend(manifest.body.deletes)
        # What was under way when deletes came is void.
        self._open = {each: found for each, found in self._open.items() if each[0] != manifest.sender}
        self._answer(manifest, manifest.body.group, b"", Verdict.ACCEPTED, "")

    def _finish(self, key: tuple[str, int]) -> None:
        received = self._open[key]
        body = received.manifest.body
        assert isinstance(body, SyncFile)
        if set(received.chunks) != set(range(body.chunks)):
            return
        del self._open[key]
        self._decided[key] = True
        data = b"".join(received.chunks[each] for each in range(body.chunks))
        segment, series = data[: body.segment_bytes], data[body.segment_bytes :]
        if (xxhash.xxh3_128_digest(segment), xxhash.xxh3_128_digest(series)) != (
            body.segment_digest,
            body.series_digest,
        ):
            self.problems.append(f"{body.file} arrived with other bytes")
        state, why = self.decide(received.manifest, len(self._decided))
        if state is Verdict.ACCEPTED:
            if body.file in {each.file for each, _ in self.files}:
                self.problems.append(f"{body.file} was sent again after it was accepted")
            self.files.append((body, pq.read_table(pa.BufferReader(segment))))
        self._answer(received.manifest, body.file, body.content_digest, state, why)

    def _answer(self, manifest: SyncManifest, file: str, digest: bytes, state: Verdict, why: str) -> None:
        verdict = SyncVerdict(manifest.sender, manifest.number, file, digest, state, 0, "Test" if why else "", why)
        self._producer.produce(
            self._topics.sync_verdict, encode_verdict(verdict), key=verdict_key(manifest.sender, file)
        )
        self._producer.flush(10)
