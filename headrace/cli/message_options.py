"""The options and the job of the commands that read raw messages: `headrace ingest run` and `headrace dlq replay`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.paths import path_of, path_text
from headrace.cli.row_options import RowOptions, TableColumnOption, TableOption
from headrace.cli.session import require_cluster
from headrace.connectors.arrow_start import keep_pandas_out
from headrace.terminal.command import UsageInvalid

if TYPE_CHECKING:
    from headrace.cli.options import ClusterOptions
    from headrace.connectors.formats.interface import FormatOptions
    from headrace.pipeline.job import IngestJob
    from headrace.settings import Settings

RAW_FORMATS = ("influx", "json", "csv", "avro", "confluent-avro", "confluent-json", "arrow")
"""The formats of messages in raw topics."""


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """Format of the messages of a topic, and the tables that their rows go to."""

    form: Annotated[str, typer.Option("--format", metavar="|".join(RAW_FORMATS), help="Format of the raw messages.")]
    database: Annotated[
        str | None, typer.Option("--database", metavar="DB", help="Database to write into; a mapping may name it.")
    ] = None
    table: TableOption = None
    table_column: TableColumnOption = None
    columns: Annotated[
        str, typer.Option("--columns", metavar="A,B", help="Columns of CSV messages, which then have no header.")
    ] = ""
    mapping: Annotated[
        Path | None,
        typer.Option(
            "--mapping", metavar="FILE", parser=path_of, help="TOML: table, tags, time and fields of each topic."
        ),
    ] = None
    schema_dir: Annotated[
        str | None,
        typer.Option(
            "--schema-dir", metavar="D", parser=path_text, help="Avro schemas: ID.avsc, or the one of plain Avro."
        ),
    ] = None
    registry: Annotated[
        str | None, typer.Option("--registry", metavar="URL", help="The schema registry of Confluent-framed Avro.")
    ] = None

    def database_and_options(self, rows: RowOptions, topic: str) -> tuple[str, FormatOptions]:
        """What the command names, or its mapping for the topic. Raises UsageInvalid."""
        database, options = self.database, rows.with_table(self.table, self.table_column, columns=self.columns)
        if self.form not in RAW_FORMATS:
            raise UsageInvalid(
                f"--format {self.form} is not read from topics", action=f"choose one of {', '.join(RAW_FORMATS)}"
            )
        if self.mapping is not None:
            named, options = _mapped_options(self.mapping, topic, options)
            if database is not None and named not in (None, database):
                raise UsageInvalid(f"--database {database} is {named} in the mapping", action="give one of them")
            database = database or named
        if database is None:
            raise UsageInvalid("no database is named", action="give --database DB")
        return database, self._with_schemas(options)

    def _with_schemas(self, options: FormatOptions) -> FormatOptions:
        """Options with the place of the schemas. Raises UsageInvalid for a format that needs none, or has none."""
        from headrace.connectors.formats.interface import SCHEMA_FORMATS, OptionsError, SchemaPlace

        if self.form not in SCHEMA_FORMATS:
            for option, value in (("--schema-dir", self.schema_dir), ("--registry", self.registry)):
                if value is not None:
                    raise UsageInvalid(
                        f"{option} is not for --format {self.form}", action=f"only {' and '.join(SCHEMA_FORMATS)}"
                    )
            return options
        from headrace.connectors.formats.schema_store import check_place

        # A worker may have another working directory.
        directory = None if self.schema_dir is None else str(Path(self.schema_dir).absolute())
        place = SchemaPlace(directory, self.registry)
        try:
            check_place(place, numbered=self.form == "confluent-avro")
        except OptionsError as error:
            raise UsageInvalid(error.message, action=error.action) from error
        return replace(options, schemas=place)


def message_job(
    messages: MessageOptions, rows: RowOptions, cluster: ClusterOptions, topic: str, *, source_topic: str = ""
) -> tuple[Settings, IngestJob]:
    """The settings and the job of a command that reads the messages of `topic`.

    `source_topic` is the one that a mapping names, where it is another. Raises UsageInvalid, ClusterUnnamed,
    SettingsInvalid, OptionsError.
    """
    from headrace.settings import load_settings

    database, options = messages.database_and_options(rows, source_topic or topic)
    keep_pandas_out()
    settings = load_settings({**cluster.flags(), "write.time_resolution": rows.time_resolution})
    require_cluster(settings)
    return settings, _job(settings, topic, database, messages.form, options, rows.any_time)


def _job(settings: Settings, topic: str, database: str, form: str, options: FormatOptions, any_time: bool) -> IngestJob:
    from headrace.connectors.formats.interface import message_format
    from headrace.connectors.formats.parser import check_options
    from headrace.pipeline.job import IngestJob
    from headrace.schemas.tables import TimeResolution

    limits = settings.ingest
    if options.schemas.registry is not None:
        place = replace(options.schemas, user=limits.registry_user, password=limits.registry_password)
        options = replace(options, schemas=place)
    job = IngestJob(
        settings.cluster.name,
        settings.cluster.bootstrap,
        topic,
        database,
        message_format(form),
        options,
        tuple(sorted(settings.kafka.items())),
        settings.write.compression,
        TimeResolution(settings.write.time_resolution),
        any_time,
    )
    # Before there is a checkpoint, which belongs to one format.
    check_options(job.format, job.options)
    return job


def _mapped_options(file: Path, topic: str, given: FormatOptions) -> tuple[str | None, FormatOptions]:
    """(database, options) of a topic in a mapping; `given` are those of the command. Raises UsageInvalid."""
    from headrace.connectors.formats.interface import OptionsError
    from headrace.connectors.formats.mapping_file import read_mapping_file

    try:
        found = read_mapping_file(file, topic, given)
    except OptionsError as error:
        raise UsageInvalid(error.message, action=error.action) from error
    return found.database, found.options
