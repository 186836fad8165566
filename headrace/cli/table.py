"""`headrace table`: commands about one table."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headrace.cli.option_groups import grouped
from headrace.cli.options import ClusterOptions, JsonOption, ThroughNodeOption
from headrace.cli.removal_options import (
    DryRunOption,
    TableArgument,
    connection,
    removal_text,
    show_removal,
    table_name,
)
from headrace.schemas.errors import HeadraceError
from headrace.terminal.command import UsageInvalid, run_command

table = typer.Typer(help="Commands about one table.", no_args_is_help=True)


class NotConfirmed(HeadraceError):
    """A question that was not answered with yes; nothing was done."""


def register(app: typer.Typer) -> None:
    """Add the noun `table`."""
    app.add_typer(table, name="table")


# Without a callback typer would make the lone command the noun itself.
@table.callback()
def group() -> None:
    """Commands about one table."""


@table.command()
@grouped
def drop(
    name: TableArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; needed where nobody can answer.")] = False,
    dry_run: DryRunOption = False,
    node: ThroughNodeOption = None,
    *,
    cluster: ClusterOptions,
    json_output: JsonOption = False,
) -> None:
    """Remove all rows and files of a table, on every node.

    The table is not listed until it is written again. Then it has the columns that it had.
    """
    with run_command(json_output) as output:
        from headrace.schemas.messages import Delete

        database, table = table_name(name)
        asks = not yes and not dry_run
        if asks and (json_output or not sys.stdin.isatty()):
            raise UsageInvalid(f"dropping {name} needs a yes", action="give --yes; --dry-run shows what would go")
        with connection(output, node, cluster) as connected:
            connected.schema(database, table)
            if dry_run:
                show_removal(output, name, connected.count(Delete(database, table)))
                return
            if asks:
                _ask(f"drop {name} ({removal_text(connected.count(Delete(database, table)))})? [y/N] ")
            connected.client.drop_table(database, table)
            output.result({"table": name, "dropped": True}, f"{name} is dropped; nodes remove its files next")


def _ask(question: str) -> None:
    """Raises NotConfirmed unless the answer is yes."""
    sys.stderr.write(question)
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise NotConfirmed("nothing was dropped")
