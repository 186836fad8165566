"""`headrace sync verify`: is every row of an edge at its centre?"""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import date
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.option_groups import grouped
from headrace.cli.options import ClusterOptions, JsonOption
from headrace.cli.session import cluster_session, ready_node
from headrace.terminal.command import UsageInvalid, run_command
from headrace.terminal.output import counted

if TYPE_CHECKING:
    from headrace.sync_verify import SyncComparison, WantedDays
    from headrace.terminal.output import Output


@grouped
def verify(
    node: Annotated[str, typer.Option("--node", metavar="HOST:PORT", help="A node of the store that sends.")],
    *,
    cluster: ClusterOptions,
    databases: Annotated[str, typer.Option("--databases", metavar="A,B", help="Compare these alone.")] = "",
    since: Annotated[str, typer.Option("--since", metavar="YYYY-MM-DD", help="Compare from this day on.")] = "",
    json_output: JsonOption = False,
) -> None:
    """Compare a store with its centre: exit 0 equal, 1 different, 2 not all is accepted yet.

    Each table and day is compared by rows and by a checksum of each series, of the devices of this sender alone.
    """
    code = 0
    with run_command(json_output) as output:
        from headrace.node_client import NodeClient

        wanted, address = _wanted(databases, since), NodeClient(node).url
        with cluster_session(cluster) as session:
            from headrace.sync_verify import CentreNode, EdgeNode, compare_store

            centre = CentreNode(session.log, session.topics, session.slot_table, ready_node(cluster))
            edge = EdgeNode(address, centre.identity(), session.topics.cluster)
            found = compare_store(
                edge, centre, wanted, time.time(), (lambda _line: None) if json_output else output.note
            )
        code = _report(output, found)
    # Outside of `run_command`, which would otherwise have to know that these codes are results and no errors.
    raise typer.Exit(code)


def _wanted(databases: str, since: str) -> WantedDays:
    from headrace.sync_verify import WantedDays

    names = frozenset(each.strip() for each in databases.split(",") if each.strip())
    try:
        return WantedDays(names, date.fromisoformat(since) if since else None)
    except ValueError:
        raise UsageInvalid(f"--since {since} is no day", action="write it like 2026-05-01") from None


def _report(output: Output, found: SyncComparison) -> int:
    """Show the comparison; its exit code."""
    from headrace.consumers.sync.comparison import exit_code

    code = exit_code(found.days, bool(found.unsent))
    document = {
        "ok": code == 0,
        "sender": found.sender,
        "unsent": asdict(found.unsent),
        "days_skipped": found.days_skipped,
        "tables": [asdict(each) for each in found.days],
    }
    output.result(document, lambda: _show(output, found))
    return code


def _show(output: Output, found: SyncComparison) -> None:
    columns = ("database", "table", "day", "edge_rows", "centre_rows", "equal")
    rows = [
        (each.database, each.table, each.day, each.edge_rows, each.centre_rows, "yes" if each.equal else "no")
        for each in found.days
    ]
    output.table(columns, rows)
    for each in found.days:
        for line in each.differences:
            output.line(f"{each.database}.{each.table} {each.day}: {line}")
    if found.days_skipped:
        output.line(f"not compared, behind the retention of one end: {counted(found.days_skipped, 'day')}")
    different = sum(not each.equal for each in found.days)
    if found.unsent:
        unsent = found.unsent
        output.line(
            f"not all is accepted yet: {counted(unsent.files, 'file')}, {counted(unsent.unsealed_rows, 'row')} in memory "
            f"and {counted(unsent.deletes, 'delete')} wait; {different} of {len(found.days)} days differ"
        )
    elif different:
        output.line(
            f"{different} of {counted(len(found.days), 'day')} {'differs' if different == 1 else 'differ'}, and nothing "
            "waits: the centre rejected files (headrace sync status names them), devices were handed to another sender, "
            "rows were written or deleted at the centre itself, or the edge was restored from a backup"
        )
    else:
        output.line(f"equal: {counted(len(found.days), 'day')} of tables compared, and nothing waits")
