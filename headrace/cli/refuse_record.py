"""`headrace refuse-record`: drop a record that names a version of a table which does not exist."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from headrace.cli.option_groups import grouped
from headrace.cli.options import ClusterOptions, JsonOption
from headrace.cli.session import cluster_session
from headrace.terminal.command import run_command


def register(app: typer.Typer) -> None:
    """Add the command `refuse-record`."""
    app.command(name="refuse-record")(refuse_record)


@grouped
def refuse_record(
    group: Annotated[str, typer.Option("--group", metavar="G", help="The group that waits.")],
    offset: Annotated[int, typer.Option("--offset", metavar="OFFSET", help="Offset of the record in its log.", min=0)],
    *,
    cluster: ClusterOptions,
    json_output: JsonOption = False,
) -> None:
    """Drop a record that a group waits at, since the version of the table that it names is not coming.

    All replicas ignore it for good; its rows are lost.
    """
    with run_command(json_output) as output, cluster_session(cluster) as session:
        from headrace.consumers.membership.refusal import refuse_record as refuse

        refused = refuse(session.log, session.topics, group, offset)
        document = asdict(refused) | {"record": {"group": group, "offset": offset}}
        table = f"{refused.database}.{refused.table}"
        output.result(
            document,
            f"the record at offset {offset} of group {group} is refused: {table} has no version {refused.schema_version}",
        )
