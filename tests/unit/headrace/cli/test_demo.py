"""`headrace demo` and the directory that it gets."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from headrace.cli.main import build_app
from headrace.cluster_file import ClusterFile, read_cluster_file, write_cluster_file
from headrace.node_process import NodeProcess


def test_a_demo_does_not_take_the_directory_of_a_cluster(tmp_path: Path) -> None:
    """It would write another `cluster.json`, start its own nodes there, and in the end stop the Kafka of the cluster."""
    file = ClusterFile("plant", "127.0.0.1:1", [NodeProcess("n1", "127.0.0.1:2")], 1)
    write_cluster_file(tmp_path, file)
    ended = CliRunner().invoke(build_app(["demo"]), ["demo", "--data-dir", str(tmp_path)])
    assert (2, f"error: {tmp_path} is not empty") == (ended.exit_code, ended.stderr.splitlines()[0])
    assert file == read_cluster_file(tmp_path)
