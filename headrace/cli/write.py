"""`headrace write`: a file of readings into the log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from headrace.cli.option_groups import grouped
from headrace.cli.options import ClusterOptions, JsonOption, ThroughNodeOption
from headrace.cli.paths import path_text
from headrace.cli.row_options import DelimiterOption, RowOptions, TableColumnOption, TableOption, file_format
from headrace.cli.session import named_node
from headrace.connectors.arrow_start import keep_pandas_out
from headrace.terminal.command import EXIT_USAGE, UsageInvalid, run_command
from headrace.terminal.output import Output, counted, refused_lines

if TYPE_CHECKING:
    from headrace._access import ClusterAccess
    from headrace._file_rules import FileRules
    from headrace._file_writer import FileProgress, FileWriter
    from headrace.connectors.formats.interface import FormatOptions, RejectedLine
    from headrace.producers.writer import WriterSettings
    from headrace.settings import Settings

EXIT_REJECTED = 3
REJECTED_SHOWN = 20
STANDARD_INPUT = "-"


def register(app: typer.Typer) -> None:
    """Add the command `write`."""
    app.command()(write)


@grouped
def write(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|-", parser=path_text, help="File or pipe to write, also gzipped; - is standard input."
        ),
    ],
    database: Annotated[str, typer.Option("--database", metavar="DB", help="Database to write into.")],
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="influx|json|csv|parquet", help="Format; by the file's name when left out."),
    ] = None,
    node: ThroughNodeOption = None,
    *,
    cluster: ClusterOptions,
    table: TableOption = None,
    table_column: TableColumnOption = None,
    rows: RowOptions,
    no_tags: Annotated[
        bool, typer.Option("--no-tags", help="Rows of one series that share a time may replace each other.")
    ] = False,
    reject_nan: Annotated[bool, typer.Option("--reject-nan", help="Refuse lines with a field that is nan.")] = False,
    delimiter: DelimiterOption = ",",
    quorum: Annotated[
        int | None,
        typer.Option("--quorum", metavar="K", min=0, help="0 = not awaited, 1 = in the log, K = at K nodes."),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Write a file of readings.

    Good lines are written; bad ones are listed on stderr, and the exit code is 3.
    """
    with run_command(json_output) as output:
        from headrace.settings import load_settings

        _require_file(file)
        name = file_format(file, form)
        options = rows.with_table(table, table_column, delimiter=delimiter)
        keep_pandas_out()
        url = named_node(node, cluster)
        flags = {**cluster.flags(), "write.quorum": quorum, "write.time_resolution": rows.time_resolution}
        loaded = load_settings(flags)
        rules = _rules(options, rows.any_time, no_tags, reject_nan)
        _write_and_report(output, loaded, url, file, database, name, options, rules)


def _require_file(file: str) -> None:
    # Before Kafka: a misspelt name must not wait for a broker first.
    path = Path(file)
    if file != STANDARD_INPUT and (path.is_dir() or not path.exists()):
        raise UsageInvalid(
            f"{file}: {'is a directory' if path.is_dir() else 'no such file'}",
            action="write its files one by one, or all at once with headrace backfill" if path.is_dir() else "",
        )


@contextmanager
def _source(file: str) -> Iterator[tuple[str | BinaryIO, int | None]]:
    """What is read of a file, and its bytes where they are known."""
    if file != STANDARD_INPUT and not Path(file).is_file():
        # A pipe, as that of <(command), or a device: like standard input it can be read once.
        with open(file, "rb") as stream:
            yield stream, None
        return
    yield file, None if file == STANDARD_INPUT else Path(file).stat().st_size


def _rules(options: FormatOptions, any_time: bool, no_tags: bool, reject_nan: bool) -> FileRules:
    from headrace._file_rules import FileRules

    if no_tags and options.tags:
        raise UsageInvalid("--tags and --no-tags contradict each other")
    return FileRules(any_time, no_tags, reject_nan)


def _write_and_report(
    output: Output,
    settings: Settings,
    node: str | None,
    file: str,
    database: str,
    form: str,
    options: FormatOptions,
    rules: FileRules,
) -> None:
    started_s = time.perf_counter()
    done = _write_file(output, settings, node, file, database, form, options, rules)
    _report(output, done, round(time.perf_counter() - started_s, 3))
    # A code of its own: a script must distinguish a file with some bad lines from one that was not written.
    if done.rejected or done.refused_columns:
        raise typer.Exit(EXIT_REJECTED)


def _write_file(
    output: Output,
    settings: Settings,
    node: str | None,
    file: str,
    database: str,
    form: str,
    options: FormatOptions,
    rules: FileRules,
) -> FileProgress:
    from headrace._file_writer import FileWriter
    from headrace.connectors.formats.interface import FormatError
    from headrace.schemas.errors import HeadraceError

    # Lines are counted from 1, as editors do.
    def show(line: RejectedLine) -> None:
        output.note(f"{'row' if form == 'parquet' else 'line'} {line.line + 1}: {line.reason}")

    access = _open(output, settings, node)
    try:
        writing = FileWriter(access, database, _writer_settings(settings), show, REJECTED_SHOWN, rules)
        try:
            _run(output, writing, file, form, options)
        except HeadraceError as error:
            rows = writing.progress.rows
            # What cannot be read is not sent, and so with these two.
            is_unsent = isinstance(error, FormatError) or getattr(error, "exit_code", None) in (
                EXIT_USAGE,
                EXIT_REJECTED,
            )
            if is_unsent and not rows:
                output.note("nothing was written")
            else:
                output.note(f"{counted(rows, 'row')} sent before this failed; writing them again is safe")
            raise
        finally:
            hidden = writing.progress.rejected - REJECTED_SHOWN
            if hidden > 0:
                output.note(f"and {refused_lines(hidden, 'more ')}")
    finally:
        access.close()
    return writing.progress


def _open(output: Output, settings: Settings, node: str | None) -> ClusterAccess:
    """The way to the cluster, connected: a cluster that does not answer is an error before the file is read."""
    if node is not None:
        from headrace._node_access import NodeAccess

        through = NodeAccess(node)
        through.tables.refresh()
        return through
    from headrace._access import LogAccess
    from headrace._connection import ClusterConnection, open_cluster

    connection = ClusterConnection(lambda: open_cluster(settings, on_wait=output.note))
    connection.open()
    return LogAccess(connection)


def _writer_settings(settings: Settings) -> WriterSettings:
    from headrace.producers.writer import WriterSettings
    from headrace.schemas.tables import TimeResolution
    from headrace.settings import FLAG

    return WriterSettings(
        settings.write.quorum,
        settings.write.quorum_timeout_ms,
        settings.write.compression,
        resolution=TimeResolution(settings.write.time_resolution),
        # A setting is for tables to come. Whoever names a resolution for this file wants it.
        resolution_required=settings.origin("write.time_resolution") == FLAG,
    )


def _run(output: Output, writing: FileWriter, file: str, form: str, options: FormatOptions) -> None:
    """Write behind a progress bar of bytes, or of rows where the number of bytes is not known."""
    shown = 0
    with (
        _source(file) as (source, total),
        output.progress("writing", total, "rows" if total is None else "B") as advance,
    ):
        for progress in writing.write(source, form, options):
            reached = progress.rows if total is None else progress.bytes_read
            advance(reached - shown)
            shown = reached


def _report(output: Output, done: FileProgress, seconds: float) -> None:
    for name, reason in done.refused_columns.items():
        output.note(f"column {name!r} is left out: {reason}")
    document: dict[str, object] = {
        "rows": done.rows,
        "points": done.points,
        "rejected": done.rejected,
        "replaced": done.replaced,
        "replaced_exact": done.replaced_exact,
        "nan": done.nan,
        "seconds": seconds,
        "refused_columns": dict(done.refused_columns),
        "offsets": dict(done.offsets),
    }
    text = f"{counted(done.rows, 'row')}, {counted(done.points, 'point')} in {seconds:.1f} s"
    if done.replaced or not done.replaced_exact:
        least = "" if done.replaced_exact else "at least "
        text += f"; {least}{counted(done.replaced, 'row')} replaced others of the same series and time"
    if done.nan:
        text += f"; {counted(done.nan, 'value')} nan"
    if done.rejected:
        text += f", {refused_lines(done.rejected)}"
    output.result(document, text)
