"""Options of several commands as one parameter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli.option_groups import grouped


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is."""

    city: Annotated[str, typer.Option("--city")]
    street: Annotated[str | None, typer.Option("--street")] = None


def test_a_group_takes_the_options_of_its_fields_at_its_place() -> None:
    """With their defaults; a field without one is a required option."""
    seen: list[tuple[str, Place, bool]] = []
    app = typer.Typer()

    @app.command()
    @grouped
    def send(
        letter: str,
        first: Annotated[bool, typer.Option("--first")] = False,
        *,
        place: Place,
        last: Annotated[bool, typer.Option("--last")] = False,
    ) -> None:
        """Send a letter."""
        seen.append((letter, place, last))

    run = CliRunner().invoke
    assert 0 == run(app, ["a", "--city", "Ulm", "--last"]).exit_code
    assert 0 == run(app, ["b", "--street", "Hafengasse", "--city", "Ulm"]).exit_code
    assert [("a", Place("Ulm"), True), ("b", Place("Ulm", "Hafengasse"), False)] == seen
    assert 2 == run(app, ["a"]).exit_code, "no city"
    shown = run(app, ["--help"]).output
    places = [shown.index(option) for option in ("--first", "--city", "--street", "--last")]
    assert places == sorted(places)
    assert "Send a letter." in shown


def test_two_options_of_one_name_are_refused() -> None:
    """Else the group would take the value of the other one."""

    def send(*, city: str, place: Place) -> None:
        """Send a letter."""

    with pytest.raises(ValueError, match="city"):
        grouped(send)
