"""The prose of the pages: short sentences, narrow lines, the field's words, and names of files that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_tree import PACKAGES, PURE_MODULES

ROOT = Path(__file__).resolve().parents[2]
LOOSE_PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "ops/README.md"]
PAGES = [*LOOSE_PAGES, *sorted((ROOT / "docs").rglob("*.md"))]
GLOSSARY = ROOT / "docs/internals/glossary.md"
SETTINGS = ROOT / "docs/operating/settings.md"
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
COLUMNS_MAX = 100
WORDS_MAX = 25

# Metaphors of our own for which the field has a term; a sentence that needs one has no actor or no verb.
METAPHORS = re.compile(
    r"\b(said|says?|saying|told|tells?|telling|heard|hears?|hearing|speaks?|speaking|spoke|shun(?:s|ned)?"
    r"|lies?|lying|stands?|stood|look(?:s|ed)? after|go(?:es|ne)? on|going on|went on|in hand"
    r"|tak(?:e|es|en|ing) apart|made anew)\b",
    re.IGNORECASE,
)

# The words of docs/internals/glossary.md that code, logs, metrics and messages rely on.
TERMS = """
    accumulator, acknowledgement, admin client, balancer, batch, birth, bucket, catalogue, chain, chain
    samples, change, checkpoint, chunk, claim, compaction, content digest, data group, dead letter,
    divergence, divergence monitor, driver, driver scheduler, election, eligible, epoch, era, exile, failure detector, fenced, file
    copy, follower, formal change, forward log, frontier, gap, grace period, group commit, header, heartbeat,
    incarnation, index, ingest, journal, leader, leader tasks, leadership, level, literal, log consumer, log monitor,
    memtable, metadata group, micro-batch, node, offline, offset, offset range, origin check, peer source,
    periodic task, pre change, producer, query service, query timer, quorum, rank, raw topic, readiness,
    rebatch, recovery coordinator, recovery method, recovery plan, recovery supervisor, replica, replica
    position, ring, route, router, scan request, schema log, schema match, scrubber, seal, segment, sender,
    sentinel, sequence, series key, slice, slot, slot table, snapshot, snapshot registry, store job, template,
    tombstone, trim, unsynced, version, watermark, window, write-ahead log, writer
"""


def name_of(page: Path) -> str:
    """A page as a failing test names it."""
    return str(page.relative_to(ROOT))


def prose_of(page: Path) -> str:
    """A page without its fenced blocks; every line keeps its number.

    The table of settings is left out: its text is that of the code, and another test compares the two.
    """
    text = FENCE.sub(lambda block: "\n" * block[0].count("\n"), page.read_text("utf-8"))
    return re.sub(r"^\| `\w+\.\w+` \| .*$", "", text, flags=re.MULTILINE) if page == SETTINGS else text


def without_code(text: str) -> str:
    """The text with code, links and addresses as one word each."""
    text = re.sub(r"``.+?``|`[^`]+`", "code", text)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)


def passages(page: Path) -> Iterator[str]:
    """Paragraphs, list items and table cells of a page, each on one line."""
    for block in re.split(r"\n\s*\n", prose_of(page)):
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        for item in re.split(r"\n(?=\s*(?:[-*]|\d+\.)\s|\|)", "\n".join(lines)):
            # A cell is a list of short facts: a semicolon ends one as a full stop would.
            cells = re.split(r"(?<!\\)\||;", item) if item.lstrip().startswith("|") else [item]
            yield from (re.sub(r"^\s*(?:[-*]|\d+\.)\s+|\s+", " ", cell).strip() for cell in cells)


def sentences(page: Path) -> Iterator[str]:
    """The sentences of a page; a colon that ends a passage ends a sentence, a semicolon does not."""
    for passage in passages(page):
        yield from re.split(r"(?<=[.!?])[\"*)_]*\s+(?=[\"*(A-Z_`0-9c])", without_code(passage))


def words_in(sentence: str) -> int:
    """How many words a sentence has; code counts as one, dashes and signs as none."""
    return len(re.findall(r"[\w'’/.,-]*\w[\w'’/.,-]*", sentence))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_are_narrow(page: Path) -> None:
    """A line of prose has 100 columns at most; a table's row, or a line that one link fills, may be wider."""
    wide = [
        f"{number}: {line}"
        for number, line in enumerate(prose_of(page).splitlines(), 1)
        if len(line) > COLUMNS_MAX and not line.lstrip().startswith("|") and len(without_code(line)) > 50
    ]
    assert wide == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_sentences_are_short(page: Path) -> None:
    """No sentence has more than 25 words."""
    assert [sentence for sentence in sentences(page) if words_in(sentence) > WORDS_MAX] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pages_use_the_fields_words(page: Path) -> None:
    """No metaphor of our own: a node reports, receives and continues; a file is stored."""
    assert [sentence for sentence in sentences(page) if METAPHORS.search(sentence)] == []


def test_the_glossary_has_every_term() -> None:
    """Each term has one line that begins with it, and no term has two."""
    found = re.findall(r"^\| \*\*(.+?)\*\*", GLOSSARY.read_text("utf-8"), re.MULTILINE)
    terms = [term.strip() for name in found for term in name.split(",")]
    assert {" ".join(term.split()) for term in TERMS.split(",")} - set(terms) == set()
    assert sorted(terms) == sorted(set(terms))


def test_the_glossary_is_linked() -> None:
    """The README and the architecture page link to it."""
    for page in ("README.md", "docs/internals/architecture.md"):
        assert "glossary.md" in (ROOT / page).read_text("utf-8"), page


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_tests_that_a_page_names_exist(page: Path) -> None:
    """A test that a page gives as evidence exists under that name."""
    sources = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    there = {name for source in sources for name in re.findall(r"^ *def (test_\w+)", source, re.MULTILINE)}
    assert set(re.findall(r"::(test_\w+)", prose_of(page))) - there == set()


def project_files() -> set[str]:
    """Every source, test and document as a path from the root."""
    rooms = (*PACKAGES, "tests", "ops", "tools")
    found = (path for room in rooms for path in (ROOT / room).rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in found}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_a_page_names_exist(page: Path) -> None:
    """A module or test that a page names is there, by its path or by the end of it."""
    files = project_files()
    named = re.findall(r"`(?:\.\./)*([\w/.-]+\.(?:py|avsc|xml|yml))(?:::\w+)?`", prose_of(page))
    ends = {"/".join(name.split("/")[-count:]) for name in files for count in range(1, name.count("/") + 2)}
    assert sorted(name for name in set(named) - ends if not (ROOT / name).exists()) == []


def test_the_reading_guide_ends_the_architecture() -> None:
    """The last section of the architecture names ten files, in the order in which to read them."""
    guide = (ROOT / "docs/internals/architecture.md").read_text("utf-8").rpartition("\n## ")[2]
    assert guide.startswith("Reading guide")
    numbered = re.findall(r"^\| (\d+) \| `([\w/.]+\.py)`", guide, re.MULTILINE)
    assert [int(number) for number, _ in numbered] == list(range(1, 11))
    assert all((ROOT / path).is_file() for _, path in numbered)


def test_pure_modules_of_the_page_are_checked() -> None:
    """Whatever the architecture lists as pure is in the list that the test of the tree checks."""
    page = (ROOT / "docs/internals/architecture.md").read_text("utf-8").partition("### Pure modules")[2]
    rows = re.findall(r"^\| `([\w/]+/)` \| (.+) \|$", page.partition("\n## ")[0], re.MULTILINE)
    named = {folder + name for folder, names in rows for name in re.findall(r"`(\w+\.py)`", names)}
    assert len(named) > 10
    assert named - set(PURE_MODULES) == set()
