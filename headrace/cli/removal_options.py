"""What the commands that remove data share: their options, their connection and what they print."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.session import named_node, node_of
from headrace.terminal.command import UsageInvalid
from headrace.terminal.output import Output
from headrace.terminal.sizes import short_bytes

if TYPE_CHECKING:
    from headrace.cli.options import ClusterOptions
    from headrace.client import Client
    from headrace.removal import Removal
    from headrace.schemas.messages import Delete
    from headrace.schemas.tables import TableSchema
    from headrace.settings import Settings

DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Change nothing; show the rows, bytes and files that would go.")
]
TableArgument = Annotated[str, typer.Argument(metavar="DB.TABLE", help="The table.")]


class Connection:
    """A cluster that a command changes: by its log, and through one of its nodes where rows are counted."""

    def __init__(self, settings: Settings, client: Client, node: str | None) -> None:
        self._settings = settings
        self._node = node
        self.client = client

    def schema(self, database: str, table: str) -> TableSchema:
        """The newest schema of a table. Raises DeleteInvalid."""
        return self.client.table(database, table)

    def count(self, delete: Delete) -> Removal:
        """What a delete would remove, by a node that is ready."""
        from headrace.node_client import NodeClient
        from headrace.removal import count_removal

        return count_removal(NodeClient(self._url()), delete)

    def slice_ns(self, database: str, table: str) -> int:
        """Nanoseconds of a time slice of a table."""
        from headrace.node_client import NodeClient

        return int(NodeClient(self._url()).files(database, table)["slice_ns"])

    def _url(self) -> str:
        return self._node or node_of(self._settings)


@contextmanager
def connection(output: Output, node: str | None, cluster: ClusterOptions) -> Iterator[Connection]:
    """Connect to a cluster, over Kafka or through a node.

    Raises UsageInvalid, ClusterUnnamed, NoCluster, LogUnavailable, NodeUnreachable, SettingsInvalid.
    """
    from headrace._access import LogAccess
    from headrace._connection import ClusterConnection, open_cluster
    from headrace._nodes import NodeDirectory
    from headrace.client import Client, node_client
    from headrace.settings import load_settings

    url = named_node(node, cluster)
    if url is not None:
        loaded = load_settings({"node.url": url})
        with node_client(url, loaded) as client:
            yield Connection(loaded, client, url)
        return
    loaded = load_settings(cluster.flags())
    reached = ClusterConnection(lambda: open_cluster(loaded, on_wait=output.note))
    reached.open()
    with Client(LogAccess(reached), loaded, NodeDirectory(reached)) as client:
        yield Connection(loaded, client, None)


def table_name(text: str) -> tuple[str, str]:
    """Database and table of `DB.TABLE`. Raises UsageInvalid."""
    database, separator, table = text.partition(".")
    if not separator or not database or not table:
        raise UsageInvalid(f"{text} is not DB.TABLE", action="for example plant.pumps")
    return database, table


def show_removal(output: Output, name: str, removal: Removal) -> None:
    """Print what would go: a table, or JSON."""
    document: dict[str, Any] = {"table": name, "dry_run": True, **asdict(removal)}
    rows = [
        ("rows", f"{removal.rows:,}"),
        ("files that go", f"{removal.files:,}"),
        ("bytes of those files", short_bytes(removal.bytes)),
        ("files written again without the rows", f"{removal.files_rewritten:,}"),
    ]
    output.result(document, lambda: output.table((name, "would go"), rows))


def removal_text(removal: Removal) -> str:
    """`1,234 rows, 12 files of 3.4 MB`."""
    rows = f"{removal.rows:,} {'row' if removal.rows == 1 else 'rows'}"
    return f"{rows}, {removal.files:,} {'file' if removal.files == 1 else 'files'} of {short_bytes(removal.bytes)}"
