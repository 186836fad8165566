"""`headrace verify`: compare the data of all nodes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from headrace.cli.options import BootstrapOption, ClusterOption, JsonOption, SettingsOption
from headrace.cli.session import cluster_session
from headrace.terminal.command import run_command

DIFFERENCES_SHOWN = 10
"""Most differences of one group that people are shown; `--json` has all."""


def register(app: typer.Typer) -> None:
    """Add the command `verify`."""
    app.command()(verify)


def verify(
    cluster: ClusterOption = None,
    bootstrap: BootstrapOption = None,
    allow_missing: Annotated[
        int, typer.Option("--allow-missing", metavar="N", help="Members that may be down or late.", min=0)
    ] = 0,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for late members.")] = 60.0,
    settings: SettingsOption = None,
    json_output: JsonOption = False,
) -> None:
    """Compare all members of every group: exit 0 equal, 1 different, 2 a member down or late."""
    from headrace.consumers.integrity.verify import exit_code

    code = 0
    with run_command(json_output) as output, cluster_session(cluster, bootstrap, settings) as session:
        with session.admin_client() as admin:
            verdicts = admin.verify(timeout, output.note if not json_output else lambda _line: None)
        code = exit_code(verdicts, allow_missing)
        rows = [
            (
                verdict.group,
                verdict.version,
                verdict.segments,
                ", ".join(verdict.members),
                ", ".join(verdict.missing) or "-",
                "equal" if verdict.ok else "different",
            )
            for verdict in verdicts
        ]

        def show() -> None:
            output.table(("group", "version", "segments", "compared", "missing", "result"), rows)
            # Below the table, where nothing is cut: they are what an operator acts on.
            for verdict in verdicts:
                for difference in verdict.differences[:DIFFERENCES_SHOWN]:
                    output.line(f"group {verdict.group}: {difference}")

        output.result(
            {"ok": code == 0, "groups": [{**asdict(verdict), "ok": verdict.ok} for verdict in verdicts]},
            show,
        )
    # Outside of `run_command`, which would otherwise have to know that these codes are results and no errors.
    raise typer.Exit(code)
