"""What a delete, the drop of a table or a retention would remove, counted by a node before anything is done."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.node_client import NodeClient
from headrace.schemas.errors import HeadraceError
from headrace.schemas.messages import Delete


class GroupAbsent(HeadraceError):
    """A group of which no member answers."""


@dataclass(frozen=True, slots=True)
class Removal:
    """Rows that match, files that go as a whole with their bytes, and files that may hold other rows as well.

    The latter are written again without the rows. All are counts of one copy of each group.
    """

    rows: int
    files: int
    bytes: int
    files_rewritten: int


def count_removal(node: NodeClient, delete: Delete) -> Removal:
    """Count what a delete would remove. Raises NodeUnreachable, NodeRefused, QueryError."""
    sql, parameters = counting_sql(delete)
    (row,) = json.loads(b"".join(node.query(sql, format="json", parameters=parameters)))
    touched = [each for each in all_files(node, delete.database, delete.table) if _overlaps(each, delete)]
    whole = [each for each in touched if not delete.tags and _is_within(each, delete)]
    return Removal(row["rows"], len(whole), sum(each["bytes"] for each in whole), len(touched) - len(whole))


def all_files(node: NodeClient, database: str, table: str) -> list[Mapping[str, Any]]:
    """The segments of a table in every group: those of a node, and those of groups that it does not hold."""
    files: list[Mapping[str, Any]] = list(node.files(database, table)["files"])
    for group in node.status().get("remote_groups", ()):
        if not group["http"]:
            raise GroupAbsent(
                f"no member of group {group['group']} is in sync: its files cannot be counted",
                action=f"start one of {', '.join(group['members'])}",
                retriable=True,
            )
        found = NodeClient(group["http"][0]).files(database, table)["files"]
        files += [each for each in found if each["group"] == group["group"]]
    return files


def expired_end(now_ns: int, keep_ns: int, slice_ns: int) -> int:
    """The end of the newest slice of which every row is older than a retention: slices go as a whole."""
    return (now_ns - keep_ns) // slice_ns * slice_ns


def counting_sql(delete: Delete) -> tuple[str, dict[str, Any]]:
    """The query that counts the rows of a delete, and its parameters."""
    conditions: list[str] = []
    parameters: dict[str, Any] = {}
    for sign, bound in ((">=", delete.start_ns), ("<", delete.end_ns)):
        if bound is not None:
            # A number and no parameter: one beyond 2^53 would lose digits on its way as JSON elsewhere.
            conditions.append(f"time {sign} make_timestamp_ns({int(bound)})")
    for number, (tag, values) in enumerate(delete.tags.items()):
        names = [f"tag{number}_{index}" for index in range(len(values))]
        parameters |= dict(zip(names, values, strict=True))
        # An empty value is an absent tag.
        conditions.append(f"coalesce({_quoted(tag)}, '') IN ({', '.join(f'${name}' for name in names)})")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT count(*) AS rows FROM {_quoted(delete.database)}.{_quoted(delete.table)}{where}", parameters


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _overlaps(file: Mapping[str, int], delete: Delete) -> bool:
    after = delete.start_ns is None or file["max_time_ns"] >= delete.start_ns
    return after and (delete.end_ns is None or file["min_time_ns"] < delete.end_ns)


def _is_within(file: Mapping[str, int], delete: Delete) -> bool:
    after = delete.start_ns is None or file["min_time_ns"] >= delete.start_ns
    return after and (delete.end_ns is None or file["max_time_ns"] < delete.end_ns)


def tag_values(pairs: Sequence[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """`key=value` pairs as the values of each tag: a row matches with any of those of one key."""
    values: dict[str, tuple[str, ...]] = {}
    for key, value in pairs:
        values[key] = (*values.get(key, ()), value)
    return values
