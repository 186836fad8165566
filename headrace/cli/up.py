"""`headrace up` and `headrace down`: a whole cluster on this machine in one command."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import JsonOption
from headrace.cli.paths import path_of
from headrace.schemas.errors import HeadraceError
from headrace.terminal.command import UsageInvalid, run_command
from headrace.terminal.output import Output

if TYPE_CHECKING:
    from headrace.local_cluster import LocalCluster

DirectoryOption = Annotated[
    Path, typer.Option("--dir", metavar="D", parser=path_of, help="Directory of the cluster's data.")
]
DEFAULT_DIRECTORY = Path(".headrace")
NODES = 3


def register(app: typer.Typer) -> None:
    """Add the commands `up` and `down`."""
    app.command()(up)
    app.command()(down)


def up(
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1, max=9, help=f"How many nodes a new cluster has, {NODES} by default; more than before start and wait."
        ),
    ] = None,
    replication: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Nodes that hold each row; all of them by default.")
    ] = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    cluster: Annotated[str | None, typer.Option(metavar="C", help="Name of a new cluster.")] = None,
    restart: Annotated[
        list[str] | None, typer.Option("--restart", metavar="N", help="Restart this node; may be repeated.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Start Kafka and nodes, and return when all of them serve. What runs already stays as it is.

    Writes the cluster's name and Kafka's address into `headrace.toml` beside the directory; in it, if it is `.`.
    """
    with run_command(json_output, patient=True) as output:
        from headrace.cluster_file import held_directory

        local = _cluster_of(directory, cluster, nodes, replication)
        known = [node.name for node in local.file.nodes]
        unknown = [name for name in restart or () if name not in known]
        if unknown:
            raise UsageInvalid(f"there is no node {unknown[0]}", action=f"choose one of {', '.join(known)}")
        with held_directory(directory):
            # Another start may have ended since it was read.
            local = _cluster_of(directory, cluster, nodes, replication)
            if restart:
                local.stop(restart, output.note)
            try:
                _start(output, local, directory, restart or ())
            except KeyboardInterrupt:
                # What was not shown to run must not run on.
                local.undo_start(output.note)
                raise


def _start(output: Output, local: LocalCluster, directory: Path, restarted: Sequence[str]) -> None:
    """Start it, and show it."""
    started = local.start(output.note, restarted)
    settings_file = _write_settings(output, local)
    document = {
        **asdict(local.file),
        "dir": str(directory),
        "started": started,
        "joining": sorted(local.joining),
        "leaving": sorted(local.leaving),
        "settings_file": None if settings_file is None else str(settings_file),
    }
    bare = settings_file is not None and settings_file.parent.resolve() == Path.cwd()
    output.result(document, lambda: _show(output, local, started, directory, bare))


def settings_folder(directory: Path) -> Path:
    """Where the `headrace.toml` of a cluster's directory is: beside it, and in it when commands are given there."""
    # Commands read the one of their current directory, and what `up` prints is to work where it was printed.
    return directory.absolute() if directory.resolve() == Path.cwd() else directory.absolute().parent


def _cluster_of(directory: Path, name: str | None, nodes: int | None, replication: int | None) -> LocalCluster:
    """The cluster of a directory: name, replication and ports are those of the first `up`.

    Raises UsageInvalid, ClusterNameInvalid.
    """
    from headrace.cluster_file import FILE_NAME
    from headrace.connectors.log.topics import Topics
    from headrace.local_cluster import LocalCluster
    from headrace.settings import load_settings

    if not (directory / FILE_NAME).exists():
        settings = load_settings({"cluster.name": name}, directory=settings_folder(directory))
        # Before anything starts: each node would find it, behind a Kafka that nobody needs.
        Topics(settings.cluster.name)
        if (replication or 1) > (nodes or NODES):
            raise UsageInvalid(
                f"{nodes or NODES} nodes cannot hold each row {replication} times",
                action="use a --replication up to the number of --nodes",
            )
        return LocalCluster(directory, settings.cluster.name, nodes or NODES, replication=replication or 0)
    local = LocalCluster.load(directory)
    count = len(local.file.nodes)
    if nodes is not None and nodes < count:
        raise UsageInvalid(
            f"the cluster in {directory} has {count} nodes, not {nodes}",
            action="take one out with headrace cluster remove; leave out --nodes here, or name another --dir",
        )
    if nodes is not None:
        local.grow(nodes)
    if replication not in (None, local.replication):
        raise UsageInvalid(
            f"the cluster in {directory} holds each row {local.replication} times, not {replication}",
            action="a cluster keeps its replication: leave out --replication, or name another --dir",
        )
    if name not in (None, local.cluster):
        raise UsageInvalid(
            f"the cluster in {directory} is {local.cluster!r}, not {name!r}",
            action="leave out --cluster, or name another --dir",
        )
    return local


def _write_settings(output: Output, local: LocalCluster) -> Path | None:
    """Name the cluster in the `headrace.toml` of its directory; None when that was not possible."""
    from headrace.settings import FILE_NAME, environment_name, load_settings
    from headrace.settings_file import update_settings_file

    folder = settings_folder(local.directory)
    values = {"cluster.name": local.cluster, "cluster.bootstrap": local.bootstrap}
    try:
        changes = update_settings_file(folder, values)
        for line in changes:
            output.note(f"{folder / FILE_NAME}: {line}")
        settings = load_settings(directory=folder)
    # The cluster runs all the same, and its options are in the output.
    except HeadraceError as error:
        output.note(f"warning: {error}")
        return None
    except OSError as error:
        output.note(f"warning: {folder / FILE_NAME} was not written: {error.strerror}")
        return None
    for name, value in values.items():
        if settings.value(name) != value:
            output.note(f"warning: {environment_name(name)} is set to {settings.value(name)} and overrides it")
    urls = {local.url(node.name) for node in local.file.nodes}
    if settings.node.url and f"http://{settings.node.url.removeprefix('http://').rstrip('/')}" not in urls:
        output.note(f"warning: node.url is {settings.node.url}, which is no node of this cluster")
    return folder / FILE_NAME


def _show(output: Output, local: LocalCluster, started: Sequence[str], directory: Path, bare: bool) -> None:
    # `bare`: what follows needs no options, since it finds the settings in the current directory.
    from headrace.local_cluster import KAFKA

    def state(name: str) -> str:
        if name != KAFKA and local.node(name).removed:
            return "removed"
        if name in local.joining:
            return "waits to join"
        if name in local.leaving:
            return "leaving"
        return "started" if name in started else "was running"

    kafka = (KAFKA, local.bootstrap, "", local.broker_pid, state(KAFKA))
    nodes = [
        # The pid of a node that does not run is 0, which is none.
        (
            *(node.name, local.url(node.name), f"grpc://{node.flight}" if node.flight else ""),
            *(node.pid or None, state(node.name)),
        )
        for node in local.file.nodes
    ]
    others = local.joining | local.leaving
    members = [node for node in local.file.nodes if not node.removed and node.name not in others]
    copies = "" if local.replication == len(members) else f", each row on {local.replication} of {len(members)} nodes"
    output.line(f"cluster {local.cluster} in {directory}{copies}")
    output.table(("name", "address", "Arrow Flight", "pid", "state"), [kafka, *nodes])
    options = "" if bare else f" --bootstrap {local.bootstrap} --cluster {local.cluster}"
    output.line(f"ask:   headrace query 'SHOW TABLES'{options}")
    output.line(f"write: headrace write FILE --database DB{options}")
    for name in sorted(local.joining):
        output.line(f"add:   headrace cluster add {name}{options}")
    output.line(f"look:  {nodes[0][1]}/")
    output.line(f"stop:  headrace down{'' if directory == DEFAULT_DIRECTORY else f' --dir {quote(str(directory))}'}")


def _started_in(directory: Path) -> LocalCluster:
    """The cluster of a directory, or the Kafka of a start that was killed before it had one. Raises HeadraceError."""
    from headrace.cluster_file import FILE_NAME
    from headrace.local_cluster import LocalCluster

    begun = LocalCluster(directory, nodes=0)
    return begun if not (directory / FILE_NAME).exists() and begun.broker_pid else LocalCluster.load(directory)


def down(directory: DirectoryOption = DEFAULT_DIRECTORY, json_output: JsonOption = False) -> None:
    """Stop the nodes and Kafka of a directory; data stays."""
    with run_command(json_output, patient=True) as output:
        from headrace.cluster_file import ClusterDirectoryUnusable, held_directory

        _started_in(directory)
        with ExitStack() as held:
            # An `up` that has not ended would start what was not there yet to be stopped. Where none can start, as on a
            # disk that became read-only, what runs is stopped all the same.
            with suppress(ClusterDirectoryUnusable):
                held.enter_context(held_directory(directory))
            local = _started_in(directory)
            running = local.stop(on_progress=output.note)
        named = f"cluster {local.cluster}" if local.file.nodes else "a cluster that had only begun to start"
        output.result(
            {"stopped": running},
            f"{named} {'is stopped' if running else 'was not running'}, its data stays in {directory}",
        )
