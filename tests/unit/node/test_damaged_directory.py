"""A node whose journal or index is damaged: it comes back from the log or from others, and keeps what it cannot use."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from headrace.consumers.node import local_groups
from headrace.consumers.node.data_directory import DataDirectoryUnusable
from headrace.consumers.node.node import Node
from headrace.consumers.recovery.log_gap import gap_document
from headrace.consumers.replication.group_state import LogBase
from headrace.consumers.replication.journal import Journal
from headrace.consumers.store import StoreFormatUnknown
from headrace.consumers.store.index import FAMILIES
from headrace.schemas.messages import NO_CHAIN
from tests.present import present
from tests.unit.nodes import Nodes, rows, running_nodes
from tests.unit.statuses import newer
from tests.waiting import eventually

pytestmark = pytest.mark.slow(1)


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """Three nodes that are ready; without a parameter, their logs are never trimmed."""
    with running_nodes(tmp_path, monkeypatch, ("a", "b", "c"), getattr(request, "param", 0)) as running:
        yield running


def write_and_stop(nodes: Nodes) -> tuple[Path, str]:
    """Sealed and unsealed rows at node c, which is then stopped: its data directory and its store id."""
    nodes.write()
    nodes.seal()
    nodes.write()
    node = nodes.running["c"]
    eventually(lambda: rows(node) == nodes.written, "all rows at c")
    nodes.stop("c")
    directory = nodes.directory / "c"
    return directory, json.loads((directory / "node.json").read_text())["store"]


@pytest.mark.parametrize("nodes", [1], indirect=True)
def test_a_state_of_a_newer_build_ends_the_start_and_stays(nodes: Nodes) -> None:
    """The error names the directory and what to do. Moved away, the node recovers from the others."""
    directory, _ = write_and_stop(nodes)
    index = directory / "index" / "a"
    options = Options(raw_mode=True)
    database = Rdict(str(index), options, {name: Options(raw_mode=True) for name in FAMILIES})
    state = database.get_column_family("state")
    state[b"state"] = newer(present(state[b"state"]))
    state.close()
    database.close()
    segments = set(directory.rglob("*.parquet"))
    with pytest.raises(
        StoreFormatUnknown, match=f"{directory} has a state of group a .*or move the data directory away"
    ):
        nodes.start("c")
    assert segments == set(directory.rglob("*.parquet"))
    assert not (directory / "damaged").exists()
    nodes.stop("c")
    directory.rename(nodes.directory / "aside")
    nodes.start("c")
    nodes.holds_everything("c")


def damage(journal: Path, how: str) -> dict[str, bytes]:
    """Damages the journal of a stopped node; returns its files as they then are."""
    path = max(journal.glob("journal-*.wal"), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    if how == "flipped":
        content[len(content) // 3] ^= 1
    elif how == "zeroed":
        content[:] = bytes(len(content))
    elif how == "emptied":
        del content[:]
    path.write_bytes(content)
    if how == "missing":
        path.unlink()
    elif how == "manifest":
        (journal / "manifest").unlink()
    return files_of(journal)


def files_of(journal: Path) -> dict[str, bytes]:
    """The files of a journal by name."""
    return {path.name: path.read_bytes() for path in journal.iterdir() if path.name != "lock"}


@pytest.mark.parametrize("how", ["flipped", "zeroed", "emptied", "missing", "manifest"])
def test_a_damaged_journal_is_set_aside_and_the_log_has_the_rest(nodes: Nodes, how: str) -> None:
    """The node starts, reads the records again, reports what happened, and keeps the journal's bytes."""
    directory, store = write_and_stop(nodes)
    left = damage(directory / "journal", how)
    nodes.start("c")
    node = nodes.running["c"]
    assert left == files_of(directory / "damaged" / "journal-1")
    nodes.holds_everything("c")
    (warning,) = node.status()["warnings"]
    assert "damaged/journal-1" in warning
    # What others know of the journal's records is not held against what the log gives now.
    assert store != node.identity.store
    nodes.stop("c")
    nodes.start("c")
    nodes.holds_everything("c")
    assert [] == nodes.running["c"].status()["warnings"]


def test_a_value_that_only_recovery_reads_is_damage_too(nodes: Nodes) -> None:
    """A large record in a journal file that the snapshot refers to, and no scan reads."""
    node, topic = nodes.running["c"], nodes.topics.forward("c")
    before, marker = node.groups[topic].version, b"no message " * 1_000
    nodes.log.appender().append(topic, marker)
    eventually(lambda: node.groups[topic].version > before, "the large record at c")
    node.journal.checkpoint()
    nodes.stop("c")
    paths = (nodes.directory / "c" / "journal").glob("journal-*.wal")
    (path,) = [path for path in paths if marker in path.read_bytes()]
    path.write_bytes(path.read_bytes().replace(marker, marker[:-1] + b"?"))
    nodes.start("c")
    assert (nodes.directory / "c" / "damaged" / "journal-1").exists()
    nodes.holds_everything("c")


@pytest.mark.parametrize(("code", "kept"), [(errno.EIO, False), (errno.ENOSPC, True)])
def test_a_journal_that_the_disk_cannot_read_is_set_aside(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, code: int, kept: bool
) -> None:
    """A bad sector is damage; a full disk is not, and the journal stays where it is."""
    directory, _ = write_and_stop(nodes)
    opened: list[Path] = []

    def open_journal(path: Path, groups: Sequence[str]) -> Journal:
        opened.append(path)
        if len(opened) == 1:
            raise OSError(code, os.strerror(code))
        return Journal(path, groups)

    monkeypatch.setattr(local_groups, "Journal", open_journal)
    if kept:
        with pytest.raises(DataDirectoryUnusable):
            nodes.start("c")
        nodes.stop("c")
    nodes.start("c")
    assert kept is not (directory / "damaged").exists()
    nodes.holds_everything("c")


@pytest.mark.parametrize("nodes", [1], indirect=True)
def test_behind_a_trimmed_log_the_files_of_others_replace_a_journal(nodes: Nodes) -> None:
    """The log no longer has the journal's records: another member's files do."""
    directory, _ = write_and_stop(nodes)
    damage(directory / "journal", "zeroed")
    nodes.write()
    nodes.seal_and_trim()
    nodes.start("c")
    nodes.holds_everything("c")


@pytest.mark.parametrize("nodes", [1], indirect=True)
def test_without_log_and_members_a_lost_journal_is_not_passed_over(nodes: Nodes) -> None:
    """What was confirmed as durable is neither in the log nor here: the node serves nothing and confirms only what it has."""
    directory, _ = write_and_stop(nodes)
    damage(directory / "journal", "emptied")
    nodes.write()
    nodes.seal_and_trim()
    nodes.stop("a", "b")
    nodes.start("c")
    node = nodes.running["c"]
    for topic, group in node.groups.items():
        begin = nodes.log.describe(topic).begin
        eventually(lambda topic=topic: "no member in sync" in node.reason(topic), "the reason why it waits")
        (status,) = [status for status in node.statuses.statuses() if status.group == group.name]
        assert (False, True) == (status.eligible, status.durable_offset < begin - 1)
    assert not node.ready()[0]


def test_data_that_ends_before_an_accepted_gap_is_wrong(nodes: Nodes) -> None:
    """The records before a gap were in the journal alone, and the journal is lost: another member's files are needed."""
    directory, _ = write_and_stop(nodes)
    damage(directory / "journal", "emptied")
    topic = nodes.topics.forward("a")
    document = json.loads((directory / "node.json").read_text())
    base = LogBase(document["topics"][topic], 10**6, 10**6, NO_CHAIN)
    document["gaps"] = {topic: gap_document(base)}
    (directory / "node.json").write_text(json.dumps(document))
    node = nodes.running["c"] = Node(nodes.settings("c"), nodes.log)
    node.start(lambda _line: None)
    assert topic in node.identity.wrong
    (status,) = [status for status in node.statuses.statuses() if status.group == node.groups[topic].name]
    assert (False, -1) == (status.eligible, status.durable_offset)


def test_a_lost_index_is_recovered_and_its_segments_are_kept(nodes: Nodes) -> None:
    """The segments without their index are set aside and not deleted as orphans."""
    directory, _ = write_and_stop(nodes)
    group = next((directory / "index").iterdir())
    segments = {path.name for path in (directory / "segments" / group.name).rglob("*.parquet")}
    assert segments
    shutil.rmtree(group)
    nodes.start("c")
    aside = directory / "damaged" / f"{group.name}-1" / "segments"
    assert segments == {path.name for path in aside.rglob("*.parquet")}
    assert any(f"damaged/{group.name}-1" in warning for warning in nodes.running["c"].status()["warnings"])
    nodes.holds_everything("c")
