"""`headrace accept-gap`: continue a group whose log lost records for good."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from headrace.cli.option_groups import grouped
from headrace.cli.options import ClusterOptions, JsonOption, ThroughNodeOption, seconds_of
from headrace.cli.session import admin_session
from headrace.terminal.command import run_command


def register(app: typer.Typer) -> None:
    """Add the command `accept-gap`."""
    app.command(name="accept-gap")(accept_gap)


@grouped
def accept_gap(
    group: Annotated[str, typer.Option("--group", metavar="G", help="The group whose log was lost.")],
    resume: Annotated[
        int | None,
        typer.Option(
            metavar="OFFSET", help="Offset at which the log continues, where the nodes cannot know it.", min=0
        ),
    ] = None,
    allow_missing: Annotated[
        int,
        typer.Option(
            "--allow-missing", metavar="N", help="Members that may be down, with whatever only they hold.", min=0
        ),
    ] = 0,
    node: ThroughNodeOption = None,
    *,
    cluster: ClusterOptions,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", parser=seconds_of, help="How long to wait for the group to continue.")
    ] = 60.0,
    json_output: JsonOption = False,
) -> None:
    """Continue a group whose log was truncated, created again or trimmed too far.

    What members hold stays; what only the log had is lost.
    """
    with run_command(json_output) as output, admin_session(node, cluster) as admin:
        accepted = admin.accept_gap(group, resume, allow_missing, timeout)
        output.result(
            asdict(accepted),
            f"group {group} continues at offset {accepted.offset}, behind version {accepted.version} of node {accepted.member}",
        )
