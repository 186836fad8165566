"""`headrace broker`: a real Kafka broker on this machine, for trying things and for tests."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import JsonOption
from headrace.cli.paths import path_of
from headrace.terminal.command import EXIT_FAILED, UsageInvalid, run_command

DataDirectory = Annotated[
    Path, typer.Option("--data-dir", metavar="D", parser=path_of, help="Directory of the broker's data.")
]

broker = typer.Typer(help="A real single-node Kafka broker on loopback.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the noun `broker`."""
    app.add_typer(broker, name="broker")


@broker.command()
def start(
    data_dir: DataDirectory,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port to listen on; without it a free one, kept for later starts."),
    ] = None,
    advertise: Annotated[
        str, typer.Option(metavar="P1,P2,...", help="Further ports advertised to clients, each of a proxy.")
    ] = "",
    tls: Annotated[bool, typer.Option("--tls", help="Clients encrypt; kept for later starts.")] = False,
    scram: Annotated[
        bool, typer.Option("--scram", help="Clients log in with a password (SCRAM-SHA-512); kept for later starts.")
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Start the broker of a directory, created if it is missing, and return once it answers.

    With --tls or --scram the file `settings` of the answer is the section [kafka] for headrace.toml.
    """
    with run_command(json_output, patient=True) as output:
        from headrace.connectors.kafka.broker import EmbeddedBroker

        ports = parse_ports(advertise)
        embedded = EmbeddedBroker(data_dir, port, advertise=ports, progress=output.note, tls=tls, scram=scram)
        info = embedded.start()
        document: dict[str, object] = {"bootstrap": info.bootstrap, "pid": info.pid}
        if info.client_file is not None:
            # A file, since passwords on stdout would end up in logs.
            document["settings"] = info.client_file
        if info.proxied:
            document["proxied"] = {str(advertised): bound for advertised, bound in info.proxied.items()}
        # Also without --json: scripts read the address from here, and people can.
        output.json(document)


@broker.command()
def stop(data_dir: DataDirectory, json_output: JsonOption = False) -> None:
    """Stop the broker of a directory; it is no error when none runs."""
    with run_command(json_output, patient=True) as output:
        from headrace.connectors.kafka.broker import EmbeddedBroker

        embedded = EmbeddedBroker(data_dir)
        # Raises for a directory that never had a broker, for which `stop` would report that none was running.
        embedded.status(timeout_s=0.1)
        stopped = embedded.stop()
        output.result({"stopped": stopped}, "stopped" if stopped else f"no broker was running on {data_dir}")


@broker.command()
def status(data_dir: DataDirectory, json_output: JsonOption = False) -> None:
    """Whether the broker of a directory runs and answers; exit code 1 when it does not."""
    with run_command(json_output, patient=True) as output:
        from headrace.connectors.kafka.broker import EmbeddedBroker

        found = EmbeddedBroker(data_dir).status()
        output.result(asdict(found))
        # As `headrace status` of a node that is not ready.
        if not found.answers:
            raise typer.Exit(EXIT_FAILED)


def parse_ports(text: str) -> list[int]:
    """Comma-separated port numbers. Raises `UsageInvalid`."""
    try:
        ports = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        ports = [0]
    if any(not 0 < port < 65536 for port in ports) or len(set(ports)) < len(ports):
        raise UsageInvalid(
            f"--advertise {text} is not a list of different ports", action="for example --advertise 19092,19093"
        )
    return ports
