"""`headrace bench NAME`: speed beside peers and limits, all in one run."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from headrace.cli.options import JsonOption
from headrace.terminal.command import UsageInvalid, run_command

BENCHES = {
    "ingest": "headrace.bench.ingest",
    "replication": "headrace.bench.replication",
    "recovery": "headrace.bench.recovery",
    "migrate": "headrace.bench.migrate",
    "fairness": "headrace.bench.fairness",
    "http": "headrace.bench.http",
    "queries": "headrace.bench.queries",
    "sync": "headrace.bench.sync",
    "wal": "headrace.bench.wal",
    "spark": "headrace.bench.spark",
}


def register(app: typer.Typer) -> None:
    """Add the command `bench`."""
    app.command()(bench)


def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(BENCHES)}.")],
    options: Annotated[
        list[str] | None, typer.Option("-o", metavar="KEY=VALUE", help="An option of the benchmark; may be repeated.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Measure; absolute figures of a shared machine mean little, ratios within one run do."""
    with run_command(json_output, patient=True) as output:
        if name not in BENCHES:
            raise UsageInvalid(f"there is no benchmark {name!r}", action=f"use one of {', '.join(BENCHES)}")
        pairs = [option.partition("=") for option in options or ()]
        if any(not separator for _, separator, _ in pairs):
            raise UsageInvalid("an option is not KEY=VALUE", action="for example -o rows=1000000")
        module, given = import_module(BENCHES[name]), {key: value for key, _, value in pairs}
        # Before a word that it measures: what cannot be measured is an error of the command line.
        module.OPTIONS.chosen(given)
        output.note(f"measuring {name}")
        result = module.run(given, output.note)
        output.result(result, lambda: output.table((name, "figure"), module.table(result)))
