"""The content of a cluster's replicas: forward logs through the real replica, then the last row of each
series and time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import polars as pl
import pyarrow as pa

from headrace.connectors.log.port import Log, Record, read_to_end
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import read_slot_table
from headrace.consumers.replication.actions import ApplyWrite, Ignored
from headrace.consumers.replication.replica import Replica
from headrace.schemas.messages import Message, decode_message
from headrace.schemas.payload import SERIES_COLUMN, decode_rows
from headrace.schemas.series import parse_series_key
from headrace.schemas.tables import TIME_COLUMN


def forward_logs(log: Log, topics: Topics) -> dict[str, list[Record]]:
    """Every record of every group's forward log."""
    groups = read_slot_table(log, topics).headers
    return {group: read_to_end(log, topics.forward(group), timeout_s=30) for group in groups}


def messages(log: Log, topics: Topics) -> list[Message]:
    """All forward messages, group by group."""
    return [decode_message(record.value) for records in forward_logs(log, topics).values() for record in records]


def stored_tables(log: Log, topics: Topics) -> dict[str, pa.Table]:
    """Each table as a user table with one row for each series and time: tags as dictionaries, `time`,
    fields.
    """
    return tables_of(forward_logs(log, topics).values())[0]


def tables_of(logs: Iterable[Iterable[Record]]) -> tuple[dict[str, pa.Table], dict[Ignored, int]]:
    """(tables, number of ignored records by reason) of the logs of all groups."""
    frames: dict[str, list[pl.DataFrame]] = defaultdict(list)
    ignored: dict[Ignored, int] = defaultdict(int)
    for records in logs:
        replica = Replica(("n1",))
        for record in records:
            for action in replica.apply(record.offset, record.value, record.headers):
                if isinstance(action, ApplyWrite):
                    frames[action.write.table].append(_frame(action))
        for reason, count in replica.ignored.items():
            ignored[reason] += count
    return {table: _user_table(frames_of_table) for table, frames_of_table in frames.items()}, dict(ignored)


def _frame(action: ApplyWrite) -> pl.DataFrame:
    rows = decode_rows(action.write.rows)
    frame = pl.DataFrame(pl.from_arrow(pa.Table.from_batches([rows])))
    return frame.with_columns(pl.col(SERIES_COLUMN).cast(pl.String))


def _user_table(frames_of_table: list[pl.DataFrame]) -> pa.Table:
    rows = pl.concat(frames_of_table, how="diagonal_relaxed").unique(
        [SERIES_COLUMN, TIME_COLUMN], keep="last", maintain_order=True
    )
    keys = rows[SERIES_COLUMN].unique().to_list()
    parsed = [parse_series_key(key)[1] for key in keys]
    names = sorted({name for tags in parsed for name in tags})
    columns = {name: pl.Series([tags.get(name) for tags in parsed], dtype=pl.String) for name in names}
    tags = pl.DataFrame({SERIES_COLUMN: pl.Series(keys, dtype=pl.String), **columns})
    table = rows.join(tags, on=SERIES_COLUMN).drop(SERIES_COLUMN).to_arrow(compat_level=pl.CompatLevel.oldest())
    for name in names:
        index = table.column_names.index(name)
        column = table.column(name).cast(pa.string()).dictionary_encode()
        table = table.set_column(index, name, column)
    return table
