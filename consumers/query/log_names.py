"""Which groups a client means by the names of logs, of which it gives offsets: topics, or groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headrace.connectors.log.topics import Topics
from headrace.consumers.query.query_errors import UnknownLog
from headrace.consumers.query.remote_rows import Placement
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.group_names import FIRST_BIRTH, group_name, parse_group


class FormerGroups(Protocol):
    """The groups that a slot table does not have, as far as a node knows them."""

    def existed(self, key: GroupKey) -> bool:
        """Whether a group ended some time, or will be in a table that the node has not read yet."""
        ...


class LogNames:
    """The names of the logs of one cluster."""

    def __init__(self, topics: Topics, former: FormerGroups | None = None) -> None:
        """`former` None: whatever the table does not have may have existed."""
        self._topics = topics
        self._former = former

    def groups(self, offsets: Mapping[str, int], table: Placement) -> dict[str, int]:
        """Offsets by the name of the group, the highest where several names mean one. Raises UnknownLog.

        A bare name is that of the group that has the header now.
        """
        found: dict[str, int] = {}
        for name, offset in offsets.items():
            key = self._group(name, table)
            found[group_name(key)] = max(offset, found.get(group_name(key), -1))
        return found

    def _group(self, name: str, table: Placement) -> GroupKey:
        header, birth = self._topics.group_of(name) or parse_group(name)
        present = table.birth(header) if header in table.headers else None
        key = GroupKey(header, birth or present or FIRST_BIRTH)
        # Never passed over in silence: the client would take an answer without its write for one that has it.
        if key.birth != present and self._former is not None and not self._former.existed(key):
            raise UnknownLog.named(name)
        return key


GROUP_NAMES = LogNames(Topics("any"))
"""Only names of groups are known, and whatever a table does not have may have existed."""
