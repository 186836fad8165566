"""`headrace dlq`: the dead letters of raw topics, which ingest could not read: list, show and replay them."""

from __future__ import annotations

import base64
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.message_options import MessageOptions, message_job
from headrace.cli.option_groups import grouped
from headrace.cli.options import ClusterOptions, JsonOption
from headrace.cli.row_options import RowOptions
from headrace.cli.session import cluster_session
from headrace.connectors.log.topics import DLQ_PREFIX
from headrace.terminal.command import run_command
from headrace.terminal.output import Output, counted

if TYPE_CHECKING:
    from headrace.pipeline.dead_letter_queue import DeadLetter
    from headrace.pipeline.dead_letter_replay import DeadLetterReplay, Replayed

SHOWN_MAX = 10
CHARACTERS_MAX = 200

QueueArgument = Annotated[str, typer.Argument(metavar="dlq.T", help="The dead-letter topic.")]

dlq = typer.Typer(help="Dead letters: raw messages that ingest could not read.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the noun `dlq`."""
    app.add_typer(dlq, name="dlq")


@dlq.command("list")
@grouped
def list_queues(*, cluster: ClusterOptions, json_output: JsonOption = False) -> None:
    """List the dead-letter topics, and how many of their records were not replayed."""
    with run_command(json_output) as output, cluster_session(cluster) as session:
        from headrace.pipeline.dead_letter_queue import DeadLetterQueues

        found = [
            {
                "topic": each.topic,
                "records": each.records,
                "oldest": _time(each.oldest_ms),
                "newest": _time(each.newest_ms),
            }
            for each in DeadLetterQueues(session.log, session.topics).summaries()
        ]
        if output.json_output:
            output.json(found)
        elif found:
            output.table(tuple(found[0]), [tuple(each.values()) for each in found])
        else:
            output.note("there is no dead-letter topic: ingest creates one for each raw topic")


@dlq.command()
@grouped
def show(
    queue: QueueArgument,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Most records to show.")] = SHOWN_MAX,
    *,
    cluster: ClusterOptions,
    json_output: JsonOption = False,
) -> None:
    """Show the oldest records of a dead-letter topic that were not replayed, with their reasons."""
    with run_command(json_output) as output, cluster_session(cluster) as session:
        from headrace.pipeline.dead_letter_queue import DeadLetterQueues, dead_letter_of, records_of

        found = DeadLetterQueues(session.log, session.topics).queue(queue)
        letters = map(dead_letter_of, islice(records_of(session.log, found, limit=limit), limit))
        if output.json_output:
            output.json([_document(letter) for letter in letters])
            return
        for letter in letters:
            _print(output, letter)


@dlq.command()
@grouped
def replay(
    queue: QueueArgument,
    *,
    messages: MessageOptions,
    rows: RowOptions,
    cluster: ClusterOptions,
    json_output: JsonOption = False,
) -> None:
    """Parse dead letters once more and write their rows into a cluster.

    What is refused again stays in the queue, with its new reason. A replay that is stopped continues where it was.
    """
    with run_command(json_output) as output:
        # A mapping names raw topics.
        settings, job = message_job(messages, rows, cluster, queue, source_topic=queue.removeprefix(DLQ_PREFIX))
        with cluster_session(cluster) as session:
            from headrace.pipeline.dead_letter_queue import DeadLetterQueues
            from headrace.pipeline.dead_letter_replay import DeadLetterReplay

            found = DeadLetterQueues(session.log, session.topics).queue(queue)
            share_max = settings.ingest.rejected_share_max
            done = _run(output, DeadLetterReplay(session.log, session.topics, found, job, share_max), found.records)
        _report(output, queue, done)


def _run(output: Output, replaying: DeadLetterReplay, total: int) -> Replayed:
    from headrace.pipeline.dead_letter_replay import Replayed

    done = Replayed()
    with output.progress("replaying", total, "records") as advance:
        for step in replaying.run():
            done += step
            advance(step.records)
    return done


def _report(output: Output, queue: str, done: Replayed) -> None:
    text = f"{counted(done.records, 'record')} replayed: {counted(done.rows, 'row')}"
    if done.rejected:
        text += f"; {counted(done.rejected, 'record')} refused again, see: headrace dlq show {queue}"
    output.result(asdict(done), text)


def _document(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter as JSON: bytes in base64, null for no key."""
    return {
        "offset": letter.offset,
        "topic": letter.topic,
        "partition": letter.partition,
        "source_offset": letter.source_offset,
        "line": letter.line,
        "reason": letter.reason,
        "key": None if letter.key is None else base64.b64encode(letter.key).decode(),
        "value": base64.b64encode(letter.value).decode(),
    }


def _print(output: Output, letter: DeadLetter) -> None:
    place = (
        f"{letter.topic}, partition {letter.partition}, offset {letter.source_offset}" if letter.topic else "unknown"
    )
    output.line(f"offset {letter.offset}, from {place}, line {letter.line}: {letter.reason}")
    for name, content in (("key", letter.key), ("value", letter.value)):
        if content is not None:
            output.line(f"  {name}: {readable(content)}")


def readable(content: bytes) -> str:
    """Bytes for a terminal: without control characters, and not endless."""
    text = "".join(map(_shown, content[: 4 * CHARACTERS_MAX].decode("utf-8", "surrogateescape")))
    return text if len(text) <= CHARACTERS_MAX else f"{text[:CHARACTERS_MAX]}… ({counted(len(content), 'byte')})"


def _shown(character: str) -> str:
    # A byte that is no text comes as a surrogate.
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return repr(character)[1:-1]


def _time(time_ms: int | None) -> str | None:
    if time_ms is None:
        return None
    return datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
