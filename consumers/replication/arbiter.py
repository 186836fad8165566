"""What the log itself says a replica's chain is: the last word wherever the log still has its first record."""

from __future__ import annotations

from collections.abc import Callable

from connectors.log.port import Log
from consumers.replication.chain import next_chain, record_digest
from schemas.errors import HeadraceError
from schemas.messages import NO_CHAIN

READ_RECORDS = 1_000
READ_TIMEOUT_S = 1.0


def read_chain(log: Log, topic: str, version: int, stopped: Callable[[], bool]) -> bytes | None:
    """The chain after a record, counted from the beginning of the log; None when the log cannot say. Takes as long as reading all that."""
    reader = log.reader({topic: 0})
    chain, counted = NO_CHAIN, 0
    try:
        while not stopped():
            records = reader.poll(READ_RECORDS, READ_TIMEOUT_S)
            if not records and reader.position(topic) >= log.describe(topic).end:
                return None
            for record in records:
                chain, counted = next_chain(chain, record_digest(record.value)), counted + 1
                if counted == version:
                    return chain
        return None
    except HeadraceError:
        return None
    finally:
        reader.close()
