"""A connection whose owner is asked while the other side is silent, or takes nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from headrace.connectors import patient_socket
from headrace.connectors.patient_socket import PatientSocket

BODY = bytes(range(256)) * 8_192
WAIT_S = 60.0


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends with buffers that are smaller than the body, and silences that are short."""
    monkeypatch.setattr(patient_socket, "SILENCE_S", 0.05)
    left, right = socket.socketpair()
    left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    with left, right:
        yield left, right


def test_a_body_that_a_slow_link_takes_is_sent_to_its_end(ends: tuple[socket.socket, socket.socket]) -> None:
    """However long it needs, and however often the owner is asked: what counts is that some of it goes."""
    left, right = ends
    looks, received, may_read = list[int](), bytearray(), threading.Semaphore(0)

    def look(left_s: float) -> None:
        assert 0 < left_s <= WAIT_S
        looks.append(len(received))
        may_read.release()

    def read() -> None:
        # A part for each silence, and the rest behind the third.
        while len(received) < len(BODY):
            if len(looks) < 3:
                assert may_read.acquire(timeout=WAIT_S)
            received.extend(right.recv(65_536))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with PatientSocket(left, WAIT_S, look) as patient:
        patient.sendall(memoryview(BODY))
        reader.join(WAIT_S)
    assert BODY == bytes(received)
    assert len(looks) >= 3


def test_the_owner_ends_a_send_that_nobody_takes(ends: tuple[socket.socket, socket.socket]) -> None:
    """By its own error; without an owner who minds, the time without any progress does."""
    left, _ = ends

    def gone(_left_s: float) -> None:
        raise ConnectionAbortedError("no sign of life")

    with PatientSocket(left, WAIT_S, gone) as patient, pytest.raises(ConnectionAbortedError, match="no sign"):
        patient.sendall(BODY)


def test_a_send_without_progress_has_its_time(ends: tuple[socket.socket, socket.socket]) -> None:
    """As a read has."""
    left, _ = ends
    with PatientSocket(left, 0.2, lambda _left_s: None) as patient, pytest.raises(TimeoutError):
        patient.sendall(BODY)
