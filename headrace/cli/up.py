"""`headrace up` and `headrace down`: a whole cluster on this machine in one command."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import JsonOption
from headrace.terminal.command import run_command

DirectoryOption = Annotated[Path, typer.Option("--dir", metavar="D", help="Directory of the cluster's data.")]
DEFAULT_DIRECTORY = Path(".headrace")


def register(app: typer.Typer) -> None:
    """Add the commands `up` and `down`."""
    app.command()(up)
    app.command()(down)


def up(
    nodes: Annotated[int, typer.Option(min=1, max=9, help="How many nodes; each holds every row.")] = 3,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    cluster: Annotated[str, typer.Option(metavar="C", help="Name of the cluster.")] = "headrace",
    json_output: JsonOption = False,
) -> None:
    """Start Kafka and nodes, and return when all of them serve."""
    with run_command(json_output) as output:
        from headrace.local_cluster import FILE_NAME, LocalCluster

        # A directory keeps its cluster: name, ports and data are those of the first `up`.
        known = (directory / FILE_NAME).exists()
        local = LocalCluster.load(directory) if known else LocalCluster(directory, cluster, nodes)
        local.start(output.note)
        document = {**asdict(local.file), "dir": str(directory)}
        rows = [(node.name, local.url(node.name), node.pid) for node in local.file.nodes]

        def show() -> None:
            output.table(("node", "address", "pid"), rows, f"cluster {local.cluster}, Kafka at {local.bootstrap}")
            output.line(f"ask:   headrace query 'SHOW TABLES' --node {local.url(local.file.nodes[0].name)}")
            output.line(
                f"write: headrace write FILE --bootstrap {local.bootstrap} --cluster {local.cluster} --database DB"
            )
            output.line(f"stop:  headrace down --dir {directory}")

        output.result(document, show)


def down(directory: DirectoryOption = DEFAULT_DIRECTORY, json_output: JsonOption = False) -> None:
    """Stop the nodes and Kafka of a directory; data stays."""
    with run_command(json_output) as output:
        from headrace.local_cluster import LocalCluster

        local = LocalCluster.load(directory)
        local.stop()
        output.result(
            {"stopped": [node.name for node in local.file.nodes]},
            f"cluster {local.cluster} is stopped, its data stays in {directory}",
        )
