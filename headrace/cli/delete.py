"""`headrace delete`: rows of a table, by tags and time."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.generate import parse_start
from headrace.cli.option_groups import grouped
from headrace.cli.options import ClusterOptions, JsonOption, ThroughNodeOption
from headrace.cli.removal_options import DryRunOption, connection, show_removal
from headrace.cli.row_options import static_tag
from headrace.terminal.command import UsageInvalid, run_command


def register(app: typer.Typer) -> None:
    """Add the command `delete`."""
    app.command()(delete)


@grouped
def delete(
    database: Annotated[str, typer.Option("--database", metavar="DB", help="Database of the table.")],
    table: Annotated[str, typer.Option("--table", metavar="T", help="The table.")],
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="KEY=VALUE", help="Only rows with this tag; again: another value or tag."),
    ] = None,
    start: Annotated[
        str | None, typer.Option("--start", metavar="TIME", help="From this time on: ISO 8601 (UTC), or nanoseconds.")
    ] = None,
    end: Annotated[str | None, typer.Option("--end", metavar="TIME", help="Before this time.")] = None,
    dry_run: DryRunOption = False,
    node: ThroughNodeOption = None,
    *,
    cluster: ClusterOptions,
    json_output: JsonOption = False,
) -> None:
    """Delete rows of a table, by tags and time; rows that are written later stay.

    Several values of one tag: any of them. Several tags: all of them.
    """
    with run_command(json_output) as output:
        from headrace.producers.deletes import delete_message
        from headrace.removal import tag_values

        if not tag and start is None and end is None:
            raise UsageInvalid(
                "this deletes every row of the table",
                action=f"give --tag, --start or --end, or use headrace table drop {database}.{table}",
            )
        tags = tag_values([static_tag(text) for text in tag or ()])
        start_ns = None if start is None else parse_start(start, "--start")
        end_ns = None if end is None else parse_start(end, "--end")
        with connection(output, node, cluster) as connected:
            message = delete_message(connected.schema(database, table), tags, start_ns, end_ns)
            name = f"{database}.{table}"
            if dry_run:
                show_removal(output, name, connected.count(message))
                return
            connected.client.delete(database, table, tags, start_ns, end_ns)
            output.result(
                {"table": name, "deleted": True}, f"{name}: the rows are deleted; nodes remove them from files next"
            )
