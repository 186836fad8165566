"""Names of data groups with their birth: `n1` for the first birth of a header, `n1@4` for a later one."""

from __future__ import annotations

from headrace.schemas.group_changes import GroupKey

FIRST_BIRTH = 1


def group_name(key: GroupKey) -> str:
    """The name of a group with its birth. The first birth has the bare name, as in all that earlier builds wrote."""
    # No node id has an `@`.
    return key.group if key.birth == FIRST_BIRTH else f"{key.group}@{key.birth}"


def parse_group(name: str) -> tuple[str, int]:
    """(header, birth) of a name; birth 0 where it has none."""
    header, separator, birth = name.rpartition("@")
    if separator and birth.isascii() and birth.isdigit() and int(birth[:18]) > 0:
        return header, int(birth[:18])
    return name, 0


def group_identity(name: str) -> str:
    """group/birth of a name: how a group of another cluster is known."""
    group, birth = parse_group(name)
    return f"{group}/{birth or FIRST_BIRTH}"
