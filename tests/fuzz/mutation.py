"""Mutations of bytes, and the inputs that they begin with."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.schemas.messages import (
    Anchor,
    Body,
    Claim,
    Compact,
    Delete,
    Drop,
    Leadership,
    Message,
    ProducerPosition,
    Seal,
    TableVersion,
    Write,
    encode_message,
)
from tests.poison import encoded, poison_payloads, row_batch

Case = Callable[[random.Random, int], None]
LEADER = Leadership(1, "n1", "i")
EDGES = (0, 1, 127, 128, 254, 255)
WIDE_EDGES = (-1, 0, 2**31 - 1, -(2**31), 2**32, 2**63 - 1, -(2**63), 2**40)


def mutated(data: bytes, chance: random.Random, first: int = 0) -> bytes:
    """A few changes behind byte `first`: bits, bytes, wide integers, parts that are lost, doubled or inserted."""
    value = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 8))):
        if len(value) <= first:
            break
        at, kind = chance.randrange(first, len(value)), chance.random()
        if kind < 0.4:
            value[at] ^= 1 << chance.randrange(8)
        elif kind < 0.6:
            value[at] = chance.choice(EDGES)
        elif kind < 0.75:
            width = chance.choice((4, 8))
            value[at : at + width] = (chance.choice(WIDE_EDGES) % 2 ** (8 * width)).to_bytes(width, "little")
        elif kind < 0.85:
            del value[at : at + chance.randint(1, 20)]
        elif kind < 0.93:
            value[at:at] = value[at : at + chance.randint(1, 40)]
        else:
            value[at:at] = chance.randbytes(chance.randint(1, 9))
    return bytes(value)


def payloads() -> list[bytes]:
    """Row batches in every compression, valid and not."""
    count = 40
    numbers = np.arange(count)
    fields = {
        "flow": pa.array(numbers.astype(float), mask=numbers % 7 == 0),
        "note": pa.array([f"note é {number}" if number % 3 else None for number in range(count)], pa.string()),
    }
    batch = row_batch(["pumps,pump=p1", "pumps,pump=p\\ 2", "pumps"], (numbers % 3).tolist(), numbers.tolist(), fields)
    return [encoded(batch, kind) for kind in ("zstd", "lz4", None, None)] + list(poison_payloads().values())


class Messages:
    """Forward messages to mutate: as a whole, or only in the payload, which Avro then carries unharmed."""

    def __init__(self) -> None:
        anchor = Anchor(1, 1, bytes(16))
        self._payloads = payloads()
        self._bodies: Sequence[Body] = (
            Delete("plant", "pumps", {"pump": ("p1", "")}, 1, 20),
            Claim(LEADER, anchor, 1_000, 1_000_000),
            Seal(LEADER, anchor, (TableVersion("plant", "pumps", 1),)),
            Drop(LEADER, "plant", "pumps", 5),
            Compact(LEADER, "plant", "pumps", ("a", "b")),
        )

    def draw(self, chance: random.Random, number: int) -> bytes:
        """One message, most of them mutated."""
        position = ProducerPosition(chance.choice(("p", "q")), chance.choice((1, 1, 1, 2**62)), number)
        if chance.random() < 0.7:
            data = chance.choice(self._payloads[:4]) if chance.random() < 0.8 else chance.choice(self._payloads)
            data = mutated(data, chance) if chance.random() < 0.7 else data
            body: Body = Write("plant", "pumps", 1, 1, 40, data)
        else:
            body = chance.choice(self._bodies)
        value = encode_message(Message(position, body))
        return mutated(value, chance, 10) if chance.random() < 0.4 else value


def user_table() -> pa.Table:
    """Rows as a user has them, with every type that is accepted and some that are not."""
    count = 30
    return pa.table(
        {
            "time": pa.array(range(count), pa.timestamp("us")),
            "h": pa.array([f"h{n % 3}" if n % 4 else None for n in range(count)]),
            "d": pa.array([f"d{n % 2}" for n in range(count)]).dictionary_encode(),
            "s": pa.array([f"text é {n}" for n in range(count)], pa.large_string()),
            "v": pa.array(np.linspace(0, 1, count)),
            "i": pa.array(range(count), pa.int16()),
            "b": pa.array([n % 2 == 0 for n in range(count)]),
        }
    )


def parquet_files() -> list[bytes]:
    """The table as Parquet: compressed or not, with and without a dictionary."""
    files = []
    for compression, dictionary in (("none", False), ("none", True), ("zstd", True)):
        stream = io.BytesIO()
        pq.write_table(user_table(), stream, compression=compression, use_dictionary=dictionary, row_group_size=10)
        files.append(stream.getvalue())
    return files


def arrow_streams() -> list[bytes]:
    """The table as Arrow streams, which `open_stream` reads without a check."""
    streams = []
    for compression in (None, "lz4"):
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_stream(sink, user_table().schema, options=options) as writer:
            writer.write_table(user_table())
        streams.append(sink.getvalue().to_pybytes())
    return streams


TEXTS = {
    "influx": b't,h=a v=1,s="caf\xc3\xa9",i=3i,b=t 1\nt,h=b\\ c v=2.5e3 -5\n# comment\nu v=1 9223372036854775806\nt v=nan 7\n',
    "json": b'{"time":1,"h":"a","v":1.5,"s":"caf\xc3\xa9","b":true}\n{"time":"2020-01-01T00:00:00Z","h":null,"v":2}\n'
    b'{"time":3,"h":"\\u00e9","v":-1e3,"s":"\\ud83d\\ude00"}\n',
    "csv": b'time,h,v,s\n1,a,1.5,caf\xc3\xa9\n2020-01-01,b,,"x, ""y"""\n3,,2,\n',
}
