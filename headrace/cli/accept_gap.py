"""`headrace accept-gap`: a group whose log lost records for good goes on without them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from headrace.cli.node import BootstrapOption, ClusterOption
from headrace.cli.output import JsonOption, SettingsOption, run_command
from headrace.cli.session import cluster_session


def register(app: typer.Typer) -> None:
    """Add the command `accept-gap`."""
    app.command(name="accept-gap")(accept_gap)


def accept_gap(
    group: Annotated[str, typer.Option("--group", metavar="G", help="The group whose log was lost.")],
    resume: Annotated[
        int | None,
        typer.Option(metavar="OFFSET", help="Where the log goes on, where the nodes cannot tell.", min=0),
    ] = None,
    allow_missing: Annotated[
        int,
        typer.Option(
            "--allow-missing", metavar="N", help="Members that may be down, with whatever only they hold.", min=0
        ),
    ] = 0,
    cluster: ClusterOption = None,
    bootstrap: BootstrapOption = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for the group to go on.")] = 60.0,
    settings: SettingsOption = None,
    json_output: JsonOption = False,
) -> None:
    """Let a group go on whose log was truncated, made again or trimmed too far: what members hold stays, what only the log had is gone."""
    with run_command(json_output) as output, cluster_session(cluster, bootstrap, settings) as session:
        with session.operations() as operations:
            accepted = operations.accept_gap(group, resume, allow_missing, timeout)
        output.result(
            asdict(accepted),
            f"group {group} goes on at offset {accepted.offset}, behind version {accepted.version} of node {accepted.member}",
        )
