"""What every command has in common on the command line: an example in its help, and errors as JSON on request."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import typer
from typer.core import TyperGroup

from headrace.terminal.command import UsageInvalid, exit_code_of, print_error

EXAMPLES: Mapping[str, str] = MappingProxyType(
    {
        "": "headrace up",
        "accept-gap": "headrace accept-gap --group n1 --cluster plant --bootstrap kafka:9092",
        "backfill": "headrace backfill a.csv --database d --table t --tags a --format csv",
        "bench": "headrace bench wal -o rows=100000",
        "broker": "headrace broker start --data-dir ./kafka",
        "broker start": "headrace broker start --data-dir ./kafka --port 9092",
        "broker status": "headrace broker status --data-dir ./kafka",
        "broker stop": "headrace broker stop --data-dir ./kafka",
        "cluster": "headrace cluster show",
        "cluster add": "headrace cluster add n4 --dry-run",
        "cluster balance": "headrace cluster balance --by bytes --dry-run",
        "cluster cancel": "headrace cluster cancel",
        "cluster remove": "headrace cluster remove n4 --dry-run",
        "cluster show": "headrace cluster show",
        "cluster slots": "headrace cluster slots --database plant --time 2026-01-01",
        "config": "headrace config show --origin",
        "config show": "headrace config show --origin",
        "delete": "headrace delete --database plant --table pumps --tag pump=p1",
        "demo": "headrace demo --trucks 100",
        "dlq": "headrace dlq list",
        "dlq list": "headrace dlq list --json",
        "dlq replay": "headrace dlq replay dlq.raw --database plant --format influx",
        "dlq show": "headrace dlq show dlq.raw --limit 3",
        "down": "headrace down --dir ./cluster",
        "generate": "headrace generate iot --output fleet.lp",
        "generate cpu": "headrace generate cpu --output cpu.parquet --hosts 10",
        "generate iot": "headrace generate iot --output fleet.lp --trucks 10",
        "ingest": "headrace ingest run --topic raw --format influx --database plant",
        "ingest run": "headrace ingest run --topic raw --format influx --database plant",
        "node": "headrace node run --id n1 --nodes n1,n2,n3 --data-dir ./n1",
        "node run": "headrace node run --id n1 --nodes n1,n2,n3 --data-dir ./n1",
        "query": 'headrace query "SELECT count(*) FROM plant.pumps"',
        "refuse-record": "headrace refuse-record --group n1 --offset 1200",
        "replay": "headrace replay --id n1 --data-dir ./n1 --replace",
        "retention": "headrace retention set plant.pumps 30d --dry-run",
        "retention set": "headrace retention set plant.pumps 30d --dry-run",
        "seal": "headrace seal --timeout 60",
        "sql": "headrace sql --node 127.0.0.1:8080",
        "status": "headrace status --node 127.0.0.1:8080",
        "sync": "headrace sync status",
        "sync forget": "headrace sync forget --node 127.0.0.1:8086 --to-cluster central",
        "sync owners": "headrace sync owners --cluster central --bootstrap kafka:9092",
        "sync owners move": "headrace sync owners move --device 'plant/pumps,pump=p1' --to 7c1e",
        "sync receive": "headrace sync receive --cluster central --data-dir ./receiver --id r1",
        "sync resend": "headrace sync resend --sender 7c1e9d34-5a0b-4c55-9c3f-1d2e3f405162",
        "sync send": "headrace sync send --node e:80 --to-bootstrap k:9092 --to-cluster c",
        "sync status": "headrace sync status --data-dir ./central",
        "sync verify": "headrace sync verify --node edge:8086 --cluster central",
        "table": "headrace table drop plant.pumps --dry-run",
        "table drop": "headrace table drop plant.pumps --dry-run",
        "up": "headrace up --nodes 3 --dir ./cluster",
        "verify": "headrace verify --allow-missing 1",
        "wal": "headrace wal repair ./n1/journal",
        "wal repair": "headrace wal repair ./n1/journal --drop",
        "write": "headrace write pumps.lp --database plant",
    }
)
"""One line for each command, by its words."""


def add_examples(app: typer.Typer, words: str = "") -> None:
    """End the help of the app, of its nouns and of its commands with an example."""
    if not words:
        app.info.epilog = _epilog("")
    for command in app.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__.replace("_", "-")
        command.epilog = _epilog(f"{words} {name}".strip())
    for group in app.registered_groups:
        assert group.typer_instance is not None
        inner = f"{words} {group.name}".strip()
        group.epilog = _epilog(inner)
        add_examples(group.typer_instance, inner)


def _epilog(words: str) -> str | None:
    example = EXAMPLES.get(words)
    return None if example is None else f"Example: {example}"


class JsonErrors(TyperGroup):
    """The root of the command line: with `--json` also a wrong option is a JSON object on stderr."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """See TyperGroup."""
        run = partial(super().main, args, prog_name, complete_var, windows_expand_args=windows_expand_args, **extra)
        words = list(sys.argv[1:] if args is None else args)
        if not standalone_mode or "--json" not in _options(words):
            return run(standalone_mode=standalone_mode)
        try:
            code = run(standalone_mode=False)
        # typer has its own copy of click, so the class of its errors has no name that other packages may import.
        except Exception as error:
            describe = getattr(error, "format_message", None)
            if describe is None:
                raise
            context = getattr(error, "ctx", None)
            command = context.command_path if context is not None else "headrace"
            refusal = UsageInvalid(describe(), action=f"see {command} --help")
            print_error(refusal, json_output=True)
            sys.exit(exit_code_of(refusal))
        sys.exit(code if isinstance(code, int) else 0)


def _options(words: Sequence[str]) -> Iterator[str]:
    """The words before `--`, behind which nothing is an option."""
    for word in words:
        if word == "--":
            return
        yield word
