"""`headrace node run`: one node in the foreground."""

from __future__ import annotations

import atexit
import gc
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.option_groups import grouped
from headrace.cli.options import ClusterOptions, DataDirectoryOption, JsonOption, NodeIdOption
from headrace.connectors.arrow_start import keep_pandas_out
from headrace.consumers.node.allocator import GIVE_BACK_INTERVAL_S, give_back, keep_freed, stay_small
from headrace.terminal.command import run_command
from headrace.terminal.disk_start import disk_start
from headrace.terminal.interruption import be_patient
from headrace.terminal.signal_event import SignalEvent

if TYPE_CHECKING:
    from headrace.consumers.node.node import Node
    from headrace.settings import Settings
    from headrace.terminal.output import Output

NodesOption = Annotated[
    str | None, typer.Option("--nodes", metavar="N1,N2,...", help="Names of all nodes of a new cluster.")
]
ReplicationOption = Annotated[
    int | None, typer.Option("--replication", min=1, help="Nodes that hold each row of a new cluster.")
]
LogOption = Annotated[
    str | None, typer.Option("--log", metavar="kafka|local", help="Where its log is; local = in the data directory.")
]
SWITCH_INTERVAL_S = 0.0003
"""How long a thread keeps the interpreter while others want it. With Python's 5 ms every step of a short query waits
that long for each thread that plans another one, and a join at each of its pauses for a short query.
"""
node = typer.Typer(help="One node of a cluster.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the noun `node`."""
    app.add_typer(node, name="node")


@node.command()
@grouped
def run(
    *,
    cluster: ClusterOptions,
    node_id: NodeIdOption = None,
    nodes: NodesOption = None,
    replication: ReplicationOption = None,
    data_dir: DataDirectoryOption = None,
    http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address to serve on.")] = None,
    advertise: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address at which others reach it, if not that of --http.")
    ] = None,
    log: LogOption = None,
    flight: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address to serve Arrow Flight on; none by default.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Run a node in the foreground until SIGTERM or Ctrl-C, which stop it cleanly.

    With --log local it needs no Kafka: a cluster of one node, whose log is in its data directory.
    """
    with run_command(json_output, log_level="info") as output:
        loaded = load_node_settings(
            {
                **cluster.flags(),
                "node.id": node_id,
                "node.nodes": nodes,
                "node.replication": replication,
                "node.data_dir": data_dir,
                "node.http": http,
                "node.advertise": advertise,
                "node.log": log,
                "node.flight": flight,
            }
        )
        # Before anything loads pyarrow: its allocator reads this once.
        (stay_small if loaded.node.has_local_log else keep_freed)()
        _choose_line_parser(loaded)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        with _without_collection():
            keep_pandas_out()
            from headrace.consumers.node.node import Node

        _run_until_stopped(Node(loaded), output)


def _run_until_stopped(running: Node, output: Output) -> None:
    """Start a node and serve until a signal comes, or it was removed; the node is stopped in any case."""
    from headrace.connectors.ends import ended_by
    from headrace.consumers.node.exile import NodeExiled

    starting, stopping = _Starting(), SignalEvent()
    _on_signals(starting, stopping)
    running.on_exile = stopping.set

    def stop() -> None:
        starting.ended = True
        running.stop()

    try:
        with ended_by(stop):
            with disk_start():
                running.start(output.note)
                running.serve()
            starting.ended = True
            be_patient()
            more = f", Arrow Flight on {running.flight.url}" if running.flight.url else ""
            output.note(f"node {running.name} serves on {running.http_address}{more}")
            # Freed memory is kept for the next seal (`keep_freed`); an idle node returns it to the system.
            while not stopping.wait(GIVE_BACK_INTERVAL_S):
                give_back()
            if running.exile is not None:
                raise running.exile
    except NodeExiled as exile:
        # No failure: a supervisor must not start it again and again.
        output.note(str(exile))
    except _StoppedEarly as stopped:
        output.note(f"node {running.name} was stopped before it served")
        if stopped.number == signal.SIGINT:
            raise KeyboardInterrupt from None


def _choose_line_parser(loaded: Settings) -> None:
    """Read lines without a compiler where memory matters more than speed."""
    from headrace.connectors.formats.kernel_choice import use_small_loops

    wanted = loaded.write.line_parser
    if wanted == "small" or (wanted == "auto" and loaded.node.has_local_log):
        use_small_loops()


@contextmanager
def _without_collection() -> Iterator[None]:
    """Import without garbage collections, now and later: they find nothing.

    They take a seventh of a node's start. Later, one that looks at what was imported holds the interpreter for a
    tenth of a second, and with it every query.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        # DuckDB reports as leaked what is not collected at the end.
        atexit.register(gc.unfreeze)


def load_node_settings(flags: Mapping[str, object]) -> Settings:
    """The settings of a command that opens a node's data. Raises SettingsInvalid, ClusterInvalid."""
    from headrace.consumers.membership.ring import check_node_id
    from headrace.settings import load_settings

    loaded = load_settings(flags)
    loaded.require("node.id", "--id")
    loaded.require("node.data_dir", "--data-dir")
    # Now, and not after a wait for Kafka. A node of an earlier build that has another id continues.
    for name in () if loaded.node.has_data else (loaded.node.id, *loaded.node.nodes):
        check_node_id(name)
    return loaded


@dataclass(slots=True)
class _Starting:
    """Whether the start of a node has ended; of the main thread, and of the signals that interrupt it."""

    ended: bool = False


# No Exception, so that no handler of expected errors on the way up takes it for one of them.
class _StoppedEarly(BaseException):
    """A signal to stop that came while the node was starting."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _on_signals(starting: _Starting, stopping: SignalEvent) -> None:
    """Let a signal end the wait of `run`, and interrupt a node that is still starting."""
    # A start may wait for Kafka for a minute, or replay a journal for longer. Interrupting it anywhere loses
    # nothing: a node must come through a kill at the same place. `stop` is not interrupted: it would leave
    # threads behind.

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        stopping.set()
        if not starting.ended:
            starting.ended = True
            raise _StoppedEarly(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
