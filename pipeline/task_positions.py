"""Positions of the messages of a Spark task: the same ones again when the task runs again over the same rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import xxhash

from headrace.schemas.messages import Body, ProducerPosition, body_digest

SEQUENCE_BITS = 40


@dataclass(slots=True)
class TaskPositions:
    """See `producers.sender.Positions`. A sequence is the partition and a hash of the messages up to this one.

    Not a count: an attempt may give another first message and the same second one. With a count replicas would apply
    the first and drop the second as a repeat, so the older of two values would win. With the hash everything behind a
    difference differs too, and is applied again in order.
    """

    producer: str
    batch: int
    partition: int
    _chain: bytes = field(default=b"", init=False)

    def begin_batch(self) -> None:
        """See Positions. All messages of a task are of one batch, which is Spark's."""

    def next(self, body: Body) -> ProducerPosition:
        """See Positions."""
        # The hash takes the bits below the partition: the sequences of two partitions never meet.
        hash_bits = int.from_bytes(self._chain, "big") >> (64 - SEQUENCE_BITS)
        self._chain = xxhash.xxh3_64_digest(self._chain + body_digest(body))
        return ProducerPosition(self.producer, self.batch, (self.partition << SEQUENCE_BITS) | hash_bits)
