"""A writer in a process of its own that writes blocks one after the other, and how long each took.

As an application does: nothing but its writes shares its interpreter. `ready_ms` is what its thread waited for a
processor within a block.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

from headrace.bench.content import tag_names
from headrace.bench.measurement import DATABASE, connected
from headrace.bench.noise import DAY_NS
from headrace.connectors.processor import processor_time
from headrace.producers.writer import TableWriter
from headrace.schemas.errors import HeadraceError
from headrace.workload import cpu

LIVE = "live"
START_NS = 1_700_000_000_000_000_000
STEP_S = 10
ANSWER_TIMEOUT_S = 60.0


class WriterFailed(HeadraceError):
    """The writer that measures the pause, or the queries beside it, ended early."""


@dataclass(slots=True)
class Blocks:
    """The blocks of the writer: the moment of each, its milliseconds until acknowledged, and those of no processor.

    Moments are of the monotonic clock, which all processes of a machine share.
    """

    moments_s: list[float] = field(default_factory=list)
    taken_ms: list[float] = field(default_factory=list)
    ready_ms: list[float] = field(default_factory=list)

    def between(self, begin_s: float, end_s: float) -> list[float]:
        """The times of blocks that were acknowledged between two moments."""
        pairs = zip(self.moments_s, self.taken_ms, strict=True)
        return [taken for moment, taken in pairs if begin_s <= moment < end_s]

    def ready_between(self, begin_s: float, end_s: float) -> list[float]:
        """The same for how long each had no processor."""
        pairs = zip(self.moments_s, self.ready_ms, strict=True)
        return [ready for moment, ready in pairs if begin_s <= moment < end_s]


def block_of(settings: Mapping[str, Any], first: pa.Table, number: int) -> pa.Table:
    """The rows of a block: another day each, so that blocks fall into all groups, and later rows of it each time."""
    rounds, day = divmod(number, settings["days"])
    return shifted(first, day * DAY_NS + rounds * _span_s(settings) * 10**9)


def first_block(settings: Mapping[str, Any]) -> pa.Table:
    """The first block of a writer with these settings: block_rows, hosts, days, seed."""
    duration_s = _span_s(settings)
    return cpu(hosts=settings["hosts"], start_ns=START_NS, duration_s=duration_s, seed=settings["seed"]).read("cpu")


def _span_s(settings: Mapping[str, Any]) -> int:
    return max(1, int(settings["block_rows"]) // int(settings["hosts"])) * STEP_S


def shifted(rows: pa.Table, by_ns: int) -> pa.Table:
    """The same rows at a later time."""
    place = rows.schema.get_field_index("time")
    column = rows.column("time")
    later = pa.array(column.cast(pa.int64()).to_numpy() + by_ns).cast(column.type)
    return rows.set_column(place, rows.schema.field("time"), later)


@contextmanager
def writing(bootstrap: str, cluster: str, settings: Mapping[str, Any], blocks: Blocks) -> Iterator[None]:
    """Write blocks while the body runs, from the first one on; `blocks` has them behind it. Raises WriterFailed."""
    # Spawned and not forked: the threads of librdkafka and Arrow do not survive a fork.
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_write, args=(there, bootstrap, cluster, dict(settings)), daemon=True)
    process.start()
    there.close()
    try:
        _received(here, "begin")
        yield
        here.send(None)
        written = _received(here, "end")
        blocks.moments_s, blocks.taken_ms, blocks.ready_ms = written.moments_s, written.taken_ms, written.ready_ms
    finally:
        here.close()
        process.join(ANSWER_TIMEOUT_S)


def _received(here: Connection, what: str) -> Blocks:
    """The blocks so far, once the writer has begun or ended. Raises WriterFailed."""
    if not here.poll(ANSWER_TIMEOUT_S):
        raise WriterFailed(f"the writer did not {what} in {ANSWER_TIMEOUT_S:g} s")
    try:
        failure, written = here.recv()
    except EOFError:
        raise WriterFailed("the writer's process died") from None
    if failure:
        raise WriterFailed(f"the writer ended: {failure}")
    assert isinstance(written, Blocks)
    return written


def _write(there: Connection, bootstrap: str, cluster: str, settings: Mapping[str, Any]) -> None:
    blocks, failure = Blocks(), ""
    try:
        with connected(bootstrap, cluster) as shared, TableWriter(shared, DATABASE, LIVE) as writer:
            first = first_block(settings)
            tags, number = tag_names(first), 0
            while not there.poll():
                block = block_of(settings, first, number)
                begun, waited_s = time.perf_counter(), processor_time().waited_s
                writer.write(block, tags)
                writer.flush()
                blocks.taken_ms.append((time.perf_counter() - begun) * 1_000)
                blocks.ready_ms.append((processor_time().waited_s - waited_s) * 1_000)
                blocks.moments_s.append(time.monotonic())
                number += 1
                if number == 1:
                    there.send(("", blocks))
    except Exception as error:
        failure = repr(error)
    there.send((failure, blocks))
    there.close()
