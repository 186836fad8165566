"""The frame of the command line: which output goes to which stream, and the exit codes."""

from __future__ import annotations

import errno
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from headrace.cli.broker import parse_ports
from headrace.cli.main import NOUNS, build_app
from headrace.cli.options import parse_settings
from headrace.schemas.errors import HeadraceError, StateUnknown
from headrace.terminal.command import UsageInvalid, configure_logging, run_command
from headrace.terminal.output import Output
from headrace.terminal.sizes import short_number

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(autouse=True)
def _logging_as_found() -> Iterator[None]:
    """structlog's configuration belongs to the whole process; put it back."""
    yield
    structlog.reset_defaults()


class Refused(HeadraceError):
    """An error with an exit code of its own."""

    exit_code = 3


def end(body: Callable[[Output], None], *, json_output: bool = False) -> int:
    """Exit code of a command with this body."""
    with pytest.raises(typer.Exit) as caught, run_command(json_output) as output:
        body(output)
    return caught.value.exit_code


def fail(error: BaseException) -> Callable[[Output], None]:
    """A body that raises."""

    def body(_output: Output) -> None:
        raise error

    return body


def test_an_error_is_printed_as_message_and_action(capsys: pytest.CaptureFixture[str]) -> None:
    """People get the message and the action on stderr, nothing on stdout, exit code 1."""
    assert 1 == end(fail(HeadraceError("the topic is gone", action="create it")))
    printed = capsys.readouterr()
    assert ("", "error: the topic is gone\nwhat to do: create it\n") == (printed.out, printed.err)


def test_an_error_with_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    """Programs get the type, and whether the state is unknown."""
    assert 1 == end(fail(StateUnknown("no answer", retriable=True)), json_output=True)
    error = json.loads(capsys.readouterr().err)["error"]
    expected = {"type": "StateUnknown", "message": "no answer", "action": "", "retriable": True, "state_unknown": True}
    assert expected == error


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (Refused("two lines were bad"), 3, "two lines were bad"),
        (UsageInvalid("no such table"), 2, "no such table"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (PermissionError(13, "Permission denied", "/data"), 1, "/data: Permission denied"),
    ],
)
def test_exit_codes_distinguish_conditions(
    error: BaseException, code: int, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error class decides its code; an interruption is 130.

    An error of the operating system is printed as one line.
    """
    assert code == end(fail(error))
    assert printed in capsys.readouterr().err


def test_a_bug_keeps_its_traceback() -> None:
    """An unexpected exception is raised as it is."""
    with pytest.raises(ZeroDivisionError), run_command():
        _ = 1 / 0


def test_a_result_is_json_or_a_text_or_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """The same answer for programs and for people; paths become strings."""
    document = {"rows": 5, "path": Path("/x"), "bad": None}
    Output(json_output=True).result(document, "5 rows")
    assert {"rows": 5, "path": "/x", "bad": None} == json.loads(capsys.readouterr().out)
    Output().result(document, "5 rows")
    assert "5 rows\n" == capsys.readouterr().out
    Output().result(document)
    assert {"rows", "5", "path", "/x"} <= set(capsys.readouterr().out.split())


def test_tables_are_not_folded_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """A long value stays on its line, and text that looks like markup stays text."""
    value = "[red]" + "x" * 400
    Output().table(("column",), [(value,)])
    assert value in capsys.readouterr().out


def test_progress_is_for_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal a progress display prints nothing and costs nothing."""
    with Output().progress("writing", total=10) as advance:
        advance(4)
        advance(6, total=20)
    assert ("", "") == tuple(capsys.readouterr())


def test_logs_go_to_stderr(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings go to stderr, details only on request; with --json each is an object."""
    monkeypatch.delenv("HEADRACE__LOG__LEVEL", raising=False)
    with run_command():
        structlog.get_logger().warning("slow disk", seconds=3)
        structlog.get_logger().info("detail")
    printed = capsys.readouterr()
    assert "" == printed.out
    assert "slow disk" in printed.err
    assert "detail" not in printed.err
    monkeypatch.setenv("HEADRACE__LOG__LEVEL", "info")
    with run_command(True):
        structlog.get_logger().info("detail")
    assert "detail" == json.loads(capsys.readouterr().err)["event"]


@pytest.mark.parametrize("json_output", [False, True])
def test_a_traceback_in_the_log_has_no_values(capsys: pytest.CaptureFixture[str], json_output: bool) -> None:
    """Local variables of its frames may be passwords, or rows of a user."""
    configure_logging(json_output=json_output)
    try:
        connect("hunter" + "2")
    except OSError:
        structlog.get_logger().exception("leader task failed")
    logged = capsys.readouterr().err
    assert "Traceback" in logged
    assert "no such broker" in logged
    assert "hunter2" not in logged


def connect(password: str) -> None:
    """Fails with a secret in a local variable."""
    settings = {"sasl.password": password}
    raise OSError("no such broker", len(settings))


def test_the_environment_overrides_the_log_level_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`log.level` is a setting like any other; without it a command's own level holds."""
    monkeypatch.delenv("HEADRACE__LOG__LEVEL", raising=False)
    monkeypatch.chdir(tmp_path)
    with run_command(log_level="info"):
        structlog.get_logger().info("of the command")
    (tmp_path / "headrace.toml").write_text('[log]\nlevel = "Error"\n')
    with run_command(log_level="info"):
        structlog.get_logger().warning("below the file's level")
    monkeypatch.setenv("HEADRACE__LOG__LEVEL", "warning")
    with run_command(log_level="info"):
        structlog.get_logger().warning("of the environment")
    printed = capsys.readouterr().err
    assert [True, False, True] == [
        text in printed for text in ("of the command", "below the file's level", "of the environment")
    ]


def test_unknown_log_level_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A level that does not exist is named with those that do."""
    monkeypatch.setenv("HEADRACE__LOG__LEVEL", "loud")
    assert 2 == end(lambda _output: None)
    assert "loud" in capsys.readouterr().err


def test_settings_of_librdkafka_are_taken_verbatim() -> None:
    """-X key=value keeps everything after the first equals sign."""
    assert {} == parse_settings(None)
    assert {"linger.ms": "5", "sasl.password": "a=b"} == parse_settings(["linger.ms=5", "sasl.password=a=b"])
    for wrong in ("linger.ms", "=5"):
        with pytest.raises(UsageInvalid, match="KEY=VALUE"):
            parse_settings([wrong])


def test_advertised_ports_are_checked() -> None:
    """A list of different port numbers, or a usage error."""
    assert [] == parse_ports("")
    assert [19092, 19093] == parse_ports("19092, 19093")
    for wrong in ("x", "0", "70000", "19092,19092"):
        with pytest.raises(UsageInvalid, match="--advertise"):
            parse_ports(wrong)


@pytest.mark.parametrize(("value", "expected"), [(999, "999"), (1500, "1.5 k"), (7_200_000, "7.2 M"), (2e9, "2.0 G")])
def test_large_numbers_are_short(value: float, expected: str) -> None:
    """Counts of a progress display fit their column."""
    assert expected == short_number(value)


def test_version_and_help_exit_with_0() -> None:
    """`--version`, `--help` and the help of each noun print and exit with 0."""
    app = build_app()
    assert CliRunner().invoke(app, ["--version"]).stdout.startswith("headrace ")
    for arguments in ([], *([name] for name in get_command(app).commands)):  # type: ignore[attr-defined]
        assert 0 == CliRunner().invoke(app, [*arguments, "--help"]).exit_code


def test_unknown_options_are_usage_errors() -> None:
    """An unknown option or command ends with exit code 2."""
    assert 2 == CliRunner().invoke(build_app(), ["broker", "start", "--no-such-option"]).exit_code


def leaves(command: object, trail: tuple[str, ...] = ()) -> dict[tuple[str, ...], TyperCommand]:
    """Every command that does something, by its words."""
    if not isinstance(command, TyperGroup):
        assert isinstance(command, TyperCommand)
        return {trail: command}
    found: dict[tuple[str, ...], TyperCommand] = {}
    for name, inner in command.commands.items():
        found |= leaves(inner, (*trail, name))
    return found


def test_every_command_takes_json_and_has_help() -> None:
    """`--json` everywhere, and a help text on each command and option."""
    found = leaves(get_command(build_app()))
    assert len(found) >= len(NOUNS)
    without = [words for words, command in found.items() if "--json" not in {o for p in command.params for o in p.opts}]
    assert [] == without
    assert [] == [words for words, command in found.items() if not command.help]


def test_every_noun_is_registered() -> None:
    """Each module of `headrace.cli` that has `register` is listed, so that no command is forgotten."""
    folder = ROOT / "headrace" / "cli"
    offering = {path.stem for path in folder.glob("*.py") if "\ndef register(" in path.read_text()}
    assert offering == set(NOUNS)


def test_a_command_line_loads_its_noun_alone() -> None:
    """It has the same commands and options as in the whole; a wrong first word is compared with all of them."""
    whole = leaves(get_command(build_app()))
    for noun in {words[0] for words in whole} - {"down"}:
        alone = leaves(get_command(build_app([noun, "--help"])))
        expected = {words: each for words, each in whole.items() if words[0] == noun}
        # One module offers two commands.
        assert set(expected) == {words for words in alone if words[0] != "down"}
        for words, command in expected.items():
            assert command.get_help(typer.Context(command)) == alone[words].get_help(typer.Context(alone[words]))
    for line in ([], ["--help"], ["quary"], ["down"]):
        assert set(whole) == set(leaves(get_command(build_app(line))))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EPIPE, None])
def test_a_failed_write_of_a_log_line_stops_no_thread(monkeypatch: pytest.MonkeyPatch, number: int | None) -> None:
    """A full disk, a reader that went away, a closed stream: the thread that logs continues, and later lines are written."""
    configure_logging()
    broken, good = io.StringIO(), io.StringIO()

    def refuse(_line: str) -> int:
        raise OSError(number, "refused") if number is not None else ValueError("I/O operation on closed file")

    monkeypatch.setattr(broken, "write", refuse)
    monkeypatch.setattr(sys, "stderr", broken)
    structlog.get_logger().warning("nobody reads this")
    monkeypatch.setattr(sys, "stderr", good)
    structlog.get_logger().warning("read this")
    assert "read this" in good.getvalue()


@pytest.mark.parametrize(
    ("arguments", "message"), [("query -f -", "SQL is empty"), ("table drop db.t", "dropping db.t needs a yes")]
)
def test_a_closed_standard_input_is_an_empty_one(arguments: str, message: str) -> None:
    """As a daemon starts a command: no traceback, and no file of ours is taken for the input."""
    command = f"{sys.executable} -m headrace {arguments} --cluster c --bootstrap 127.0.0.1:1 <&-"
    ended = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (2, True, "") == (ended.returncode, message in ended.stderr, ended.stdout)
    assert "Traceback" not in ended.stderr


def test_a_column_with_numbers_and_empty_cells_is_right_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    """As the process ids of `up` with a node that was removed. Yes and no are no numbers."""
    Output().table(("pid", "online"), [(12_345, True), (None, False)])
    rows = [line.strip("│").split("│") for line in capsys.readouterr().out.splitlines()[3:5]]
    assert [[" 12345 ", " yes    "], ["       ", " no     "]] == rows
