"""The line editor: prompts, history, completion, and statements of several lines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.output import create_output

from headrace.shell.catalogue import Table
from headrace.shell.completion import candidates
from headrace.shell.history import history_path, prepare_history
from headrace.shell.statements import split

COMPLETIONS_MAX = 200


def line_editor(prompt: str, tables: Callable[[], Sequence[Table]], note: Callable[[str], None]) -> Callable[[], str]:
    """A function that reads the next input. It raises EOFError at Ctrl-D and KeyboardInterrupt at Ctrl-C."""
    session: PromptSession[str] = PromptSession(
        history=_history(note),
        completer=_TableCompleter(tables),
        complete_while_typing=False,
        # Enter ends a complete input, and begins another line of one that is not.
        multiline=Condition(lambda: not is_complete(get_app().current_buffer.document.text)),
        prompt_continuation=lambda width, _line, _wrapped: " " * max(0, width - 4) + "  > ",
        # With stdout in a pipe the editor still has the terminal that stderr is.
        output=create_output(always_prefer_tty=True),
        enable_history_search=True,
    )
    return lambda: session.prompt(prompt)


def is_complete(text: str) -> bool:
    """Whether an input can run: a command of the shell, statements with their `;`, or nothing."""
    stripped = text.strip()
    if not stripped or stripped.startswith("\\") or stripped.lower() in ("exit", "quit"):
        return True
    found = split(text)
    return bool(found.statements) and not found.rest_has_content


def _history(note: Callable[[str], None]) -> History:
    path = history_path(os.environ)
    try:
        prepare_history(path)
    except OSError as error:
        note(f"no history: {path}: {error.strerror}")
        return InMemoryHistory()
    return FileHistory(str(path))


class _TableCompleter(Completer):
    """Completes from the tables of the moment."""

    def __init__(self, tables: Callable[[], Sequence[Table]]) -> None:
        self._tables = tables

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """See Completer."""
        del complete_event
        found = candidates(document.text_before_cursor, document.text, self._tables())
        for _, (text, length) in zip(range(COMPLETIONS_MAX), found, strict=False):
            yield Completion(text, start_position=-length)
