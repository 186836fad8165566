"""`headrace node run`: one node in the foreground."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from consumers.memory import GIVE_BACK_INTERVAL_S, give_back, keep_freed
from headrace.cli.output import JsonOption, SettingsOption, UsageInvalid, parse_settings, run_command

if TYPE_CHECKING:
    from consumers.node import NodeSettings

ClusterOption = Annotated[str | None, typer.Option("--cluster", metavar="C", help="Name of the cluster.")]
BootstrapOption = Annotated[str | None, typer.Option("--bootstrap", metavar="B", help="Kafka's address, host:port.")]
NodeOption = Annotated[str | None, typer.Option("--id", metavar="N", help="Name of this node.")]
NodesOption = Annotated[
    str | None, typer.Option("--nodes", metavar="N1,N2,...", help="Names of all nodes of the cluster.")
]
ReplicationOption = Annotated[
    int | None, typer.Option("--replication", min=1, help="Nodes that hold each row; for now all of them.")
]
DataDirectoryOption = Annotated[
    Path | None, typer.Option("--data-dir", metavar="D", help="Directory of the node's data.")
]

node = typer.Typer(help="One node of a cluster.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the noun `node`."""
    app.add_typer(node, name="node")


@node.command()
def run(
    cluster: ClusterOption = None,
    node_id: NodeOption = None,
    nodes: NodesOption = None,
    replication: ReplicationOption = None,
    bootstrap: BootstrapOption = None,
    data_dir: DataDirectoryOption = None,
    http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address to serve on.")] = None,
    settings: SettingsOption = None,
    json_output: JsonOption = False,
) -> None:
    """Run a node in the foreground until SIGTERM or Ctrl-C, which stop it cleanly."""
    with run_command(json_output, log_level="info") as output:
        keep_freed()
        from consumers.node import Node

        resolved, address = resolve(
            cluster=cluster,
            node_id=node_id,
            nodes=nodes,
            replication=replication,
            bootstrap=bootstrap,
            data_dir=data_dir,
            http=http,
            settings=settings,
        )
        starting, stopping = threading.Event(), threading.Event()
        running = Node(resolved)
        starting.set()
        _on_signals(starting, stopping)
        try:
            running.start(output.note)
            running.serve(*address)
            starting.clear()
            output.note(f"node {resolved.node} serves on {running.http_address}")
            while not stopping.wait(GIVE_BACK_INTERVAL_S):
                give_back()
        except _StoppedEarly:
            output.note(f"node {resolved.node} was stopped before it served")
        finally:
            starting.clear()
            running.stop()


def resolve(
    *,
    cluster: str | None,
    node_id: str | None,
    nodes: str | None,
    replication: int | None,
    bootstrap: str | None,
    data_dir: Path | None,
    http: str | None = None,
    settings: list[str] | None = None,
) -> tuple[NodeSettings, tuple[str, int]]:
    """What a node is started with, from flags, environment and file, and where it listens. Raises SettingsInvalid."""
    from consumers.node import NodeSettings
    from consumers.query.database import QuerySettings
    from consumers.replication.duties import SealPolicy
    from consumers.replication.limits import ReplicationLimits
    from consumers.store import StoreSettings
    from headrace.settings import load_settings

    loaded = load_settings(
        {
            "cluster.name": cluster,
            "cluster.bootstrap": bootstrap,
            "node.id": node_id,
            "node.nodes": nodes,
            "node.replication": replication,
            "node.data_dir": None if data_dir is None else str(data_dir),
            "node.http": http,
            "kafka": parse_settings(settings),
        }
    )
    name = loaded.require("node.id", "--id")
    names = loaded.node.nodes or (name,)
    store = loaded.store
    return (
        NodeSettings(
            cluster=loaded.cluster.name,
            node=name,
            nodes=names,
            replication=loaded.node.replication or len(names),
            bootstrap=loaded.cluster.bootstrap,
            data_directory=Path(loaded.require("node.data_dir", "--data-dir")),
            slots=loaded.cluster.slots,
            startup_timeout_s=loaded.node.startup_timeout_s,
            seal=SealPolicy(store.seal_rows, store.seal_bytes, store.seal_age_ms),
            store=StoreSettings(encode_threads=store.encode_threads, compression_level=store.compression_level),
            limits=ReplicationLimits(
                apply_queue_bytes=store.apply_queue_bytes,
                recovery_bytes_per_second=store.recovery_bytes_per_second,
                scrub_interval_s=store.scrub_interval_s,
                scrub_bytes_per_second=store.scrub_bytes_per_second,
                log_keep_records=store.log_keep_records,
                recoveries_max=store.recoveries_max,
            ),
            query=QuerySettings(
                memory_limit_mb=loaded.query.memory_limit_mb,
                threads=loaded.query.threads,
                timeout_ms=loaded.query.timeout_ms,
                queries_max=loaded.query.queries_max,
                spill_directory=Path(loaded.query.spill_directory).resolve() if loaded.query.spill_directory else None,
                spill_mb_max=loaded.query.spill_mb_max,
            ),
            kafka=loaded.kafka,
        ),
        parse_address(loaded.node.http),
    )


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`. Raises UsageInvalid."""
    host, _, port = text.removeprefix("http://").rstrip("/").rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise UsageInvalid(f"--http {text} is not HOST:PORT", action="for example --http 127.0.0.1:8080")
    return host, int(port)


class _StoppedEarly(BaseException):
    """A signal to stop that came while the node was starting."""


def _on_signals(starting: threading.Event, stopping: threading.Event) -> None:
    """A signal ends the wait for it, and a start at whatever it waits for: nothing of it is lost, since a kill would lose nothing either."""

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        stopping.set()
        if starting.is_set():
            starting.clear()
            raise _StoppedEarly

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
