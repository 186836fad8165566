"""`headrace sync send` from a real edge node to the topics of a centre on a real broker, with a receiver of the test."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from headrace.connectors.kafka.broker import BrokerInfo
from headrace.consumers.sync.send_report import FileUnknown, check_files
from headrace.consumers.sync.sender import STEPS
from headrace.consumers.sync.state_directory import StateDirectory
from headrace.schemas.sync_records import SyncManifest, Verdict
from tests.e2e.conftest import TryDisk
from tests.e2e.fake_centre import FakeReceiver, make_centre
from tests.e2e.test_edge_node import EdgeNode, edge_node
from tests.waiting import eventually

FIRST_S = 1_700_000_000


class Site:
    """An edge node, a centre, and the state directory of its sender."""

    def __init__(self, node: EdgeNode, bootstrap: str, cluster: str, receiver: FakeReceiver, directory: Path) -> None:
        self.node, self.bootstrap, self.cluster = node, bootstrap, cluster
        self.receiver, self.directory = receiver, directory
        self.written = 0

    def write(self, rows: int, text: str = "x") -> None:
        """Rows of four devices, each with a value of its own."""
        lines = [
            f'm,dev=d{each % 4} v={each}i,t="{text}" {FIRST_S + each}'
            for each in range(self.written, self.written + rows)
        ]
        self.written += rows
        self.post("/write?db=d&precision=s", "\n".join(lines))

    def post(self, path: str, body: str, kind: str = "text/plain") -> None:
        """One request to the node that must succeed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.node.port, timeout=60)
        connection.request("POST", path, body, {"content-type": kind})
        answer = connection.getresponse()
        assert answer.status in (200, 204), answer.read()
        connection.close()

    def command(self, *words: str) -> list[str]:
        """The command line of a sender."""
        found = [sys.executable, "-m", "headrace", "sync", "send", "--node", self.node.url, "--json"]
        found += ["--to-bootstrap", self.bootstrap, "--to-cluster", self.cluster, "--data-dir", str(self.directory)]
        return [*found, "--seal-age-s", "0", *words]

    def send(self, *words: str) -> tuple[int, dict[str, Any], str]:
        """One round: exit code, counts and what it printed for people."""
        done = subprocess.run(self.command("--once", *words), capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, json.loads(done.stdout or "{}"), done.stderr

    def values(self) -> list[int]:
        """The values that the centre has accepted, in order."""
        return sorted(self.receiver.rows().column("v").to_pylist())


@contextmanager
def site(tmp_path: Path, broker: BrokerInfo) -> Iterator[Site]:
    """All of it, stopped at the end."""
    cluster = f"c{uuid.uuid4().hex[:8]}"
    receiver = FakeReceiver(broker.bootstrap, make_centre(broker.bootstrap, cluster))
    try:
        with edge_node(tmp_path) as node:
            node.start()
            yield Site(node, broker.bootstrap, cluster, receiver, tmp_path / "state")
    finally:
        receiver.stop()
    assert receiver.problems == []


@pytest.mark.slow(25)
def test_a_sender_that_is_killed_at_each_step_sends_each_row_once(tmp_path: Path, broker: BrokerInfo) -> None:
    """kill -9 at every named step, then one undisturbed round: each value is there once, no file was sent twice."""
    with site(tmp_path, broker) as found:
        for step in STEPS:
            found.write(10)
            worker = [sys.executable, "-m", "tests.e2e.sync_send_worker", found.node.url, found.bootstrap]
            done = subprocess.run(
                [*worker, found.cluster, str(found.directory), step],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == -signal.SIGKILL, (step, done.stderr)
        code, counts, _ = found.send()
        assert (code, counts["failed"], counts["waiting"], counts["rejected"]) == (0, 0, 0, 0)
        assert found.values() == list(range(found.written))
        # Once more there is nothing to send.
        assert found.send()[1]["chunks_sent"] == 0


@pytest.mark.slow(30)
def test_a_rejected_file_and_a_restart_of_the_node(tmp_path: Path, broker: BrokerInfo) -> None:
    """A rejection gives exit code 3 and is shown; a second sender is refused; a restart of the node costs nothing."""
    with site(tmp_path, broker) as found:
        found.write(40)

        def reject_first(manifest: SyncManifest, decided: int) -> tuple[Verdict, str]:
            del manifest
            return (Verdict.REJECTED, "device d0 is of sender X") if decided == 1 else (Verdict.ACCEPTED, "")

        found.receiver.decide = reject_first
        code, counts, _ = found.send()
        assert (code, counts["rejected"]) == (3, 1)
        [sender] = _status(found)["senders"]
        [rejected] = [each for each in sender["files"] if each["state"] == "rejected"]
        assert "device d0 is of sender X" in rejected["error"]
        # A sender that runs, and a centre that reads nothing while the node restarts.
        found.receiver.decide, found.receiver.paused = (lambda _manifest, _decided: (Verdict.ACCEPTED, "")), True
        found.write(40)
        with subprocess.Popen(
            found.command("--interval-s", "1"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as running:
            eventually(lambda: _sending(found), "a file under way", timeout_s=120, briefly=True)
            code, _, printed = found.send()
            assert (code, f"pid {running.pid}" in printed) == (1, True)
            found.node.stop(signal.SIGKILL)
            found.node.start()
            found.receiver.paused = False
            _resend(found, sender["sender"], rejected["file"])
            # Also what the centre had accepted behind that file may come again; there it changes nothing.
            eventually(lambda: set(found.values()) == set(range(80)), "all rows", timeout_s=90)
            running.send_signal(signal.SIGTERM)
            assert running.wait(30) == 0
        # Before the look at what it found: what was sent up to here may still come to it.
        found.receiver.stop()
        again = "was sent again after it was accepted"
        found.receiver.problems = [each for each in found.receiver.problems if again not in each]


@pytest.mark.parametrize(
    ("number", "once", "code"),
    [(signal.SIGTERM, True, 3), (signal.SIGTERM, False, 0), (signal.SIGINT, True, 130), (signal.SIGINT, False, 130)],
)
def test_a_sender_that_is_stopped_before_its_first_round(
    tmp_path: Path, number: signal.Signals, once: bool, code: int
) -> None:
    """Nobody takes it for one that has sent everything; a service that is stopped has not failed."""
    with socket.create_server(("127.0.0.1", 0)) as kafka:
        # Nobody listens at the node: the centre is asked first.
        command = [sys.executable, "-m", "headrace", "sync", "send", "--node", "127.0.0.1:1", "--to-cluster", "c"]
        command += [
            "--to-bootstrap",
            f"127.0.0.1:{kafka.getsockname()[1]}",
            "--data-dir",
            str(tmp_path / "s"),
            "--json",
        ]
        with subprocess.Popen(
            [*command, *(["--once"] if once else [])], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            connection, _ = kafka.accept()
            with connection:
                running.send_signal(number)
                printed, refused = running.communicate(timeout=60)
    assert code == running.returncode
    if number is signal.SIGINT:
        assert ("", "Interrupted") == (printed, json.loads(refused)["error"]["type"])
    else:
        assert 0 == json.loads(printed)["accepted"]


def test_a_file_that_a_sender_does_not_know_is_not_sent_again(tmp_path: Path) -> None:
    """A wrong name is refused where it is given, and not noted in the log of a round that comes later."""
    state = StateDirectory.open(tmp_path, "c", {})
    state.recover()
    # A sender that runs has its state to itself.
    check_files(tmp_path, ["none"])
    state.close()
    with pytest.raises(FileUnknown, match="'none'"):
        check_files(tmp_path, ["none"])
    check_files(tmp_path, [])


def test_a_full_disk_of_the_state_directory_is_waited_for(
    tmp_path: Path, broker: BrokerInfo, small_disk_if_allowed: TryDisk
) -> None:
    """While nothing can be written to the state directory nothing is sent; with space the round continues."""
    if not small_disk_if_allowed(tmp_path / "disk", 2):
        pytest.skip("this user may not mount a small disk")
    with site(tmp_path, broker) as found:
        found.directory = tmp_path / "disk" / "state"
        found.write(4)
        assert found.send()[0] == 0
        filler = tmp_path / "disk" / "filler"
        # Without a buffer: closing it would write once more.
        descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT)
        with suppress(OSError):
            while os.write(descriptor, bytes(4096)):
                pass
        os.close(descriptor)
        found.write(4)
        with subprocess.Popen(
            found.command("--once"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            assert running.stderr is not None
            lines = iter(running.stderr.readline, "")
            assert any("No space left" in line or "space" in line for line in lines)
            filler.unlink()
            assert running.wait(60) == 0
        assert found.values() == list(range(8))


def _sending(found: Site) -> bool:
    return any(each["state"] == "sending" for sender in _status(found)["senders"] for each in sender["files"])


def _status(found: Site) -> dict[str, Any]:
    command = [sys.executable, "-m", "headrace", "sync", "status", "--json", "--data-dir", str(found.directory)]
    status: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return status


def _resend(found: Site, sender: str, file: str) -> None:
    command = [sys.executable, "-m", "headrace", "sync", "resend", "--sender", sender, "--file", file]
    subprocess.run([*command, "--data-dir", str(found.directory)], check=True, capture_output=True)
