"""The replay part of `headrace bench recovery`: a store rebuilt from its topic, beside the bare work and a
drain.

Each leg is a process of its own that has imported everything before its clock starts. The bare leg has the
messages in memory already and does only what no store can leave out: decode a block, sort it by series and
time, encode it as Parquet in as many threads as a store does, sync.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, TopicPartition

from headrace.bench.content import ContentDiffers, check_node, tag_names, written_checksums
from headrace.bench.ingest import TABLE_ROWS, ingest_leg
from headrace.bench.measurement import (
    DATABASE,
    Leg,
    Note,
    broker_pid,
    content_hash,
    in_child,
    ratio,
    running_cluster,
    summary,
)
from headrace.connectors.files import fsync_file
from headrace.connectors.kafka.broker import EmbeddedBroker
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.port import read_to_end
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.settings import ClusterSettings
from headrace.consumers.node.offline_replay import replay
from headrace.consumers.node.settings import NodeSettings, ServerSettings
from headrace.consumers.recovery.file_copy import digest_of
from headrace.consumers.replication.settings import SealPolicy
from headrace.consumers.store import Store, StoreSettings
from headrace.schemas.errors import HeadraceError
from headrace.schemas.messages import Write, decode_message
from headrace.schemas.payload import SERIES_COLUMN
from headrace.schemas.tables import TIME_COLUMN
from headrace.workload import cpu

READ_TIMEOUT_S = 120.0
START_NS = 1_700_000_000_000_000_000
LEAST = 0.6
TABLE = "readings"
BLOCK_ROWS = SealPolicy().seal_rows


def measure_replay(directory: Path, broker: EmbeddedBroker, settings: Mapping[str, Any], note: Note) -> dict[str, Any]:
    """The three legs of the part `replay`, and their ratios. Raises ContentDiffers."""
    hosts, rows = settings["hosts"], settings["rows"]
    workload = cpu(hosts=hosts, start_ns=START_NS, duration_s=rows // hosts * 10, seed=settings["seed"])
    tables = [rows for _, rows in workload.batches(TABLE_ROWS)]
    tags, expected = tag_names(tables[0]), written_checksums(tables)
    note("replay: filling the topic")
    with running_cluster(directory / "replay", broker, 1) as local:
        ingest_leg(local, broker_pid(broker), tables, TABLE, "zstd")
        check_node(local.url("n1"), DATABASE, TABLE, tags, expected)
        local.stop()
        data_directory, topic = local.data_directory("n1"), Topics(local.cluster).forward("n1")
        before = store_digests(data_directory, "n1")
        server = ServerSettings(
            cluster=ClusterSettings(name=local.cluster, bootstrap=local.bootstrap),
            node=NodeSettings(id="n1", data_dir=str(data_directory)),
        )
        end = _end(local.bootstrap, topic)
        ways: dict[str, Callable[[], Leg]] = {
            "headrace replay": lambda: _replayed(server, before),
            "decode, sort, encode": lambda: _bare(local.bootstrap, topic, directory / "bare", workload.rows),
            "drain": lambda: in_child(drain_leg, local.bootstrap, topic, end),
        }
        legs = _interleaved(ways, settings["rounds"], "replay", note)
        local.start()
        check_node(local.url("n1"), DATABASE, TABLE, tags, expected)
    points = workload.points
    wall = {name: [leg.per_second(points) for leg in taken] for name, taken in legs.items()}
    per_cpu = {name: [leg.per_cpu_second(points) for leg in taken] for name, taken in legs.items()}
    ours, bare, drain = ways
    return {
        "data": {"name": "tsbs cpu", "rows": workload.rows, "points": points, "hash": content_hash(expected)},
        "legs": {
            name: {"points_per_second": summary(wall[name]), "points_per_cpu_second": summary(per_cpu[name])}
            for name in ways
        },
        "of_bare": ratio(wall[ours], wall[bare], LEAST),
        "of_bare_per_cpu_second": ratio(per_cpu[ours], per_cpu[bare], LEAST),
        "of_drain": ratio(wall[ours], wall[drain]),
    }


def _interleaved(ways: Mapping[str, Callable[[], Leg]], rounds: int, what: str, note: Note) -> dict[str, list[Leg]]:
    """Each way once a round in changing order, after a round that warms up."""
    legs: dict[str, list[Leg]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        note(f"{what}: round {number} of {rounds}" if number else f"{what}: warming up")
        for name in random.sample(list(ways), len(ways)):
            leg = ways[name]()
            if number:
                legs[name].append(leg)
    return legs


def _replayed(settings: ServerSettings, before: Mapping[str, str]) -> Leg:
    leg: Leg = in_child(replay_leg, settings)
    if store_digests(settings.node.data_directory, settings.node.id) != before:
        raise ContentDiffers("the rebuilt store has other segments than the one before")
    return leg


def _bare(bootstrap: str, topic: str, directory: Path, rows: int) -> Leg:
    directory.mkdir()
    try:
        leg: Leg = in_child(bare_leg, bootstrap, topic, directory, rows)
        return leg
    finally:
        shutil.rmtree(directory)


def _end(bootstrap: str, topic: str) -> int:
    log = KafkaLog(bootstrap)
    try:
        return log.describe(topic).end
    finally:
        log.close()


def replay_leg(settings: ServerSettings) -> Leg:
    """`headrace replay --replace`; wall time from the start of the node to its last segment."""
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
            # By default librdkafka pauses a partition for a second when its queue is full.
            "fetch.queue.backoff.ms": 5,
            "fetch.max.bytes": 32 * 1024 * 1024,
            "max.partition.fetch.bytes": 16 * 1024 * 1024,
        }
    )
    begun_s, used_s = time.monotonic(), time.process_time()
    consumer.assign([TopicPartition(topic, 0, 0)])
    newest = -1
    while newest < end - 1:
        first = consumer.poll(READ_TIMEOUT_S)
        if first is None:
            raise HeadraceError("the topic does not come to its end", action="see the broker's log")
        messages = [first, *consumer.consume(500, 0)]
        newest = max([newest, *(message.offset() or 0 for message in messages if message.error() is None)])
    leg = Leg(time.monotonic() - begun_s, {"process": time.process_time() - used_s})
    consumer.close()
    return leg


def bare_leg(bootstrap: str, topic: str, directory: Path, rows: int) -> Leg:
    """Decode, sort and encode everything the topic holds.

    Raises ContentDiffers when that is not so many rows.
    """
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
    # Codes in order of the series' names: sorting small integers is far cheaper than sorting texts.
    rank = np.argsort(np.argsort(series.dictionary.to_numpy(zero_copy_only=False).astype(str)))
    codes, times = rank[series.indices.to_numpy()], columns.column(TIME_COLUMN).to_numpy()
    if len(rank) <= 1 << 16 and bool((times[1:] >= times[:-1]).all()):
        # Rows that arrive in order of time need one stable sort, which numpy does by radix for 16 bits.
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
    """Content digest of every segment of a stopped node.

    Raises ContentDiffers when a file's bytes are not those that were written.
    """
    store = Store.open(data_directory, group)
    try:
        for entry in store.segments():
            if digest_of(store.segments_directory / entry.name) != entry.file_digest:
                raise ContentDiffers(f"segment {entry.name} is not what its catalogue says")
        return store.digests()
    finally:
        store.close()
