"""Options that several commands share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.paths import path_of
from headrace.terminal.command import UsageInvalid

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
SettingsOption = Annotated[
    list[str] | None, typer.Option("-X", metavar="KEY=VALUE", help="A librdkafka setting, verbatim; may be repeated.")
]
NodeIdOption = Annotated[str | None, typer.Option("--id", metavar="N", help="Name of this node.")]
DataDirectoryOption = Annotated[
    Path | None, typer.Option("--data-dir", metavar="D", parser=path_of, help="Directory of the node's data.")
]
NodeUrlOption = Annotated[
    str | None,
    typer.Option(
        "--node",
        metavar="HOST:PORT",
        help="Node to ask, also as a URL; else the setting node.url, else a ready node of the cluster.",
    ),
]

ThroughNodeOption = Annotated[
    str | None,
    typer.Option("--node", metavar="HOST:PORT", help="Node to work through instead of Kafka, also as a URL."),
]


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Where a command finds its cluster; what is not given is in the environment or in `headrace.toml`."""

    cluster_name: Annotated[str | None, typer.Option("--cluster", metavar="C", help="Name of the cluster.")] = None
    bootstrap: Annotated[str | None, typer.Option("--bootstrap", metavar="B", help="Kafka's address, host:port.")] = (
        None
    )
    kafka: SettingsOption = None

    def flags(self) -> dict[str, object]:
        """What `load_settings` takes. Raises UsageInvalid."""
        return {
            "cluster.name": self.cluster_name,
            "cluster.bootstrap": self.bootstrap,
            "kafka": parse_settings(self.kafka),
        }


def seconds_of(text: str | float) -> float:
    """What typer calls with a time to wait, or with the default of one. Raises typer.BadParameter."""
    try:
        seconds = float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no number of seconds") from None
    # Neither is true of `nan`, with which no wait ends.
    if not 0 <= seconds < math.inf:
        raise typer.BadParameter(f"{text} is no time to wait: give seconds from 0 on")
    return seconds


def parse_settings(settings: Sequence[str] | None) -> dict[str, str]:
    """`-X key=value` options as librdkafka settings. Raises `UsageInvalid`."""
    parsed: dict[str, str] = {}
    for setting in settings or ():
        key, separator, value = setting.partition("=")
        if not separator or not key.strip():
            raise UsageInvalid(f"-X {setting} is not KEY=VALUE", action="for example -X linger.ms=50")
        parsed[key.strip()] = value
    return parsed
