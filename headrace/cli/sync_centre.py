"""The commands of a centre: `headrace sync receive`, `headrace sync owners`, and what `headrace sync status` shows of one."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.ingest_server import MetricsAddressOption, served_metrics
from headrace.cli.option_groups import grouped
from headrace.cli.options import ClusterOptions, JsonOption
from headrace.cli.paths import path_of
from headrace.cli.session import ClusterSession, cluster_session, require_cluster
from headrace.connectors.arrow_start import keep_pandas_out
from headrace.consumers.node.allocator import keep_freed
from headrace.schemas.errors import HeadraceError
from headrace.terminal.command import EXIT_INTERRUPTED, UsageInvalid, run_command
from headrace.terminal.disk_start import disk_start
from headrace.terminal.stop_signals import stop_signals

if TYPE_CHECKING:
    from headrace.consumers.sync.owners import OwnersInMemory
    from headrace.consumers.sync.receive_process import ReceiveProcess
    from headrace.settings import Settings
    from headrace.terminal.output import Output

STOP_POLL_S = 0.2
KEPT_BYTES_MAX = 256 << 20
"""Freed memory that a receiver keeps, also while it is idle."""

owners = typer.Typer(help="Whose devices are whose.", no_args_is_help=False)


def add_commands(sync: typer.Typer) -> None:
    """Add the commands of a centre to the noun `sync`."""
    sync.command()(receive)
    sync.add_typer(owners, name="owners")


class DeviceUnknown(HeadraceError):
    """A device that nobody owns."""

    exit_code = 2


@grouped
def receive(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="D", parser=path_of, help="Directory of this receiver.")
    ],
    *,
    cluster: ClusterOptions,
    name: Annotated[
        str, typer.Option("--id", metavar="R", help="Name of this receiver among all; kept in its directory else.")
    ] = "",
    http: MetricsAddressOption = None,
    json_output: JsonOption = False,
) -> None:
    """Receive files of other stores, and load them into the cluster."""
    with run_command(json_output, log_level="info") as output:
        keep_freed(KEPT_BYTES_MAX)
        keep_pandas_out()
        from headrace._connection import close_cluster, open_cluster
        from headrace.consumers.sync.receive_process import ReceiveProcess
        from headrace.settings import load_settings

        loaded = load_settings(cluster.flags())
        require_cluster(loaded)
        shared = open_cluster(loaded, on_wait=output.note)
        try:
            with disk_start():
                process = ReceiveProcess(shared, data_dir, loaded.sync, loaded.cluster.topic_replication_factor, name)
            try:
                with served_metrics(process, http, output):
                    _run(process, loaded, output)
            finally:
                process.close()
        finally:
            close_cluster(shared)


def centre_senders(cluster: ClusterOptions) -> list[dict[str, Any]]:
    """The senders of a centre, for `headrace sync status`. Raises NotACentre, ClusterUnnamed, LogUnavailable."""
    from headrace.consumers.sync.centre_report import centre_documents
    from headrace.settings import load_settings

    named = load_settings(cluster.flags())
    with cluster_session(cluster) as session:
        return centre_documents(session.log, session.topics, named.cluster.bootstrap, named.kafka)


def _run(process: ReceiveProcess, loaded: Settings, output: Output) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            process.run(loaded.cluster.bootstrap, loaded.kafka)
        except BaseException as error:
            failures.append(error)

    with stop_signals(output.note) as signals:
        signals.begin_work()
        # A signal must find the main thread in Python, and polling is in C.
        thread = threading.Thread(target=work, name="receiver")
        thread.start()
        output.note(f"receiving as {process.name} from {process.topics.partitions} partitions")
        while thread.is_alive():
            thread.join(STOP_POLL_S)
            if signals.stop():
                process.stop()
    if failures:
        raise failures[0]
    if signals.received == signal.SIGINT:
        raise typer.Exit(EXIT_INTERRUPTED)


@owners.callback(invoke_without_command=True)
@grouped
def show_owners(
    context: typer.Context,
    *,
    cluster: ClusterOptions,
    json_output: JsonOption = False,
) -> None:
    """Show the senders, and with --json every device."""
    if context.invoked_subcommand is not None:
        return
    with run_command(json_output) as output, cluster_session(cluster) as session:
        found = _read(session)
        counts = found.counts()
        senders = [
            {
                "sender": sender,
                "name": enrolled.name if (enrolled := found.sender(sender)) else "",
                "store": enrolled.store if enrolled else "",
                "devices": count,
            }
            for sender, count in sorted(counts.items())
        ]
        names = {each["sender"]: each["name"] for each in senders}
        devices = [
            {"database": database, "device": device, "sender": sender, "name": names[sender]}
            for (database, device), sender in sorted(found.devices.items())
        ]
        rows = [(each["sender"], each["name"], each["store"], str(each["devices"])) for each in senders]
        output.result(
            {"senders": senders, "devices": devices},
            lambda: output.table(("sender", "name", "store", "devices"), rows),
        )


@owners.command()
@grouped
def move(
    sender: Annotated[str, typer.Option("--to", metavar="U", help="The sender that gets them.")],
    device: Annotated[
        list[str] | None,
        typer.Option("--device", metavar="KEY", help="DATABASE/SERIES-KEY, as errors name it; may be repeated."),
    ] = None,
    former: Annotated[
        str, typer.Option("--from", metavar="U", help="All devices of this sender, such as a broken one.")
    ] = "",
    *,
    cluster: ClusterOptions,
    json_output: JsonOption = False,
) -> None:
    """Hand devices to another sender, such as the one that replaces a broken box."""
    with run_command(json_output) as output, cluster_session(cluster) as session:
        from headrace.consumers.sync.manifest_rules import is_sender
        from headrace.consumers.sync.owner_log import move_devices

        if not is_sender(sender):
            raise UsageInvalid(f"--to {sender} is not the UUID of a sender")
        if bool(device) == bool(former):
            raise UsageInvalid("name devices with --device, or a former owner with --from")
        found = _read(session)
        wanted = _wanted(found, device or (), former)
        for database in sorted({each[0] for each in wanted}):
            keys = [key for name, key in wanted if name == database]
            move_devices(session.log, session.topics, sender, database, keys)
        after = _read(session)
        moved = sum(owner == sender for key, owner in after.devices.items() if key in wanted)
        known = "" if found.sender(sender) else "; the sender has not sent anything yet"
        what = "1 device is that" if moved == 1 else f"{moved:,} devices are those"
        output.result({"moved": moved, "sender": sender}, f"{what} of {sender} now{known}")


def _wanted(found: OwnersInMemory, devices: list[str] | tuple[str, ...], former: str) -> set[tuple[str, str]]:
    if former:
        wanted = {key for key, owner in found.devices.items() if owner == former}
        if not wanted:
            raise DeviceUnknown(f"sender {former} owns no device", action="headrace sync owners lists them")
        return wanted
    # By looking at what is there: the name of a database may have a slash, and so may a device.
    named = {f"{database}/{key}": (database, key) for database, key in found.devices}
    unknown = next((each for each in devices if each not in named), None)
    if unknown is not None:
        raise DeviceUnknown(f"nobody owns a device {unknown}", action="headrace sync owners --json lists all")
    return {named[each] for each in devices}


def _read(session: ClusterSession) -> OwnersInMemory:
    from headrace.connectors.log.port import TopicMissing
    from headrace.consumers.sync.owner_log import read_owners
    from headrace.consumers.sync.topics import NotACentre

    try:
        return read_owners(session.log, session.topics)
    except TopicMissing as error:
        raise NotACentre.of(session.topics.cluster) from error
