"""`headrace config`: the settings that a command started here would have."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.options import JsonOption, SettingsOption, parse_settings
from headrace.terminal.command import run_command

config = typer.Typer(help="Look at the settings.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the noun `config`."""
    app.add_typer(config, name="config")


@config.command()
def show(
    origin: Annotated[bool, typer.Option("--origin", help="Also say where each value comes from.")] = False,
    settings: SettingsOption = None,
    json_output: JsonOption = False,
) -> None:
    """Every setting and its value: `headrace.toml` here, then HEADRACE__SECTION__KEY, then flags.

    Secrets are masked.
    """
    with run_command(json_output) as output:
        from headrace.settings import load_settings

        loaded = load_settings({"kafka": parse_settings(settings)})
        if loaded.kafka:
            # Here and not above: librdkafka is loaded only where it has something to check.
            from headrace.connectors.log.client_check import check_client_settings

            check_client_settings(loaded.kafka)
        shown = loaded.shown()
        if json_output:
            output.json(
                {row.name: {"value": row.value, "origin": row.origin} if origin else row.value for row in shown}
            )
            return
        columns = ("setting", "value", "origin", "meaning") if origin else ("setting", "value", "meaning")
        rows = (tuple(_cell(getattr(row, _FIELDS[name])) for name in columns) for row in shown)
        output.table(columns, rows, key="setting")


def _cell(value: object) -> object:
    # A value is printed as it may be given: tables have `yes`, which TOML does not know.
    return str(value).lower() if isinstance(value, bool) else value


_FIELDS = {"setting": "name", "value": "value", "origin": "origin", "meaning": "meaning"}
