"""Refuses a forward record that names a version of a table which does not exist.

Replicas wait for such a version without a limit of time, since a writer reads its schema change back before it
writes the first row. When the version is not coming, for the producer was wrong, an operator refuses the
record. The refusal is in the table log, where its order against the version is the same for every replica.
"""

from __future__ import annotations

from headrace.connectors.log.port import Log, LogTruncated, Record, TopicMissing
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.replication.hash_chain import record_digest
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import FrameInvalid
from headrace.schemas.messages import Seal, TableVersion, Write, decode_message
from headrace.schemas.tables import RecordName, RecordRefusal

READ_TIMEOUT_S = 10.0


class RefusalNotNeeded(HeadraceError):
    """A record that no replica waits at."""


def refuse_record(log: Log, topics: Topics, group: str, offset: int) -> RecordRefusal:
    """Refuse the record at an offset of a group's log, for good and for every replica.

    Raises RefusalNotNeeded unless it names a version of a table that the table log, read to its end now, does
    not hold.
    """
    record = _record_at(log, topics.forward(group), offset)
    # Read behind the record: a version that its writer knew is in the table log by now.
    tables = SchemaLog(log, topics)
    try:
        tables.refresh()
        missing = next((each for each in _tables_of(record) if not _holds(tables, each)), None)
        if missing is None:
            raise RefusalNotNeeded(
                f"the record at offset {offset} of group {group} names no version of a table that is missing",
                action="see headrace status for what the group waits for",
            )
        name = RecordName(group, offset, record_digest(record.value))
        refusal = RecordRefusal(name, missing.database, missing.table, missing.schema_version)
        if not tables.refuse(refusal):
            raise RefusalNotNeeded(f"version {missing.schema_version} of {missing.database}.{missing.table} came first")
        return refusal
    finally:
        tables.close()


def _holds(tables: SchemaLog, named: TableVersion) -> bool:
    return tables.catalogue.at(named.database, named.table, named.schema_version) is not None


def _record_at(log: Log, topic: str, offset: int) -> Record:
    try:
        state = log.describe(topic)
        if state.begin <= offset < state.end:
            reader = log.reader({topic: offset})
            try:
                found = reader.poll(1, READ_TIMEOUT_S)
            finally:
                reader.close()
            if found and found[0].offset == offset:
                return found[0]
    except (TopicMissing, LogTruncated):
        pass
    raise RefusalNotNeeded(f"there is no record at offset {offset} of topic {topic}", action="check group and offset")


def _tables_of(record: Record) -> tuple[TableVersion, ...]:
    try:
        body = decode_message(record.value).body
    except FrameInvalid:
        return ()
    if isinstance(body, Write):
        return (TableVersion(body.database, body.table, body.schema_version),)
    return body.tables if isinstance(body, Seal) else ()
