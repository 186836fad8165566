"""Runs the input of `headrace sql`: statements at a node, and the commands that begin with a backslash."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from headrace.connectors.http import NodeUnreachable
from headrace.schemas.errors import HeadraceError
from headrace.shell.catalogue import Table, find_table, tables_of
from headrace.shell.statements import read_sql, read_statements, split
from headrace.shell.variables import Variables
from headrace.terminal.command import print_error
from headrace.terminal.output import Output, one_line
from headrace.terminal.result_view import footer, show_rows

if TYPE_CHECKING:
    from headrace.node_client import NodeClient

TABLES_FRESH_S = 5.0
"""How long the names for completion are used before they are read again."""
FILES_DEEP_MAX = 16
"""How deep files may name files with `\\i`: one that names itself ends with an error."""
HELP = (
    (r"\d", "tables"),
    (r"\d TABLE", "columns of a table"),
    (r"\set NAME VALUE", "$NAME in SQL has this value from now on; without a name: lists them"),
    (r"\unset NAME", "forgets a value"),
    (r"\i FILE", "runs the statements and commands of a file, to its first error"),
    (r"\x [on|off|auto]", "rows as records; auto: where a row does not fit"),
    (r"\timing [on|off]", "how long each statement took"),
    (r"\q", "leave; Ctrl-D too"),
    ("…;", "SQL, over several lines until ; Ctrl-C cancels it"),
)
QUIT = ("\\q", "exit", "quit")
_VERTICAL = {"on": True, "off": False, "auto": None}


class CommandInvalid(HeadraceError):
    """A backslash command that does not exist, or an argument that it does not take."""


class Shell:
    """The state of a session: its node, its variables, the names for completion, and how rows are shown."""

    def __init__(self, find_node: Callable[[], NodeClient], output: Output, variables: Variables | None = None) -> None:
        """`find_node` finds a node that is ready. It is asked again after one that does not answer."""
        self._find_node = find_node
        self._node: NodeClient | None = None
        self._output = output
        self._variables = variables or Variables()
        self._files_deep = 0
        self._vertical: bool | None = None
        self._timing = True
        self._tables: tuple[Table, ...] = ()
        self._tables_read_s = float("-inf")
        self._refreshing = threading.Lock()

    def connect(self) -> NodeClient:
        """The node of this session."""
        if self._node is None:
            self._node = self._find_node()
        return self._node

    def tables(self) -> Sequence[Table]:
        """The tables for completion. They are read on a thread: a key must not wait for a node."""
        fresh = time.monotonic() - self._tables_read_s < TABLES_FRESH_S
        if not fresh and self._refreshing.acquire(blocking=False):
            threading.Thread(target=self._refresh, name="shell-tables", daemon=True).start()
        return self._tables

    def interact(self, read: Callable[[], str]) -> None:
        """Run what `read` returns until it raises EOFError. An error ends a statement, never the shell."""
        self.tables()
        while True:
            try:
                text = read()
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            if text.strip().lower().removesuffix(";") in QUIT:
                return
            self._attempt(text)

    def run_script(self, lines: Iterable[str]) -> None:
        """Run statements and commands as they arrive. The first error is raised and ends the script, as `\\q` does."""
        for text in read_statements(lines):
            if text.lower().removesuffix(";") in QUIT:
                return
            if text.startswith("\\"):
                self._command(text)
            elif self._output.json_output:
                # Nodes end the line behind each row, and a script reads one line for each answer.
                for chunk in one_line(self._query(text, "json")):
                    sys.stdout.buffer.write(chunk)
                sys.stdout.buffer.flush()
            else:
                self._run(text)

    def _attempt(self, text: str) -> None:
        try:
            if text.strip().startswith("\\"):
                self._command(text.strip())
                return
            found = split(text)
            for statement in found.statements:
                self._run(statement)
        except KeyboardInterrupt:
            # The connection is closed by now, and the node ends a query whose client has left.
            sys.stderr.write("cancelled\n")
        except HeadraceError as error:
            print_error(HeadraceError(_one_line(error)), json_output=False)

    def _run(self, statement: str) -> None:
        started_s = time.monotonic()
        rows = show_rows(self._query(statement, "arrow"), vertical=self._vertical)
        took_ms = (time.monotonic() - started_s) * 1_000
        self._output.note(footer(rows, took_ms if self._timing else None))

    def _query(self, statement: str, form: str) -> Iterator[bytes]:
        try:
            return self.connect().query(statement, format=form, parameters=self._variables.used_by(statement))
        except NodeUnreachable:
            # The next statement looks for a node that answers.
            self._node = None
            raise

    def _refresh(self) -> None:
        try:
            self._tables = tables_of(self.connect().tables())
            # Loaded while the user types: the first answer must not wait for it.
            import_module("headrace.consumers.query.result_formats")
        except HeadraceError:
            # Completion is a convenience: the statement itself will name what is wrong.
            pass
        finally:
            self._tables_read_s = time.monotonic()
            self._refreshing.release()

    def _command(self, text: str) -> None:
        name, _, argument = text.rstrip(";").strip().partition(" ")
        argument = argument.strip()
        if name == "\\d":
            self._describe(argument)
        elif name == "\\set":
            self._set(argument)
        elif name == "\\unset":
            self._variables.unset(argument)
        elif name == "\\i":
            self._run_file(argument.strip("'\""))
        elif name == "\\x":
            self._vertical = self._choice(argument, _VERTICAL, None if self._vertical else True)
            self._output.note(f"records: {next(word for word, value in _VERTICAL.items() if value is self._vertical)}")
        elif name == "\\timing":
            self._timing = bool(self._choice(argument, {"on": True, "off": False}, not self._timing))
            self._output.note(f"timing: {'on' if self._timing else 'off'}")
        elif name in ("\\?", "\\h", "\\help"):
            self._show(("command", "what it does"), HELP)
        else:
            raise CommandInvalid(f"there is no command {name}", action=r"\? lists them")

    def _set(self, argument: str) -> None:
        name, _, text = argument.partition(" ")
        if name:
            self._variables.set(name, text.strip())
        else:
            self._show(("variable", "value"), self._variables.items())

    def _run_file(self, file: str) -> None:
        if not file:
            raise CommandInvalid("no file is named", action=r"for example \i report.sql")
        if self._files_deep >= FILES_DEEP_MAX:
            raise CommandInvalid(f"{file}: files name each other more than {FILES_DEEP_MAX} deep")
        self._files_deep += 1
        try:
            self.run_script(read_sql(file).splitlines(keepends=True))
        finally:
            self._files_deep -= 1

    def _show(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        if self._output.json_output:
            self._output.json([dict(zip(columns, row, strict=True)) for row in rows])
        else:
            self._output.table(columns, rows)

    @staticmethod
    def _choice(argument: str, choices: dict[str, bool | None] | dict[str, bool], toggled: bool | None) -> bool | None:
        if not argument:
            return toggled
        if argument.lower() not in choices:
            raise CommandInvalid(f"{argument} is not one of {', '.join(choices)}")
        return choices[argument.lower()]

    def _describe(self, name: str) -> None:
        tables = self._tables = tables_of(self.connect().tables())
        if name:
            columns = find_table(tables, name).columns
            self._show(("column", "type", "role"), [(each.name, each.sql_type, each.role) for each in columns])
            return
        rows = [
            (
                table.full_name,
                ", ".join(column.name for column in table.columns if column.role == "tag"),
                sum(column.role == "field" for column in table.columns),
            )
            for table in tables
        ]
        self._show(("table", "tags", "fields"), rows)


def _one_line(error: HeadraceError) -> str:
    text = f"{error.message} ({error.action})" if error.action else error.message
    return " ".join(text.split())
