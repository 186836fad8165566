"""What one replica can show of itself where there is no other to compare with: its files, and its log.

Each segment is read and compared with the digest that it was sealed with. The records of the log that the replica
remembers are read again, and must give the chain that it has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.port import Log
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.hash_chain import next_chain, record_digest
from headrace.schemas.errors import HeadraceError

LOG_TIMEOUT_S = 30.0
RECORDS_MAX = 1_000
"""Records of the log that one read asks for."""


def own_evidence(log: Log, topic: str, group: Group, segments: Iterable[str]) -> dict[str, Any]:
    """`{"files_read", "records_read", "wrong"}`; `wrong` describes each file and record that is not what it was."""
    files_read, wrong = 0, list[str]()
    for name in segments:
        try:
            corrupt = group.store.is_corrupt(name)
        except HeadraceError as error:
            wrong.append(f"segment {name} cannot be read: {error.message}")
            continue
        files_read += 1
        if corrupt:
            wrong.append(f"segment {name} is not what was sealed: its bytes changed on this disk, or it is gone")
    try:
        records_read = _chain_of_log(log, topic, group.history())
    except HeadraceError as error:
        return {"files_read": files_read, "records_read": 0, "wrong": [*wrong, f"the log: {error.message}"]}
    return {"files_read": files_read, "records_read": records_read, "wrong": wrong}


class ChainDiffers(HeadraceError):
    """The log has other records than the replica has applied."""


def _chain_of_log(log: Log, topic: str, history: list[tuple[int, bytes]]) -> int:
    """Read the records behind the first remembered one; how many. Raises ChainDiffers, and what a reader raises."""
    begin = log.describe(topic).begin
    # The log may have been trimmed since: what is left of the remembered records is compared.
    known = [(offset, chain) for offset, chain in history if offset + 1 >= begin]
    if len(known) < 2:
        return 0
    (offset, chain), expected = known[0], dict(known[1:])
    reader, deadline, last = log.reader({topic: offset + 1}), Deadline(LOG_TIMEOUT_S), known[-1][0]
    read = 0
    try:
        while reader.position(topic) <= last and not deadline.passed():
            for record in reader.poll(RECORDS_MAX, deadline.left_s()):
                if record.offset > last:
                    break
                chain, read = next_chain(chain, record_digest(record.value)), read + 1
                if expected.get(record.offset) != chain:
                    raise ChainDiffers(f"record {record.offset} is not the one that this replica has applied")
    finally:
        reader.close()
    return read
