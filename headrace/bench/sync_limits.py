"""What moving files costs without Headrace: the legs that `headrace bench sync` has beside its own.

Each returns the CPU seconds of the processes that it started itself. Files that arrive are synced, as ours are.
"""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.connectors.deadline import Deadline
from headrace.connectors.files import fsync_file
from headrace.connectors.log.kafka_settings import RECORD_BYTES_MAX, appender_settings, consumer_settings
from headrace.schemas.errors import HeadraceError

CHUNK_BYTES = 1 << 20
BATCH_MESSAGES = 64
TIMEOUT_S = 300.0
POLL_S = 0.05


class LegFailed(HeadraceError):
    """What a leg compares with did not do its work."""


def check_arrived(files: Sequence[Path], target: Path, what: str) -> list[Path]:
    """The files that arrived. Raises LegFailed unless there are as many, of the same sizes."""
    arrived = [path for path in target.rglob("*") if path.is_file()]
    if sorted(path.stat().st_size for path in arrived) != sorted(path.stat().st_size for path in files):
        raise LegFailed(f"{what} is not complete")
    return arrived


def hashed(files: Sequence[Path]) -> float:
    """MD5 of every file: what the digest of rsync's daemon costs at one end."""
    for path in files:
        with path.open("rb") as file:
            hashlib.file_digest(file, "md5")
    return 0.0


def copied_through_socket(files: Sequence[Path], target: Path) -> float:
    """Every file by `sendfile` through a connection, and synced behind it."""
    target.mkdir()
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        sizes = [path.stat().st_size for path in files]
        taker = threading.Thread(target=_take, args=(listener, sizes, target), daemon=True)
        taker.start()
        with socket.create_connection(listener.getsockname()) as connection:
            for path in files:
                with path.open("rb") as file:
                    connection.sendfile(file)
        taker.join(TIMEOUT_S)
    check_arrived(files, target, "the copy through a socket")
    return 0.0


def _take(listener: socket.socket, sizes: Iterable[int], target: Path) -> None:
    connection, _ = listener.accept()
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with connection:
        for number, size in enumerate(sizes):
            with (target / str(number)).open("wb") as file:
                left = size
                while left:
                    taken = connection.recv_into(buffer[: min(left, CHUNK_BYTES)])
                    if not taken:
                        return
                    file.write(buffer[:taken])
                    left -= taken
                file.flush()
                os.fsync(file.fileno())


def drained(files: Sequence[Path], target: Path, bootstrap: str, topic: str) -> float:
    """Every file as chunks of a topic, read back, written and synced: the log alone, without anyone who decides."""
    target.mkdir()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(topic, 1, 1, config={"max.message.bytes": str(RECORD_BYTES_MAX)})
    admin.create_topics([new])[topic].result(TIMEOUT_S)
    try:
        taker = threading.Thread(target=_drain, args=(bootstrap, topic, files, target), daemon=True)
        taker.start()
        _produce(bootstrap, topic, files)
        taker.join(TIMEOUT_S)
    finally:
        admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    check_arrived(files, target, "the copy through a topic")
    return 0.0


def _produce(bootstrap: str, topic: str, files: Sequence[Path]) -> None:
    producer = Producer(appender_settings(bootstrap, {}))
    for path in files:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                while True:
                    try:
                        producer.produce(topic, chunk)
                        break
                    except BufferError:
                        producer.poll(POLL_S)
    if producer.flush(TIMEOUT_S):
        raise LegFailed("Kafka has not taken all chunks")


def _drain(bootstrap: str, topic: str, files: Sequence[Path], target: Path) -> None:
    consumer = Consumer(consumer_settings(bootstrap, "headrace-bench", {}))
    with closing(consumer):
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        deadline, chunks = Deadline(TIMEOUT_S), _Chunks(consumer, Deadline(TIMEOUT_S))
        for number, path in enumerate(files):
            left = path.stat().st_size
            with (target / str(number)).open("wb") as file:
                while left and not deadline.passed():
                    data = chunks.next()
                    file.write(data)
                    left -= len(data)
                file.flush()
                os.fsync(file.fileno())


class _Chunks:
    """The values of a topic, one after the other."""

    def __init__(self, consumer: Consumer, deadline: Deadline) -> None:
        self._consumer = consumer
        self._deadline = deadline
        self._values: list[bytes] = []

    def next(self) -> bytes:
        while not self._values:
            if self._deadline.passed():
                raise LegFailed("the topic was not drained in time")
            found = self._consumer.consume(BATCH_MESSAGES, POLL_S)
            self._values = [each.value() or b"" for each in reversed(found) if each.error() is None]
        return self._values.pop()


def synced_by_rsync(files: Sequence[Path], target: Path, port: int) -> float:
    """Every file by rsync's daemon with MD5, and synced behind it: (CPU seconds of both rsync processes)."""
    target.mkdir()
    settings = target.with_name("rsyncd.conf")
    settings.write_text(
        f"use chroot = no\nport = {port}\naddress = 127.0.0.1\n"
        # A daemon of root writes as nobody unless it is told.
        + ("uid = 0\ngid = 0\n" if os.geteuid() == 0 else "")
        + f"[limit]\npath = {target}\nread only = no\n"
    )
    before = os.times()
    daemon = subprocess.Popen(["rsync", "--daemon", "--no-detach", f"--config={settings}"])
    try:
        _send_by_rsync(files, port)
    finally:
        daemon.terminate()
        daemon.wait()
    for path in check_arrived(files, target, "the copy by rsync"):
        fsync_file(path)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def _send_by_rsync(files: Sequence[Path], port: int) -> None:
    names = "".join(f"{path}\n" for path in files)
    words = ["rsync", "--relative", "--checksum-choice=md5", "--files-from=-", "/", f"rsync://127.0.0.1:{port}/limit/"]
    deadline = Deadline(TIMEOUT_S)
    while True:
        done = subprocess.run(words, input=names, text=True, capture_output=True, check=False)
        if done.returncode == 0:
            return
        # The daemon may not listen yet.
        if deadline.passed():
            raise LegFailed(f"rsync ended with exit code {done.returncode}: {done.stderr[-200:]}")
        time.sleep(POLL_S)
