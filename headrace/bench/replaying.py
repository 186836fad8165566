"""The legs of a topic replay: `headrace replay`, the same rows without Headrace around them, and the topic alone.

Each leg is a process of its own that has imported everything before its clock starts. The bare leg has the messages in memory already and is as
straight as it gets: decode a block, sort it by series and time, encode it as Parquet in as many threads as a store does, sync.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, TopicPartition

from connectors.files import fsync_file
from connectors.log.kafka import KafkaLog
from connectors.log.port import read_to_end
from consumers.node import NodeSettings
from consumers.replay import replay
from consumers.replication.duties import SealPolicy
from consumers.replication.transfer import digest_of
from consumers.store import Store, StoreSettings
from headrace.bench.content import ContentDiffers
from headrace.bench.measuring import Leg
from schemas.messages import Write, decode_message
from schemas.payload import SERIES_COLUMN
from schemas.tables import TIME_COLUMN

READ_TIMEOUT_S = 120.0
BLOCK_ROWS = SealPolicy().rows


def replay_leg(settings: NodeSettings) -> Leg:
    """`headrace replay --replace`; wall time is what the command reports: from starting the node to its last segment."""
    used_s = time.process_time()
    replayed = replay(settings, may_replace=True, on_progress=lambda _done, _total: None)
    return Leg(replayed.seconds, {"process": time.process_time() - used_s})


def drain_leg(bootstrap: str, topic: str, end: int) -> Leg:
    """Read the topic to its end with a bare client that throws everything away."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-drain",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 5,
            "fetch.max.bytes": 32 * 1024 * 1024,
            "max.partition.fetch.bytes": 16 * 1024 * 1024,
        }
    )
    begun_s, used_s = time.monotonic(), time.process_time()
    consumer.assign([TopicPartition(topic, 0, 0)])
    newest = -1
    while newest < end - 1:
        first = consumer.poll(5.0)
        messages = ([] if first is None else [first]) + consumer.consume(500, 0)
        newest = max([newest, *(message.offset() or 0 for message in messages if message.error() is None)])
    leg = Leg(time.monotonic() - begun_s, {"process": time.process_time() - used_s})
    consumer.close()
    return leg


def bare_leg(bootstrap: str, topic: str, directory: Path, rows: int) -> Leg:
    """Decode, sort and encode everything the topic holds. Raises ContentDiffers when that is not so many rows."""
    log = KafkaLog(bootstrap)
    messages = [decode_message(record.value) for record in read_to_end(log, topic, timeout_s=READ_TIMEOUT_S)]
    log.close()
    payloads = [message.body.rows for message in messages if isinstance(message.body, Write)]
    begun_s, used_s = time.monotonic(), time.process_time()
    threads = StoreSettings().encode_threads
    with ThreadPoolExecutor(threads) as pool:
        running: list[Future[int]] = []
        written = 0
        for number, block in enumerate(_blocks(payloads)):
            columns, order = _sorted(block)
            written += sum(each.result() for each in running)
            running = [
                pool.submit(_encode, columns, part, directory / f"{number}-{index}.parquet")
                for index, part in enumerate(np.array_split(order, threads))
            ]
        written += sum(each.result() for each in running)
    leg = Leg(time.monotonic() - begun_s, {"process": time.process_time() - used_s})
    if written != rows:
        raise ContentDiffers(f"the bare leg has {written} rows instead of {rows}")
    return leg


def _blocks(payloads: Sequence[bytes]) -> Iterator[list[pa.RecordBatch]]:
    held: list[pa.RecordBatch] = []
    for payload in payloads:
        held.append(pa.ipc.open_stream(payload).read_next_batch())
        if sum(map(len, held)) >= BLOCK_ROWS:
            yield held
            held = []
    if held:
        yield held


def _sorted(batches: Sequence[pa.RecordBatch]) -> tuple[pa.Table, Any]:
    """The rows as they came, and their order by series and time."""
    columns = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks()
    series = columns.column(SERIES_COLUMN).chunk(0)
    rank = np.argsort(np.argsort(series.dictionary.to_numpy(zero_copy_only=False).astype(str)))
    codes, times = rank[series.indices.to_numpy()], columns.column(TIME_COLUMN).to_numpy()
    if len(rank) <= 1 << 16 and bool((times[1:] >= times[:-1]).all()):
        return columns, np.argsort(codes.astype(np.uint16), kind="stable")
    return columns, np.lexsort((times, codes))


def _encode(columns: pa.Table, rows: Any, path: Path) -> int:
    taken = {}
    for name in columns.column_names:
        column = columns.column(name).chunk(0)
        plain = column.null_count == 0 and not pa.types.is_dictionary(column.type)
        taken[name] = pa.array(column.to_numpy()[rows]) if plain else column.take(pa.array(rows))
    pq.write_table(
        pa.table(taken),
        path,
        row_group_size=StoreSettings().row_group_rows,
        use_dictionary=[SERIES_COLUMN],
        column_encoding={name: "DELTA_BINARY_PACKED" for name, values in taken.items() if values.type == pa.int64()},
        compression="zstd",
        compression_level=StoreSettings().compression_level,
        write_statistics=[TIME_COLUMN],
    )
    fsync_file(path)
    return len(rows)


def store_digests(data_directory: Path, group: str) -> dict[str, str]:
    """Content digest of every segment of a stopped node. Raises ContentDiffers when a file's bytes are not those that were written."""
    store = Store.open(data_directory, group)
    try:
        for entry in store.segments():
            if digest_of(store.segments_directory / entry.name) != entry.file_digest:
                raise ContentDiffers(f"segment {entry.name} is not what its catalogue says")
        return store.digests()
    finally:
        store.close()
