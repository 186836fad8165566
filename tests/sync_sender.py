"""A small sender for tests: sealed files as a store encodes them, in the topics of a centre."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import xxhash
from confluent_kafka import Producer

from headrace.connectors.log.kafka_group import read_partitions
from headrace.connectors.log.topics import Topics
from headrace.consumers.store import SegmentEntry, SeriesFile, StoreSettings
from headrace.consumers.store.segment import Runs, SegmentRows, encode_segment
from headrace.consumers.store.segment_files import SegmentName
from headrace.schemas.framing import FORMAT
from headrace.schemas.series import bucket_of, series_key
from headrace.schemas.sync_records import (
    SyncChunk,
    SyncDeletes,
    SyncFile,
    SyncManifest,
    SyncVerdict,
    Verdict,
    decode_verdict,
    encode_chunk,
    encode_manifest,
)
from headrace.schemas.tables import FieldType, TableSchema, TimeResolution

DAY_NS = 86_400_000_000_000
SECOND_NS = 1_000_000_000
VERDICT_S = 60.0
GROUP = "e1/1"


@dataclass(frozen=True)
class SealedFile:
    """A file of a store: its manifest, and the bytes of segment and series."""

    body: SyncFile
    data: bytes

    def chunk(self, number: int) -> bytes:
        """The bytes of one chunk."""
        size = self.body.chunk_bytes
        return self.data[number * size : (number + 1) * size]


def sealed_file(
    readings: Mapping[str, Sequence[tuple[int, float]]],
    *,
    version: int,
    database: str = "plant",
    table: str = "pumps",
    chunk_bytes: int = 512,
    buckets: int = 1,
    md5: bool = False,
    integers: bool = False,
    store: str = "edge-store",
) -> SealedFile:
    """One sealed file of readings by pump, (time ns, value), all of one day."""
    kind = FieldType.INT64 if integers else FieldType.FLOAT64
    schema = TableSchema(database, table, 1, ("pump",), (("flow", kind),), None, TimeResolution.NS)
    keys = {series_key(table, {"pump": pump}): sorted(rows) for pump, rows in readings.items()}
    ordered = sorted(keys)
    rows = [row for key in ordered for row in keys[key]]
    times = np.array([time_ns for time_ns, _ in rows], np.int64)
    lengths = np.array([len(keys[key]) for key in ordered], np.int64)
    runs = Runs.of_times(pa.array(ordered, pa.string()), lengths, times)
    values = [int(value) if integers else float(value) for _, value in rows]
    slice_number, bucket = int(times[0]) // DAY_NS, bucket_of(ordered[0], buckets)
    name = SegmentName(database, table, slice_number, bucket, 1, version, version)
    encoded = encode_segment(
        "e1", name, schema, SegmentRows(runs, times, {"flow": pa.array(values, kind.arrow)}), 0, StoreSettings()
    )
    return _of(encoded.entry, encoded.data.to_pybytes(), runs, schema, buckets, chunk_bytes, md5, store)


def _of(
    entry: SegmentEntry,
    segment: bytes,
    runs: Runs,
    schema: TableSchema,
    buckets: int,
    chunk_bytes: int,
    md5: bool,
    store: str,
) -> SealedFile:
    series = SeriesFile.of(entry, runs.to_bytes()).to_bytes()
    size = len(segment) + len(series)
    body = SyncFile(
        file=f"{GROUP}/{entry.name}",
        stores=(store,),
        database=entry.database,
        table=entry.table,
        slice_ns=DAY_NS,
        buckets=buckets,
        slice_number=entry.slice_number,
        bucket=entry.bucket,
        era=entry.era,
        first_version=entry.first_version,
        last_version=entry.last_version,
        generation=entry.generation,
        order=f"{entry.last_version:015}",
        rows=entry.rows,
        min_time_ns=entry.min_time_ns,
        max_time_ns=entry.max_time_ns,
        tags=schema.tags,
        fields=tuple((name, str(kind)) for name, kind in schema.fields),
        resolution="ns",
        content_digest=bytes.fromhex(entry.content_digest),
        segment_bytes=len(segment),
        segment_digest=xxhash.xxh3_128_digest(segment),
        segment_md5=hashlib.md5(segment).digest() if md5 else b"",
        series_bytes=len(series),
        series_digest=xxhash.xxh3_128_digest(series),
        chunk_bytes=chunk_bytes,
        chunks=-(-size // chunk_bytes),
    )
    return SealedFile(body, segment + series)


@dataclass
class FakeSender:
    """A sender of one store; its numbers rise as those of a real one do."""

    bootstrap: str
    cluster: str
    partitions: int
    sender: str = field(default_factory=lambda: str(uuid.uuid4()))
    store: str = "edge-store"
    name: str = "site"
    session: int = 1
    number: int = 0

    def __post_init__(self) -> None:
        self.topics = Topics(self.cluster)
        self._producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "log_level": 2})
        self.partition = xxhash.xxh3_64_intdigest(self.sender.encode()) % self.partitions

    def announce(self, body: SyncFile | SyncDeletes, **changed: object) -> SyncManifest:
        """Append the manifest of a file, and wait until Kafka has it."""
        self.number += 1
        manifest = SyncManifest(self.sender, self.store, self.name, self.session, self.number, FORMAT, body)
        manifest = replace(manifest, **changed)  # type: ignore[arg-type]
        self.append(self.topics.sync_manifest, encode_manifest(manifest))
        self.flush()
        return manifest

    def chunk(self, manifest: SyncManifest, number: int, data: bytes, session: int | None = None) -> None:
        """Append one chunk."""
        chunk = SyncChunk(self.sender, session or self.session, manifest.number, number, data)
        self.append(self.topics.sync_chunk, encode_chunk(chunk))

    def send(self, file: SealedFile, **changed: object) -> SyncManifest:
        """Append manifest and all chunks."""
        manifest = self.announce(file.body, **changed)
        for number in range(file.body.chunks):
            self.chunk(manifest, number, file.chunk(number))
        self.flush()
        return manifest

    def append(self, topic: str, value: bytes) -> None:
        """Append a record in the partition of this sender."""
        self._producer.produce(topic, value, key=self.sender.encode(), partition=self.partition)

    def flush(self) -> None:
        """Wait until Kafka has everything."""
        assert not self._producer.flush(30.0)

    def verdicts(self) -> list[SyncVerdict]:
        """All verdicts for this sender so far, in order."""
        records = read_partitions(self.bootstrap, self.topics.sync_verdict)
        found = [decode_verdict(record.value) for record in records]
        return [each for each in found if each.sender == self.sender]

    def verdict(self, manifest: SyncManifest, timeout_s: float = VERDICT_S) -> SyncVerdict:
        """Wait for the verdict of a manifest that is no RESEND."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for each in self.verdicts():
                if each.number == manifest.number and each.state is not Verdict.RESEND:
                    return each
            time.sleep(0.2)
        raise AssertionError(f"no verdict for manifest {manifest.number} in {timeout_s:g} s")
