"""`headrace seal`: everything written so far becomes segments, on every node."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from headrace.cli.option_groups import grouped
from headrace.cli.options import ClusterOptions, JsonOption, ThroughNodeOption, seconds_of
from headrace.cli.session import admin_session
from headrace.terminal.command import run_command


def register(app: typer.Typer) -> None:
    """Add the command `seal`."""
    app.command()(seal)


@grouped
def seal(
    node: ThroughNodeOption = None,
    *,
    cluster: ClusterOptions,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", parser=seconds_of, help="How long to wait for the slowest node.")
    ] = 120.0,
    json_output: JsonOption = False,
) -> None:
    """Seal everything and wait until every live node has it in segments."""
    with run_command(json_output) as output, admin_session(node, cluster) as admin:
        sealed = admin.seal_all(timeout, output.note if not json_output else lambda _line: None)
        rows = [(each.group, each.version, ", ".join(each.members)) for each in sealed]
        output.result(
            {"groups": [asdict(each) for each in sealed]},
            lambda: output.table(("group", "sealed up to version", "at"), rows),
        )
