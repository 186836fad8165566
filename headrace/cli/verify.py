"""`headrace verify`: compare the data of all nodes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.option_groups import grouped
from headrace.cli.options import ClusterOptions, JsonOption, ThroughNodeOption, seconds_of
from headrace.cli.session import admin_session
from headrace.terminal.command import run_command
from headrace.terminal.output import counted

if TYPE_CHECKING:
    from headrace.consumers.integrity.verify import GroupVerdict

DIFFERENCES_SHOWN = 10
"""Most differences of one group that people are shown; `--json` has all."""


def register(app: typer.Typer) -> None:
    """Add the command `verify`."""
    app.command()(verify)


@grouped
def verify(
    node: ThroughNodeOption = None,
    *,
    cluster: ClusterOptions,
    allow_missing: Annotated[
        int, typer.Option("--allow-missing", metavar="N", help="Members that may be down or late.", min=0)
    ] = 0,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", parser=seconds_of, help="How long to wait for late members.")
    ] = 60.0,
    read_files: Annotated[
        bool,
        typer.Option("--read-files", help="Each member reads all its segments again: finds bytes that a disk changed."),
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Compare all members of every group: exit 0 equal, 1 different, 2 a member down or late.

    Members compare what they sealed; with --read-files also what their disks hold of it. A group with one member has
    nobody to compare with: its files, and the end of its log, are read again.
    """
    from headrace.consumers.integrity.verify import exit_code

    code = 0
    with run_command(json_output) as output, admin_session(node, cluster) as admin:
        verdicts = admin.verify(timeout, output.note if not json_output else lambda _line: None, read_files=read_files)
        code = exit_code(verdicts, allow_missing)

        def show() -> None:
            output.table(("group", "version", "segments", "compared", "missing", "result"), map(_row, verdicts))
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


def _row(verdict: GroupVerdict) -> tuple[object, ...]:
    members, missing = ", ".join(verdict.members), ", ".join(verdict.missing) or "-"
    return verdict.group, verdict.version, verdict.segments, members, missing, result_of(verdict)


def result_of(verdict: GroupVerdict) -> str:
    """The comparison of a group for people: `equal (2 of 3; n3 missing)`, or `different`."""
    if not verdict.ok:
        return "different" if len(verdict.members) > 1 else "damaged"
    if not verdict.missing:
        return _equal(verdict) if len(verdict.members) > 1 else _alone(verdict)
    compared = len(verdict.members)
    of = f"{compared} of {compared + len(verdict.missing)}; {', '.join(verdict.missing)} missing"
    # One member, or none, was compared with nobody.
    return f"equal ({of})" if compared > 1 else f"not compared ({of})"


def _equal(verdict: GroupVerdict) -> str:
    return f"equal, {counted(verdict.files_read, 'file')} as written" if verdict.files_read else "equal"


def _alone(verdict: GroupVerdict) -> str:
    """The result of a group that has one member, which could be compared with nothing but itself."""
    read = f"{counted(verdict.files_read, 'file')} and {counted(verdict.records_read, 'record')} of its log"
    return f"one replica: {read} are as written"
