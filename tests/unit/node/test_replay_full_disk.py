"""`headrace replay` onto a disk that is really full: one error that names it, and everything as it was before."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.consumers.node.node import Node
from headrace.consumers.node.offline_replay import replay
from headrace.consumers.node.selected_replay import replay_selection
from headrace.consumers.node.settings import ServerSettings
from headrace.consumers.node.unfinished_directory import DiskFull
from headrace.consumers.replication.row_selection import RowSelection
from headrace.consumers.store import StoreFull
from headrace.consumers.store.seal_job import SealJob
from tests.unit.nodes import Nodes, running_nodes

DISK_BYTES = 32 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system; skipped where nothing can be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("cannot mount a tmpfs here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def stopped(tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """A node with some megabytes in its log and sealed rows, stopped; its data directory is on the small disk."""
    with running_nodes(tmp_path / "nodes", monkeypatch, ("n1",), keep_records=100_000) as nodes:
        nodes.write()
        nodes.seal()
        appender = nodes.log.appender()
        for _ in range(16):
            appender.append(nodes.topics.forward("n1"), os.urandom(1 << 18))
        appender.close()
        nodes.write()
        nodes.holds_everything("n1")
        nodes.stop("n1")
        shutil.copytree(tmp_path / "nodes" / "n1", disk / "n1")
        yield nodes


def settings_on(nodes: Nodes, directory: Path) -> ServerSettings:
    """The settings of n1 with another data directory."""
    settings = nodes.settings("n1")
    return settings.model_copy(update={"node": settings.node.model_copy(update={"data_dir": str(directory)})})


def leave_free(disk: Path, free: int) -> None:
    """Fill a disk but for some bytes."""
    with (disk / "ballast").open("wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, shutil.disk_usage(disk).free - free)


def files_of(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, except the lock that a replay holds."""
    return {str(each): each.read_bytes() for each in directory.rglob("*") if each.is_file() and each.name != "lock"}


@pytest.mark.parametrize("free", [0, 64 << 10, 1 << 20, 3 << 20])
def test_a_replay_onto_a_full_disk_is_one_error_and_changes_nothing(stopped: Nodes, disk: Path, free: int) -> None:
    """Whatever it writes when there is no space left. The unfinished store is gone, and with space it is built."""
    before = files_of(disk / "n1")
    leave_free(disk, free)
    settings = settings_on(stopped, disk / "n1")
    with pytest.raises(DiskFull, match=f"the disk of {disk} has no space left") as raised:
        replay(settings, may_replace=True, on_progress=lambda _done, _total: None, log=stopped.log)
    assert "nothing was replaced; free space" in raised.value.action
    assert before == files_of(disk / "n1")
    assert ["ballast", "n1"] == sorted(each.name for each in disk.iterdir())
    (disk / "ballast").unlink()
    found = replay(settings, may_replace=True, on_progress=lambda _done, _total: None, log=stopped.log)
    assert stopped.written == found.rows


def test_a_seal_that_waits_for_space_ends_a_replay(stopped: Nodes, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running node tries it again until somebody has freed some; nobody knows that a replay waits."""

    def refuse(_job: SealJob) -> None:
        raise StoreFull("segment 1 cannot be written: No space left on device")

    monkeypatch.setattr(SealJob, "run", refuse)
    with pytest.raises(DiskFull, match="segment 1 cannot be written"):
        replay(
            settings_on(stopped, disk / "n1"),
            may_replace=True,
            on_progress=lambda _done, _total: None,
            log=stopped.log,
        )
    assert ["n1"] == [each.name for each in disk.iterdir()]


def test_the_rows_of_a_table_onto_a_full_disk_are_one_error(stopped: Nodes, disk: Path) -> None:
    """Neither the files nor the store beside them stay."""
    leave_free(disk, 1 << 20)
    settings, selection = settings_on(stopped, disk / "rows"), RowSelection("plant", "pumps")
    with pytest.raises(DiskFull, match=f"the disk of {disk} has no space left"):
        replay_selection(settings, selection, on_progress=lambda _done, _total: None, log=stopped.log)
    assert ["ballast", "n1"] == sorted(each.name for each in disk.iterdir())


def test_an_unfinished_store_that_cannot_be_removed_is_named(
    stopped: Nodes, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of the end of its node does not hide the cause either."""
    stop = Node.stop

    def fail(node: Node) -> None:
        stop(node)
        raise RuntimeError("closed with an error")

    monkeypatch.setattr(Node, "stop", fail)
    monkeypatch.setattr(shutil, "rmtree", lambda *_arguments, **_named: None)
    leave_free(disk, 1 << 20)
    with pytest.raises(DiskFull) as raised:
        replay(
            settings_on(stopped, disk / "n1"),
            may_replace=True,
            on_progress=lambda _done, _total: None,
            log=stopped.log,
        )
    assert f"delete {disk / 'n1.replay'}, which could not be removed" in raised.value.action
