"""Columns in the names of folders, as in `site=north/day=2026-01-01/part-0.parquet`: how Spark and Hive partition. Pure.

The files below such a folder lack that column. A file whose folders name a tag has it in every row.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import unquote

ABSENT = "__HIVE_DEFAULT_PARTITION__"
"""The value of a folder with the rows that have none."""


def folder_columns(path: str) -> dict[str, str]:
    """The columns that the folders of a file name, with their values; "" for none. The innermost folder wins."""
    found = dict[str, str]()
    for folder in path.split("/")[:-1]:
        name, is_column, value = folder.partition("=")
        if is_column and name:
            found[unquote(name)] = "" if value == ABSENT else unquote(value)
    return found


def tags_of_folders(path: str, columns: Collection[str], tags: Collection[str]) -> tuple[tuple[str, str], ...]:
    """The tags that the folders of a file give to its rows: those of `tags` that it has no column of."""
    return tuple((name, value) for name, value in folder_columns(path).items() if name in tags and name not in columns)


def undecided_folders(path: str, columns: Collection[str], decided: Collection[str]) -> list[str]:
    """The columns of folders that neither the file has nor anybody has decided about."""
    # Rows of two folders may have the same tags and times otherwise, and replace each other.
    return sorted(folder_columns(path).keys() - set(columns) - set(decided))
