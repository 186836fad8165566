"""`headrace retention`: how long tables keep their rows."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from headrace.cli.generate import parse_duration
from headrace.cli.option_groups import grouped
from headrace.cli.options import ClusterOptions, JsonOption, ThroughNodeOption
from headrace.cli.removal_options import DryRunOption, TableArgument, connection, show_removal, table_name
from headrace.terminal.command import UsageInvalid, run_command

FOREVER = "forever"
SECONDS_MAX = 200 * 366 * 86_400
retention = typer.Typer(help="How long tables keep their rows.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the noun `retention`."""
    app.add_typer(retention, name="retention")


# Without a callback typer would make the lone command the noun itself.
@retention.callback()
def group() -> None:
    """How long tables keep their rows."""


@retention.command("set")
@grouped
def set_(
    name: TableArgument,
    keep: Annotated[str, typer.Argument(metavar="TIME|forever", help="How long: 30d, 12h, 2w; or forever.")],
    dry_run: DryRunOption = False,
    node: ThroughNodeOption = None,
    *,
    cluster: ClusterOptions,
    json_output: JsonOption = False,
) -> None:
    """Keep the rows of a table for so long; nodes then drop whole time slices that are older."""
    with run_command(json_output) as output:
        from headrace.removal import expired_end
        from headrace.schemas.messages import Delete

        database, table = table_name(name)
        kept = _kept(keep)
        with connection(output, node, cluster) as connected:
            if not dry_run:
                connected.client.set_retention(database, table, kept)
                seconds = None if kept is None else kept.total_seconds()
                output.result({"table": name, "retention_s": seconds}, f"{name} keeps its rows: {_shown(kept)}")
                return
            connected.schema(database, table)
            # What no slice is older than removes nothing.
            message = Delete(database, table, {}, 0, 0)
            if kept is not None:
                keep_ns = kept // timedelta(microseconds=1) * 1_000
                end_ns = expired_end(time.time_ns(), keep_ns, connected.slice_ns(database, table))
                message = replace(message, start_ns=None, end_ns=end_ns)
            show_removal(output, name, connected.count(message))


def _kept(text: str) -> timedelta | None:
    if text == FOREVER:
        return None
    action = f"for example 30d, 12h, 2w, or {FOREVER}"
    try:
        seconds = parse_duration("retention", text)
    except UsageInvalid as error:
        # A retention is longer than what else a duration is of, and may have no end.
        raise UsageInvalid(error.message, action=action) from None
    if not 1 <= seconds <= SECONDS_MAX:
        raise UsageInvalid(f"retention {text} is not between 1s and 200 years", action=action)
    return timedelta(seconds=seconds)


def _shown(kept: timedelta | None) -> str:
    if kept is None:
        return FOREVER
    oldest = datetime.now(UTC) - kept
    return f"those before {oldest:%Y-%m-%d %H:%M} UTC go, in whole time slices"
