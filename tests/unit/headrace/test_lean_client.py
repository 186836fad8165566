"""The client of benchmarks that costs little."""

from __future__ import annotations

import socket
import threading

import pytest

from headrace.bench.asking import AnswerUnexpected, LeanClient

HEAD = b"HTTP/1.1 %d Any\r\nContent-Length: %d\r\n\r\n"


def asked(answer: bytes) -> tuple[tuple[int, object], bytes]:
    """What the client makes of an answer, and what it has sent."""
    received = list[bytes]()

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            received.append(connection.recv(65_536))
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            return LeanClient(f"http://127.0.0.1:{listening.getsockname()[1]}").ask({"sql": "SELECT 1"}), received[0]
        finally:
            thread.join(60.0)


@pytest.mark.parametrize("status", [200, 503])
def test_an_answer_is_its_status_and_its_document(status: int) -> None:
    """One request on a connection that is closed behind it."""
    answer, sent = asked(HEAD % (status, 8) + b'{"n": 1}')
    assert (status, {"n": 1}) == answer
    head, _, body = sent.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /api/v1/query HTTP/1.1\r\n")
    assert b"connection: close" in head
    assert b'{"sql": "SELECT 1"}' == body


@pytest.mark.parametrize("answer", [b"", HEAD % (200, 9) + b'{"n": 1}', b"HTTP/1.1 200 OK\r\n\r\n{}"])
def test_an_answer_that_is_cut_is_an_error(answer: bytes) -> None:
    """No part of one counts as fast."""
    with pytest.raises(AnswerUnexpected):
        asked(answer)
