"""A process that writes to a log until it is killed at a named step; run by `test_wal_kill`."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading

from headrace.connectors.files import FileLayer
from headrace.consumers.wal import BytesSerde, Delete, Put, WriteAheadLog

KEYS = 12
PARTITIONS = 3
UPDATES = 60


def records_of(transaction: int) -> list[Put[tuple[bytes, bytes]] | Delete[bytes]]:
    """The records of a transaction, the same in every process."""
    rng = random.Random(transaction)
    records: list[Put[tuple[bytes, bytes]] | Delete[bytes]] = []
    for _ in range(rng.randint(1, 3)):
        key = b"key-%d" % rng.randrange(KEYS)
        if rng.random() < 0.25:
            records.append(Delete(key))
        else:
            size = 5_000 if rng.random() < 0.3 else rng.randrange(60)
            records.append(Put((key, b"%d:" % transaction + bytes(size))))
    return records


def state_after(transactions: int) -> dict[bytes, tuple[bytes, bytes]]:
    """The state after this number of transactions."""
    state: dict[bytes, tuple[bytes, bytes]] = {}
    for transaction in range(1, transactions + 1):
        for record in records_of(transaction):
            if isinstance(record, Put):
                state[record.record[0]] = record.record
            else:
                state.pop(record.key, None)
    return state


class KillingFiles(FileLayer):
    """Real files; kills this process at the nth time that a step is reached."""

    def __init__(self, step: str, nth: int) -> None:
        self._step = step
        self._remaining = nth

    def step(self, name: str) -> None:
        if name == self._step:
            self._remaining -= 1
            if self._remaining <= 0:
                os.kill(os.getpid(), signal.SIGKILL)


def write_from_threads(directory: str, callers: int) -> None:
    """Many concurrent callers, each of which counts up under its own key.

    Acknowledged on stdout as `caller count`.
    """
    log = WriteAheadLog(directory, BytesSerde(), PARTITIONS, sync_interval_ms=5, checkpoint_bytes=200_000)
    state = dict(log.recover())

    def work(caller: int) -> None:
        key = b"caller-%d" % caller
        count = int(state[key][1].split(b":")[0]) if key in state else 0
        while True:
            count += 1
            padding = bytes(6_000 if count % 5 == 0 else 20)
            log.update(
                [Put((key, b"%d:" % count + padding))], sync=count % 4 > 0, partition=None if count % 2 else caller % 3
            )
            os.write(1, b"%d %d\n" % (caller, count))

    for caller in range(callers):
        threading.Thread(target=work, args=(caller,)).start()


def main(directory: str, step: str, nth: str, seed: str) -> None:
    """Write and acknowledge on stdout, one line for each transaction, until killed or done."""
    rng = random.Random(int(seed))
    log = WriteAheadLog(
        directory,
        BytesSerde(),
        PARTITIONS,
        sync_interval_ms=None,
        checkpoint_bytes=None,
        files=KillingFiles(step, int(nth)),
    )
    log.recover()
    for _ in range(UPDATES):
        transaction = log.last_transaction + 1
        assert transaction == log.update(
            records_of(transaction), sync=rng.random() < 0.3, partition=rng.randrange(PARTITIONS)
        )
        os.write(1, b"%d\n" % transaction)
        if rng.random() < 0.1:
            log.checkpoint()
    log.close()


if __name__ == "__main__":
    if sys.argv[2] == "threads":
        write_from_threads(sys.argv[1], int(sys.argv[3]))
    else:
        main(*sys.argv[1:])
