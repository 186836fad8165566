"""The help of every command, and what the sources refer to."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from headrace.cli.main import build_app
from headrace.cli.usage import EXAMPLES

ROOT = Path(__file__).resolve().parents[4]
PAGE = re.compile(r"[\w/.-]+\.md\b")


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The root, every noun and every command, by its words."""
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*words, name))


ALL = dict(commands(get_command(build_app())))


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_help_has_one_example_that_is_a_command(words: tuple[str, ...]) -> None:
    """The example fits on one line of 80 columns, and its command exists with all of its options."""
    printed = CliRunner().invoke(build_app(words), [*words, "--help"], env={"COLUMNS": "80", "TERM": "dumb"}).stdout
    assert [EXAMPLES[" ".join(words)]] == re.findall(r"Example: (headrace .*?)\s*$", printed, re.MULTILINE)
    given = EXAMPLES[" ".join(words)].split()[1:]
    named = max((each for each in ALL if tuple(given[: len(each)]) == each), key=len)
    assert named[: len(words)] == words
    known = {option for parameter in ALL[named].params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in given if word.startswith("-")} <= known


def test_no_example_is_of_a_command_that_is_gone() -> None:
    """Each example belongs to a command."""
    assert {" ".join(words) for words in ALL} == set(EXAMPLES)


def options() -> Iterator[tuple[str, str, Any]]:
    """(command, option, parameter) of every option."""
    for words, command in ALL.items():
        for parameter in command.params:
            for option in parameter.opts:
                if option.startswith("--"):
                    yield " ".join(words), option, parameter


def test_the_same_option_has_one_name_everywhere() -> None:
    """A directory of data is `--data-dir` (`up` and `down` have `--dir`), a time to wait `--timeout SECONDS`.

    Avro schemas are no data of ours.
    """
    directories = {option for words, option, _ in options() if "dir" in option and words not in ("up", "down")}
    assert {"--data-dir", "--schema-dir"} == directories
    assert {"--dir"} == {option for words, option, _ in options() if "dir" in option and words in ("up", "down")}
    timed = [(option, each) for _, option, each in options() if "timeout" in option or "wait" in option]
    # A flag has no time, such as `--no-wait`.
    waits = {option for option, each in timed if not each.is_flag}
    assert {"--timeout"} == waits
    assert {"SECONDS"} == {parameter.metavar for _, option, parameter in options() if option == "--timeout"}


@pytest.mark.parametrize("option", ["--cluster", "--bootstrap", "--node", "--database", "--table", "--tag", "--start"])
def test_an_option_has_one_metavar(option: str) -> None:
    """The same option takes the same kind of value in every command."""
    assert 1 == len({parameter.metavar for _, name, parameter in options() if name == option})


def test_no_source_refers_to_a_document_outside_the_repository() -> None:
    """Neither comments nor messages name a design, an issue, or a page that a reader cannot open."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not listed:
        pytest.skip("not a git checkout")
    pages = {name for name in listed if name.endswith(".md")}
    sources = [name for name in listed if name.endswith((".py", ".avsc", ".js", ".html", ".toml", ".yml"))]
    sources = [name for name in sources if name != Path(__file__).relative_to(ROOT).as_posix()]
    texts = {name: (ROOT / name).read_text("utf-8") for name in sources if (ROOT / name).is_file()}
    assert len(texts) > 100
    foreign = [name for name, text in texts.items() if re.search(r"\bDESIGN\b|\bDEVELOPERS\b|BENCHMARKS\.md", text)]
    assert [] == foreign
    ends = tuple(f"/{page}" for page in pages)
    missing = {
        f"{name}: {page}"
        for name, text in texts.items()
        if not name.startswith("tests/")
        for page in PAGE.findall(text)
        if not f"/{page.lstrip('./')}".endswith(ends) and not any(end.endswith(f"/{page.lstrip('./')}") for end in ends)
    }
    assert set() == missing
