"""`spark.read.format("headrace")`: a table as the nodes answer it, its unsealed rows included.

The driver divides the table into ranges of time. A task asks any node in sync for its range, as SQL over Arrow.

Filters are evaluated by Spark, unless the option `pushFilters` lets nodes do it.

Isolation: every task's answer contains all that the logs held when the query was planned. What is written later may
be in the answers of some tasks and not in those of others. Within one task an answer is of one moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from headrace.pipeline.cluster_view import nodes_beside, open_view
from headrace.pipeline.node_answers import Nodes, files_path
from headrace.pipeline.source_columns import as_planned
from headrace.pipeline.source_filters import Pushed, push, quoted, time_conditions
from headrace.pipeline.source_options import ReadOptions
from headrace.pipeline.time_ranges import FileSpan, TimeRange, divided
from headrace.pipeline.worker_process import begin_task
from headrace.schemas.tables import DEFAULT_SLICE_NS, TIME_COLUMN


class RangePartition(InputPartition):
    """One task: a range of time, asked of `nodes`; the answer contains the offsets `after`."""

    def __init__(self, number: int, sql: str, nodes: Nodes, after: dict[str, int]) -> None:
        super().__init__(number)
        self.sql = sql
        self.nodes = nodes
        self.after = after


class TableReader(DataSourceReader):
    """Reads one table. `schema` has the columns that Spark planned with, `tags` those that filters may name."""

    def __init__(self, options: ReadOptions, schema: pa.Schema, tags: Sequence[str]) -> None:
        self._options = options
        self._schema = schema
        self._tags = tuple(tags)
        self._pushed = Pushed(TimeRange(options.start_ns, options.end_ns))
        # Spark 4.1.1 keeps what a query has pushed in the source of the DataFrame, and plans the next query over it with
        # that, also one without filters: rows would be missing. So nodes evaluate filters only for a DataFrame of which
        # somebody says that one query reads it, once.
        if options.pushes_filters:
            # Spark refuses a reader of a class that takes filters while spark.sql.python.filterPushdown.enabled is off,
            # and tells nobody but itself whether it is. So the class takes none, and this attribute does.
            self.pushFilters = _PushFilters(self._tags, self._pushed)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        """One for each range of time; see DataSourceReader. A list: Spark takes nothing else."""
        options, target = self._options, self._options.target
        if options.node:
            nodes, after, slice_ns = nodes_beside(options.node, target.token), {}, DEFAULT_SLICE_NS
        else:
            with open_view(target) as view:
                after, slice_ns, nodes = view.newest_offsets(), view.slice_ns(), view.nodes()
        ranges = divided(_spans(nodes, target.database, target.table), self._pushed.time, slice_ns, len(self._schema))
        # Without a partition Spark runs one task with none.
        ranges = ranges or [TimeRange(0, 0)]
        return [RangePartition(number, self.sql(each), nodes, after) for number, each in enumerate(ranges)]

    def sql(self, time: TimeRange) -> str:
        """The statement of a task."""
        target = self._options.target
        columns = ", ".join(quoted(name) for name in self._schema.names) or quoted(TIME_COLUMN)
        conditions = " AND ".join([*time_conditions(time), *self._pushed.conditions])
        where = f" WHERE {conditions}" if conditions else ""
        return f"SELECT {columns} FROM {quoted(target.database)}.{quoted(target.table)}{where}"

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See DataSourceReader; runs in a worker."""
        begin_task()
        assert isinstance(partition, RangePartition), partition
        batches = partition.nodes.rows(partition.sql, partition.after, turn=partition.value)
        yield from as_planned(batches, self._schema, self._options.target.name)


class _PushFilters:
    """`pushFilters` of one reader."""

    def __init__(self, tags: Sequence[str], pushed: Pushed) -> None:
        self._tags = tags
        self._pushed = pushed
        # By this Spark knows the function of a reader that takes no filters.
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return push(filters, self._tags, self._pushed)


def _spans(nodes: Nodes, database: str, table: str) -> list[FileSpan]:
    """The files of a table. Each node lists those of its own groups, and members of a group have the same ones."""
    by_group: dict[str, list[dict[str, Any]]] = {}
    for listed in nodes.documents(files_path(database, table)):
        found: dict[str, list[dict[str, Any]]] = {}
        for each in listed["files"]:
            found.setdefault(each["group"], []).append(each)
        for group, files in found.items():
            by_group.setdefault(group, files)
    return [
        FileSpan(each["rows"], each["min_time_ns"], each["max_time_ns"])
        for files in by_group.values()
        for each in files
    ]
