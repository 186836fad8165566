"""`headrace sync`: sealed rows of an edge, sent to a centre. The commands of a centre are in `sync_centre.py`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.option_groups import grouped
from headrace.cli.options import ClusterOptions, JsonOption, SettingsOption, parse_settings
from headrace.cli.paths import path_of
from headrace.cli.sync_centre import add_commands, centre_senders
from headrace.cli.sync_verify import verify
from headrace.consumers.node.allocator import keep_freed
from headrace.terminal.command import EXIT_INTERRUPTED, UsageInvalid, run_command
from headrace.terminal.disk_start import disk_start

if TYPE_CHECKING:
    from headrace.consumers.sync.send_loop import SendLoop, SendOptions
    from headrace.terminal.output import Output
    from headrace.terminal.progress_bar import Advance
    from headrace.terminal.stop_signals import StopSignals

EXIT_LEFT = 3
"""Files were rejected, or are left for another round."""
FILES_SHOWN = 20
REJECTIONS_SHOWN = 5
KEPT_BYTES_MAX = 64 << 20
"""Freed memory that a sender keeps: it runs on small machines."""
sync = typer.Typer(help="Sealed rows of an edge, sent to a centre.", no_args_is_help=True)
StateOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="D",
        parser=path_of,
        help="State directory of the sender; by default below ~/.local/state.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the noun `sync`, with the commands of a centre."""
    add_commands(sync)
    sync.command()(verify)
    app.add_typer(sync, name="sync")


@sync.command()
def send(
    node: Annotated[str, typer.Option("--node", metavar="HOST:PORT", help="A node of the store to send from.")],
    bootstrap: Annotated[str, typer.Option("--to-bootstrap", metavar="B", help="Kafka of the centre, host:port.")],
    cluster: Annotated[str, typer.Option("--to-cluster", metavar="C", help="Name of the centre.")],
    data_dir: StateOption = None,
    name: Annotated[str, typer.Option("--name", metavar="SITE", help="What people call this sender.")] = "",
    databases: Annotated[str, typer.Option("--databases", metavar="A,B", help="Send these alone.")] = "",
    once: Annotated[bool, typer.Option("--once", help="One round, then end.")] = False,
    interval_s: Annotated[float | None, typer.Option("--interval-s", min=0, help="Pause between two rounds.")] = None,
    seal_age_s: Annotated[
        float | None, typer.Option("--seal-age-s", min=0, help="Seal rows that are in no file for that long.")
    ] = None,
    rate_limit: Annotated[int | None, typer.Option("--rate-limit", min=0, help="Bytes a second; 0 = no limit.")] = None,
    window_bytes: Annotated[int | None, typer.Option("--window-bytes", min=1, help="Bytes without a verdict.")] = None,
    digest: Annotated[
        str, typer.Option("--digest", metavar="xxh3|md5", help="md5 adds an MD5 to the digest of the catalogue.")
    ] = "xxh3",
    settings: SettingsOption = None,
    json_output: JsonOption = False,
) -> None:
    """Send what the centre has not decided about, again and again, until SIGTERM or Ctrl-C.

    With --once it ends with 0 when all was accepted, 3 when files are rejected or left, 1 on a failure.
    """
    code = 0
    with run_command(json_output) as output:
        from headrace.consumers.sync.send_loop import SendLoop, SendOptions
        from headrace.settings import load_settings

        flags = {"interval_s": interval_s, "seal_age_s": seal_age_s}
        flags |= {"rate_limit_bytes": rate_limit, "window_bytes": window_bytes}
        loaded = load_settings({"send": flags, "kafka": parse_settings(settings)})
        options = SendOptions(
            node=_node_url(node),
            bootstrap=bootstrap,
            cluster=cluster,
            directory=data_dir or default_directory(cluster),
            settings=loaded.send,
            name=name,
            databases=_names(databases),
            once=once,
            md5=_is_md5(digest),
            kafka=loaded.kafka,
        )
        with disk_start():
            figures, received, rejections = _send(SendLoop, options, output)
        _note_rejections(output, rejections)
        output.result(figures)
        code = _send_code(figures, received, once=once, rejected=bool(rejections))
    raise typer.Exit(code)


@sync.command()
@grouped
def status(data_dir: StateOption = None, *, cluster: ClusterOptions, json_output: JsonOption = False) -> None:
    """How far senders are: those of a centre, with --cluster and --bootstrap, or else by their state directories."""
    with run_command(json_output) as output:
        from headrace.consumers.sync.send_report import sender_documents

        of_centre = bool(cluster.cluster_name or cluster.bootstrap)
        if data_dir is not None and of_centre:
            raise UsageInvalid("--data-dir and a cluster are given", action="give one of them")
        senders = centre_senders(cluster) if of_centre else sender_documents(data_dir or default_root())
        output.result({"senders": senders}, lambda: _show_senders(output, senders))


@sync.command()
def resend(
    sender: Annotated[str, typer.Option("--sender", metavar="U", help="UUID of the sender.")],
    file: Annotated[
        list[str] | None, typer.Option("--file", metavar="F", help="Only this file; may be repeated.")
    ] = None,
    data_dir: StateOption = None,
    json_output: JsonOption = False,
) -> None:
    """Let a sender send files again, also those that were rejected.

    Loading a file twice changes nothing. One that the edge has merged since brings back what was deleted at the centre.
    """
    with run_command(json_output) as output:
        from headrace.consumers.sync.send_report import check_files
        from headrace.consumers.sync.state_directory import find_sender, request_resend

        directory = find_sender(data_dir or default_root(), sender)
        check_files(directory, file or [])
        request_resend(directory, list(file) if file else None)
        what = ", ".join(file) if file else "everything"
        output.result(
            {"sender": sender, "files": file or None, "directory": str(directory)},
            f"sender {sender} sends {what} again when its next round begins",
        )


@sync.command()
def forget(
    node: Annotated[str, typer.Option("--node", metavar="HOST:PORT", help="A node of the store.")],
    cluster: Annotated[str, typer.Option("--to-cluster", metavar="C", help="Name of the centre.")],
    json_output: JsonOption = False,
) -> None:
    """Let a store wait no more for a centre that is gone: its rows are merged and dropped without it."""
    with run_command(json_output) as output:
        from headrace.consumers.sync.source_store import forget_centre

        forgotten = forget_centre(_node_url(node), cluster)
        output.result({"cluster": cluster, "centres": forgotten}, f"{cluster} is forgotten at {node}")


def default_root() -> Path:
    """Where state directories are: below XDG_STATE_HOME, or ~/.local/state. Raises UsageInvalid without a home."""
    state = os.environ.get("XDG_STATE_HOME", "")
    if state:
        return Path(state) / "headrace" / "sync"
    try:
        return Path.home() / ".local" / "state" / "headrace" / "sync"
    except RuntimeError:
        raise UsageInvalid("this user has no home directory", action="give --data-dir") from None


def default_directory(cluster: str) -> Path:
    """The state directory for a centre."""
    return default_root() / cluster


def _names(text: str) -> frozenset[str]:
    return frozenset(each.strip() for each in text.split(",") if each.strip())


def _is_md5(digest: str) -> bool:
    if digest not in ("xxh3", "md5"):
        raise UsageInvalid(f"--digest {digest} is none of xxh3, md5")
    return digest == "md5"


def _node_url(node: str) -> str:
    from headrace.node_client import NodeClient

    return NodeClient(node).url


def _note_rejections(output: Output, rejections: Sequence[str]) -> None:
    for line in rejections[:REJECTIONS_SHOWN]:
        output.note(f"rejected: {line}")
    if len(rejections) > REJECTIONS_SHOWN:
        output.note(f"and {len(rejections) - REJECTIONS_SHOWN:,} more: headrace sync status")


def _send_code(figures: Mapping[str, Any], received: int, *, once: bool, rejected: bool) -> int:
    if received == signal.SIGINT:
        return EXIT_INTERRUPTED
    left = rejected or figures["failed"] or figures["waiting"]
    # One that was stopped does not know what is left: its round may not have begun.
    return EXIT_LEFT if once and (left or received) else 0


def _send(loop: type[SendLoop], options: SendOptions, output: Output) -> tuple[dict[str, Any], int, list[str]]:
    """The counts of a run, the signal that has ended it, 0 for none, and what is rejected."""
    from headrace.consumers.sync.sender import NOTHING_SENT
    from headrace.terminal.stop_signals import stop_signals

    # Chunks are allocated and freed by the megabyte.
    keep_freed(KEPT_BYTES_MAX)
    began_s = time.monotonic()
    with stop_signals(output.note) as signals, output.progress("sending", None, "B") as advance:
        watcher = _Watcher(output, signals, advance)
        sending = loop(options, watcher)
        try:
            figures = sending.run()
        except KeyboardInterrupt:
            # A service manager stops with SIGTERM, which is no failure. Ctrl-C ends with 130 everywhere, and so does a
            # second signal within a round: its counts are not known here.
            if signals.received == signal.SIGINT or watcher.has_begun:
                raise
            figures = {**NOTHING_SENT, "seconds": round(time.monotonic() - began_s, 3)}
    return figures, signals.received, sending.rejections


class _Watcher:
    """See Watcher."""

    def __init__(self, output: Output, signals: StopSignals, advance: Advance) -> None:
        self._output, self._signals, self._advance = output, signals, advance
        self.has_begun = False
        """Whether a round has begun."""
        self._shown = 0
        self._noted = ""

    def stopping(self) -> bool:
        return self._signals.stop()

    def note(self, line: str) -> None:
        # Not again and again, while a line is cut for hours.
        if line != self._noted:
            self._noted = line
            self._output.note(line)

    def progress(self, sent_bytes: int, total_bytes: int) -> None:
        # Before the first round nothing has begun, and a signal interrupts at once.
        self._signals.begin_work()
        self.has_begun = True
        # A new round begins with nothing sent: the bar continues behind the one before.
        step = sent_bytes - self._shown
        self._shown = sent_bytes
        self._advance(step, total_bytes)


def _show_senders(output: Output, senders: list[dict[str, Any]]) -> None:
    columns = ("sender", "name", "accepted", "rejected", "waiting", "bytes_left", "seconds_left", "last_error")
    output.table(columns, [tuple(each[name] for name in columns) for each in senders])
    files = [(each["name"] or each["sender"], *file.values()) for each in senders for file in each["files"]]
    if files:
        shown = files[:FILES_SHOWN]
        title = f"{len(shown)} of {len(files)} files"
        output.table(("sender", "file", "state", "chunk", "chunks", "tries", "error"), shown, title)
