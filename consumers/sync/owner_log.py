"""Reads and extends the owner topic: nobody acts on a record of it before reading it back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.append import append_one, append_with
from headrace.connectors.log.port import Appender, Log, LogUnavailable, Reader, Record, read_to_end
from headrace.connectors.log.topics import Topics
from headrace.consumers.sync.owner_index import OwnerIndex
from headrace.consumers.sync.owners import (
    DeviceOwned,
    Enrolled,
    OwnerChange,
    Owners,
    OwnersInMemory,
    SenderCloned,
    change_of,
    check_devices,
    check_store,
)
from headrace.schemas.arrow_stream import stream_size
from headrace.schemas.framing import FrameInvalid
from headrace.schemas.payload import DECODED_BYTES_MAX
from headrace.schemas.sync_records import (
    OwnerClaim,
    OwnerEnrolment,
    OwnerMove,
    OwnerRecord,
    decode_owner,
    encode_owner,
)

READ_TIMEOUT_S = 60.0
FRESH_S = 1.0
"""How old a look at the topic may be for a device that is the sender's."""
RECORDS_AT_ONCE = 100
DEVICE_COLUMN = "device"
RECORD_DEVICES_BYTES = 8 << 20
"""Names in one record: half of what a record may have, whatever their compression makes of them."""
_OFFSET_BYTES = 4


def encode_devices(devices: Sequence[str]) -> bytes:
    """Series keys as an Arrow IPC stream."""
    batch = pa.record_batch({DEVICE_COLUMN: pa.array(devices, pa.string())})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def encode_parts(devices: Sequence[str]) -> Iterator[bytes]:
    """Series keys as the bodies of so many records as they need: a file may have millions of devices."""
    sizes = pc.binary_length(pa.array(devices, pa.string())).to_numpy().astype(np.int64) + _OFFSET_BYTES
    cuts = np.flatnonzero(np.diff(np.cumsum(sizes) // RECORD_DEVICES_BYTES)) + 1
    bounds = [0, *cuts.tolist(), len(devices)]
    return (encode_devices(devices[start:end]) for start, end in pairwise(bounds))


def decode_devices(data: bytes) -> list[str]:
    """The inverse of `encode_devices`. Raises FrameInvalid."""
    try:
        # Before anything is decompressed: a claim of a megabyte may declare the memory of the machine.
        if stream_size(data).size_bytes > DECODED_BYTES_MAX:
            raise FrameInvalid("the devices of a claim take too much memory")
        with pa.ipc.open_stream(data) as reader:
            devices = reader.read_all().column(DEVICE_COLUMN)
        # Arrow reads offsets and texts as they are, and fails at them later or not at all.
        devices.validate(full=True)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise FrameInvalid(f"the devices of a claim cannot be read: {error}") from error
    if devices.type != pa.string() or devices.null_count:
        raise FrameInvalid("a claim names a device that is no text")
    keys: list[str] = devices.to_pylist()
    return keys


def change_of_record(owners: Owners, value: bytes) -> OwnerChange:
    """What the value of a record changes; nothing for bytes that no build wrote."""
    try:
        body = decode_owner(value)
        devices = [] if isinstance(body, OwnerEnrolment) else decode_devices(body.devices)
    except FrameInvalid:
        return OwnerChange()
    return change_of(owners, body, devices)


def read_owners(log: Log, topics: Topics) -> OwnersInMemory:
    """All owners now, for commands. Raises TopicMissing, LogUnavailable."""
    owners = OwnersInMemory()
    for record in read_to_end(log, topics.sync_owner, timeout_s=READ_TIMEOUT_S):
        owners.apply(change_of_record(owners, record.value))
    return owners


def move_devices(log: Log, topics: Topics, sender: str, database: str, devices: Sequence[str]) -> None:
    """Hand devices over. Raises AppendUnknown, and the errors of the log."""
    for part in encode_parts(devices):
        # A repeat behind a later move would undo that one.
        move = encode_owner(OwnerMove(sender, database, part))
        append_one(log, topics.sync_owner, move, key=sender.encode(), repeats=False)


class OwnerLog:
    """The owners at a receiver. Safe to share between threads."""

    def __init__(self, log: Log, appender: Appender, topics: Topics, directory: Path) -> None:
        """Opens the view in a directory. Raises ViewUnwritable, TopicMissing, LogUnavailable."""
        self._log = log
        self._appender = appender
        self._topic = topics.sync_owner
        self._lock = threading.Lock()
        self._index = OwnerIndex(directory, log.describe(self._topic).topic_id)
        self._reader: Reader | None = None
        self._looked_s = 0.0

    def own(self, sender: OwnerEnrolment, file: str, database: str, devices: Sequence[str]) -> None:
        """Make all devices of a file the sender's. Raises SenderCloned, DeviceOwned, and the errors of the log."""
        self._enrol(sender)
        if self._look(lambda owners: check_devices(owners, sender.sender, database, devices)):
            return
        for part in encode_parts(devices):
            offset = self._append(OwnerClaim(sender.sender, sender.store, file, database, part))
        # The claim is a proposal: between the look and the record another sender may have come first.
        with self._lock:
            self._read_below(offset + 1)
            if not check_devices(self._index, sender.sender, database, devices):
                raise LogUnavailable("a claim was appended and not read back", retriable=True)

    def devices(self, sender: OwnerEnrolment, database: str) -> list[str]:
        """The devices of a sender in one database by now. Raises SenderCloned, and the errors of the log."""
        self._enrol(sender)
        with self._lock:
            self._read_to_end()
            return list(self._index.devices_of(database, sender.sender))

    def sender(self, sender: str) -> Enrolled | None:
        """A sender, as far as the topic was read."""
        with self._lock:
            return self._index.sender(sender)

    def refresh(self) -> None:
        """Read the topic to its end. Raises LogUnavailable, TopicMissing, ViewUnwritable."""
        with self._lock:
            self._read_to_end()

    def close(self) -> None:
        """Close view and reader."""
        with self._lock:
            self._close_reader()
            self._index.close()

    def _enrol(self, sender: OwnerEnrolment) -> None:
        if self._look(lambda owners: check_store(owners, sender.sender, sender.store)):
            return
        offset = self._append(sender)
        with self._lock:
            self._read_below(offset + 1)
            check_store(self._index, sender.sender, sender.store)

    def _look(self, question: Callable[[Owners], bool]) -> bool:
        """An answer from what was read a moment ago, and if that refuses, from the end. Raises what it raises then."""
        with self._lock:
            # A yes is changed by a move alone, for which nobody waits: most files need no request. Behind a no comes a
            # record, and what that has become is read back.
            if time.monotonic() - self._looked_s < FRESH_S:
                with suppress(SenderCloned, DeviceOwned):
                    return question(self._index)
            self._read_to_end()
            return question(self._index)

    def _append(self, record: OwnerRecord) -> int:
        return append_with(self._appender, self._topic, encode_owner(record), key=record.sender.encode())

    def _read_to_end(self) -> None:
        looked_s = time.monotonic()
        self._read_below(self._log.describe(self._topic).end)
        self._looked_s = looked_s

    def _read_below(self, end: int) -> None:
        deadline = Deadline(READ_TIMEOUT_S)
        reader = self._open_reader()
        try:
            while reader.position(self._topic) < end:
                self._take(reader.poll(RECORDS_AT_ONCE, min(0.2, deadline.left_s())))
                if deadline.passed():
                    raise LogUnavailable(f"topic {self._topic} was not read to its end", retriable=True)
        except BaseException:
            # What was read and not applied is read again.
            self._close_reader()
            raise

    def _take(self, records: Sequence[Record]) -> None:
        for record in records:
            self._index.apply(change_of_record(self._index, record.value), record.offset + 1)

    def _open_reader(self) -> Reader:
        if self._reader is None:
            self._reader = self._log.reader({self._topic: self._index.next}, follow=True)
        return self._reader

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
