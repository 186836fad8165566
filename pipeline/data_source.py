"""`format("headrace")`: one table of a cluster as a batch source, a stream source and a sink of Spark.

Spark starts a new Python for each step of a plan, and that imports this module. So each method imports what it needs,
and nothing else is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from headrace.schemas.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.pipeline.source_options import Target, WriteOptions

FORMAT = "headrace"


class HeadraceDataSource(DataSource):
    """See `docs/operating/spark.md`. Spark pickles it to its workers: it holds options and nothing else."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns of the table, or those of option `columns`. Raises TableUnknown, ColumnUnknown, OptionInvalid."""
        from headrace.pipeline.cluster_view import table_of
        from headrace.pipeline.source_columns import source_schema, spark_schema
        from headrace.pipeline.source_options import schema_options

        target, node, columns, time_as_long, metadata = schema_options(self.options)
        table = table_of(target, node)
        return spark_schema(source_schema(table, columns, time_as_long=time_as_long, metadata=metadata))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The batch source."""
        from headrace.pipeline.batch_source import TableReader
        from headrace.pipeline.cluster_view import table_of
        from headrace.pipeline.source_columns import chosen_schema, source_schema
        from headrace.pipeline.source_options import read_options

        options = read_options(self.options)
        table = table_of(options.target, options.node)
        available = source_schema(table, time_as_long=options.time_as_long)
        return TableReader(options, chosen_schema(available, schema, options.target.name), table.tags)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The stream source."""
        try:
            return self._stream_reader(schema)
        except HeadraceError as error:
            return RefusedStream(error)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        from headrace.pipeline.cluster_view import table_of
        from headrace.pipeline.source_columns import chosen_schema, source_schema
        from headrace.pipeline.source_options import stream_options
        from headrace.pipeline.stream_source import TableStreamReader

        options = stream_options(self.options)
        table = table_of(options.target)
        available = source_schema(table, time_as_long=options.time_as_long, metadata=options.metadata)
        return TableStreamReader(options, chosen_schema(available, schema, options.target.name), table.tags)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The sink of a batch."""
        from headrace.pipeline.sink import BatchWriter

        return BatchWriter(self._write_options(overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """The sink of a stream, made anew for each batch."""
        from headrace.pipeline.checkpoint import check_sink, make_batch_durable
        from headrace.pipeline.sink import StreamWriter

        options = self._write_options(overwrite)
        checkpoint = self.options.get("checkpointLocation", "")
        writer = StreamWriter(options, schema, checkpoint)
        check_sink(checkpoint, options.target.cluster, options.target.name)
        make_batch_durable(checkpoint)
        return writer

    def _write_options(self, overwrite: bool) -> WriteOptions:
        from headrace.pipeline.sink import SinkRefused
        from headrace.pipeline.source_options import write_options

        if overwrite:
            raise SinkRefused(
                "the sink appends, and overwrites no table",
                action='use mode("append"), in a stream outputMode("append"); headrace delete removes rows, and rows of '
                "equal tags and time replace",
            )
        options = write_options(self.options)
        return options if options.tags else replace(options, makes_table=not _has_table(options.target))


def _has_table(target: Target) -> bool:
    """Whether a table is there as a write without tags is planned: see RowsRepeat."""
    from headrace.pipeline.cluster_view import TableUnknown, table_of

    try:
        table_of(target)
    except TableUnknown:
        return False
    return True


class RefusedStream(DataSourceStreamReader):
    """A stream source that cannot be opened, and says so when it is first asked.

    PySpark stops the reader behind any error. Where none was made, that is an error of its own, and the last that a
    user sees.
    """

    def __init__(self, error: HeadraceError) -> None:
        self._error = error

    def _refuse(self) -> NoReturn:
        raise self._error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Raises the error."""
        self._refuse()

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Raises the error."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raises the error."""
        del start, end
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Raises the error."""
        del partition
        self._refuse()
