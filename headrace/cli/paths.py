"""Paths of the command line: an empty one is refused."""

from __future__ import annotations

from pathlib import Path

import typer

# pathlib takes an empty text for the current directory: `--data-dir "$UNSET"` would fill it, or find nothing there.
_EMPTY = "the path is empty, as a variable is that is not set; the current directory is ."


def path_text(text: str) -> str:
    """What typer calls with the text of a path, or of a pattern of paths. Raises typer.BadParameter."""
    if not text:
        raise typer.BadParameter(_EMPTY)
    return text


def path_of(text: str | Path) -> Path:
    """The same for a parameter that is a Path. Its default is one already. Raises typer.BadParameter."""
    return Path(path_text(text)) if isinstance(text, str) else text


def directory_of(text: str | Path) -> Path:
    """The same for a directory that exists, or is not there. Raises typer.BadParameter."""
    path = path_of(text)
    if path.is_file():
        raise typer.BadParameter(f"{path} is a file")
    return path
