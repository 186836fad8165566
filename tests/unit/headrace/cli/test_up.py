"""`headrace up` that ends before it shows a cluster, and `headrace down` behind it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.cli import up
from headrace.cli.main import build_app
from headrace.cluster_file import FILE_NAME, LOCK_NAME, ClusterFile, held_directory, write_cluster_file
from headrace.connectors.kafka.broker_process import write_pid
from headrace.connectors.kafka.broker_settings import BrokerIdentity, directory_mark, save_identity
from headrace.local_cluster import LocalCluster
from headrace.node_process import NodeProcess
from headrace.settings import load_settings


@pytest.mark.parametrize("moment", ["_write_settings", "_show"])
def test_what_was_not_shown_to_run_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """All processes run then, and nobody waits for them any more. The exit code means that nothing was started.

    A node that was restarted ran before, and stays.
    """
    stopped = list[str]()

    def started(local: LocalCluster, _progress: object, restarted: Sequence[str]) -> list[str]:
        local._started, local._restarted = ["kafka", "n1", "n2"], restarted
        return ["kafka", "n1", "n2"]

    def stop(_local: LocalCluster, names: Sequence[str], *_: object) -> list[str]:
        stopped[:] = names
        return []

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalCluster, "start", started)
    monkeypatch.setattr(LocalCluster, "stop", stop)
    monkeypatch.setattr(up, moment, interrupted)
    ended = CliRunner().invoke(build_app(["up"]), ["up", "--restart", "n1", "--dir", str(tmp_path / "cluster")])
    assert (130, ["kafka", "n2"]) == (ended.exit_code, stopped)


def test_down_ends_the_kafka_of_a_start_that_was_killed(tmp_path: Path) -> None:
    """There are no nodes then, and no file of the cluster. `down` did not find it, and `up` advised `down`."""
    broker = (tmp_path / "broker").resolve()
    broker.mkdir()
    save_identity(broker, BrokerIdentity.new(1))
    with subprocess.Popen([sys.executable, "-c", "input()", directory_mark(broker)], stdin=subprocess.PIPE) as left:
        try:
            write_pid(broker, left.pid)
            ended = CliRunner().invoke(build_app(["down"]), ["down", "--dir", str(tmp_path), "--json"])
            assert (0, ["kafka"]) == (ended.exit_code, json.loads(ended.stdout)["stopped"]), ended.stderr
            left.wait(10)
        finally:
            left.kill()
    again = CliRunner().invoke(build_app(["down"]), ["down", "--dir", str(tmp_path)])
    assert (1, True) == (again.exit_code, "no cluster was started" in again.stderr)


def test_a_directory_that_cannot_be_used_is_named_before_anything_starts(tmp_path: Path) -> None:
    """A file in its place, or in that of a parent, and what to do. It was an error of the broker's pid file."""
    (tmp_path / "file").write_text("mine")
    for place, named in (("file", "file: Not a directory"), ("file/x", f"{tmp_path}/file: Not a directory")):
        ended = CliRunner().invoke(build_app(["up"]), ["up", "--dir", str(tmp_path / place)])
        assert (1, 2) == (ended.exit_code, len(ended.stderr.splitlines())), ended.stderr
        assert f"error: no cluster can be in {tmp_path / place}: " in ended.stderr
        assert named in ended.stderr
        assert "what to do: free space, or name a directory that can be written with --dir" in ended.stderr


@pytest.mark.parametrize("named", ["data", ".", "../D"])
def test_the_next_command_finds_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    """`--dir .` wrote them into the parent folder, where the printed commands did not look for them."""
    (tmp_path / "D").mkdir()
    monkeypatch.chdir(tmp_path / "D")
    document, shown = started_in(monkeypatch, named)
    assert tmp_path / "D/headrace.toml" == Path(document["settings_file"]).resolve()
    assert "k:1" == load_settings().cluster.bootstrap
    assert "headrace query 'SHOW TABLES'\n" in shown


def test_commands_for_settings_of_another_folder_have_their_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those beside a directory elsewhere are not read here."""
    monkeypatch.chdir(tmp_path)
    document, shown = started_in(monkeypatch, "there/D")
    assert str(tmp_path / "there/headrace.toml") == document["settings_file"]
    assert "headrace query 'SHOW TABLES' --bootstrap k:1 --cluster headrace" in shown


def started_in(monkeypatch: pytest.MonkeyPatch, named: str) -> tuple[dict[str, Any], str]:
    """The document of `up`, and what it shows to people, without anything that runs."""

    def started(local: LocalCluster, *_: object) -> list[str]:
        local.file = ClusterFile("headrace", "k:1", [NodeProcess("n1", "http://127.0.0.1:1")])
        return ["kafka", "n1"]

    monkeypatch.setattr(LocalCluster, "start", started)
    monkeypatch.setattr(LocalCluster, "broker_pid", 0)
    shown = CliRunner().invoke(build_app(["up"]), ["up", "--dir", named])
    document = CliRunner().invoke(build_app(["up"]), ["up", "--dir", named, "--json"])
    assert (0, 0) == (shown.exit_code, document.exit_code), shown.stderr
    return json.loads(document.stdout), shown.stdout


@pytest.mark.parametrize("command", ["up", "down"])
def test_one_command_at_a_time_starts_or_stops_a_cluster(tmp_path: Path, command: str) -> None:
    """Two `up` would start the same nodes, and `down` would leave what a running `up` starts next.

    The call may be repeated.
    """
    write_cluster_file(tmp_path, ClusterFile("c", "k:1", [NodeProcess("n1", "127.0.0.1:1", removed=True)], 1))
    with held_directory(tmp_path):
        ended = CliRunner().invoke(build_app([command]), [command, "--dir", str(tmp_path), "--json"])
    error = json.loads(ended.stderr)["error"]
    assert (1, "ClusterBusy", True) == (ended.exit_code, error["type"], error["retriable"])
    assert f"another command starts or stops the cluster in {tmp_path}: pid {os.getpid()}" == error["message"]


def test_down_needs_no_disk_that_takes_a_lock(tmp_path: Path) -> None:
    """One that has become read-only, say: no cluster can start there, and what runs must be stopped."""
    write_cluster_file(tmp_path, ClusterFile("c", "k:1", [NodeProcess("n1", "127.0.0.1:1", removed=True)], 1))
    (tmp_path / LOCK_NAME).mkdir()
    assert 1 == CliRunner().invoke(build_app(["up"]), ["up", "--dir", str(tmp_path)]).exit_code
    assert 0 == CliRunner().invoke(build_app(["down"]), ["down", "--dir", str(tmp_path)]).exit_code


def test_up_prints_a_command_that_a_shell_takes_and_a_warning_that_names_its_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path with a space is quoted. An inline table in `headrace.toml` is not edited."""
    monkeypatch.setattr(LocalCluster, "start", lambda *_: ["kafka"])
    settings = tmp_path / "headrace.toml"
    settings.write_text('cluster = { name = "mine" }\n')
    directory = tmp_path / "my data"
    ended = CliRunner().invoke(build_app(["up"]), ["up", "--dir", str(directory)])
    assert (0, True) == (ended.exit_code, f"headrace down --dir '{directory}'\n" in ended.stdout)
    (warning,) = ended.stderr.splitlines()
    assert warning.startswith(f"warning: {settings} was not updated (set these in it: ")
    assert 1 == warning.count(str(settings))


def test_a_node_that_does_not_run_has_no_pid_and_is_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`up` shows a removed node without a process, and `down` names only what it has stopped."""
    write_cluster_file(tmp_path, ClusterFile("c", "k:1", [NodeProcess("n1", "127.0.0.1:1", removed=True)], 1))
    monkeypatch.setattr(LocalCluster, "start", lambda *_: [])
    shown = CliRunner().invoke(build_app(["up"]), ["up", "--dir", str(tmp_path)]).stdout
    (line,) = [line for line in shown.splitlines() if "removed" in line]
    assert ["n1", "http://127.0.0.1:1", "", "", "removed"] == [cell.strip() for cell in line.strip("│").split("│")]
    ended = CliRunner().invoke(build_app(["down"]), ["down", "--dir", str(tmp_path), "--json"])
    assert {"stopped": []} == json.loads(ended.stdout)


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[]", b'{"cluster": "x"}', b'{"nodes": [{"pid": 1}]}'])
@pytest.mark.parametrize("command", ["up", "down"])
def test_a_damaged_file_of_a_cluster_is_an_error(tmp_path: Path, command: str, content: bytes) -> None:
    """As after an edit. It was a traceback, and nobody could see what to do with the processes that run."""
    (tmp_path / FILE_NAME).write_bytes(content)
    ended = CliRunner().invoke(build_app([command]), [command, "--dir", str(tmp_path)])
    assert 1 == ended.exit_code
    assert f"error: {tmp_path / FILE_NAME} is not what headrace up writes" == ended.stderr.splitlines()[0]
    assert content == (tmp_path / FILE_NAME).read_bytes()
