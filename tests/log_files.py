"""The files of a broker's logs, changed while it is stopped."""

from __future__ import annotations

import struct

from headrace.connectors.kafka.broker import EmbeddedBroker

_BATCH = struct.Struct(">qi")


def cut_end(broker: EmbeddedBroker, topic: str, keep: int) -> None:
    """Delete the batches from an offset on from the disk of a stopped broker, which then looks killed."""
    directory = broker.directory / "data" / f"{topic}-0"
    [segment] = directory.glob("*.log")
    data, position = segment.read_bytes(), 0
    while position < len(data) and (batch := _BATCH.unpack_from(data, position))[0] < keep:
        position += _BATCH.size + batch[1]
    segment.write_bytes(data[:position])
    for file in directory.iterdir():
        if file.suffix in (".index", ".timeindex", ".snapshot"):
            file.unlink()
    (broker.directory / "data" / ".kafka_cleanshutdown").unlink(missing_ok=True)
