"""The deletion of a closed group's directories, killed at each of its steps."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.connectors.log.topics import Topics
from headrace.consumers.node import data_directory, group_deletion
from headrace.consumers.node.data_directory import Identity
from headrace.consumers.node.local_groups import LocalGroups
from headrace.consumers.node.settings import StoreSection
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.group_names import group_name

UNUSED: Any = None
PARTS = ("segments", "index", "rollups", "staging", "recovering", "recovered", "replaced")


class Killed(Exception):
    """The process ends here."""


def group(directory: Path, name: str) -> None:
    """All that a node can have of a group."""
    for part in PARTS:
        (directory / part / name / "db").mkdir(parents=True)
        (directory / part / name / "db" / "file").write_text(name)


def left(directory: Path, name: str) -> list[str]:
    """What is there of a group."""
    return [path.parts[-2] for path in directory.glob(f"*/{name}")]


def forget(_directory: str) -> None:
    """A node that keeps nothing of its groups."""


def test_a_kill_at_any_step_leaves_a_deletion_that_the_next_start_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the decision everything is there; from then on the next start leaves nothing of this group, and all of
    the other one. A second start finds nothing to do.
    """
    steps = 0
    for kill_at in range(40):
        directory = tmp_path / str(kill_at)
        group(directory, "n1")
        group(directory, "n2")
        done = 0

        def counted(call: object, kill_at: int = kill_at) -> object:
            def step(*arguments: object, **named: object) -> object:
                nonlocal done
                done += 1
                if done > kill_at:
                    raise Killed
                return call(*arguments, **named)  # type: ignore[operator]

            return step

        killed = False
        with monkeypatch.context() as patch:
            for name in ("create_directories", "rename_durably", "fsync_directory"):
                patch.setattr(group_deletion, name, counted(getattr(group_deletion, name)))
            patch.setattr("shutil.rmtree", counted(shutil.rmtree))
            try:
                group_deletion.decide(directory, "n1")
                group_deletion.finish_deletion(directory, "n1", forget)
            except Killed:
                killed = True
        if not killed:
            steps = kill_at
            break
        decided = group_deletion.is_decided(directory, "n1")
        # The last step is the sync behind the removal of the decision, which a kill does not take back.
        assert decided or len(left(directory, "n1")) in (0, len(PARTS))
        finished = group_deletion.finish_deletions(directory, forget)
        assert (["n1"] if decided else []) == finished
        assert (decided or not left(directory, "n1")) == (left(directory, "n1") == [])
        assert sorted(PARTS) == sorted(left(directory, "n2"))
        assert [] == group_deletion.finish_deletions(directory, forget)
    assert steps > 2 * len(PARTS)
    assert [] == left(tmp_path / str(steps), "n1")


def test_a_full_disk_gets_its_space_back_and_the_deletion_ends_once_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are gone before `node.json` is written, which a full disk refuses. The group stays one that is to be
    deleted, also for a start in between, and its node gets a new store id.
    """
    topics, key = Topics("plant"), GroupKey("n1", 1)
    identity = Identity("plant", "n2", "store", {topics.forward("n1"): "id"})
    identity.save(tmp_path)
    group(tmp_path, "n1")
    local = LocalGroups(tmp_path, identity, {}, topics, UNUSED, UNUSED, StoreSection())

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(data_directory, "write_atomically", full)
        with pytest.raises(OSError, match="No space left"):
            local.delete(topics.forward("n1"))
        assert ["deleted"] == left(tmp_path, "n1")
        assert [key] == local.left({})
        assert [] == list((tmp_path / "deleted" / "n1").iterdir())
    local.delete(topics.forward("n1"))
    assert ([], []) == (local.left({}), left(tmp_path, "n1"))
    written = Identity.load(tmp_path, "plant", "n2")
    assert {} == written.topics
    assert "store" != written.store


def test_a_start_removes_what_is_staged_for_groups_that_are_deleted(tmp_path: Path) -> None:
    """A fetch that ended behind the deletion has made the directory again. Of a group that is only closed it stays."""
    topics, closed = Topics("plant"), GroupKey("n1", 1)
    for name in (group_name(closed), "n3"):
        (tmp_path / "staging" / name).mkdir(parents=True)
    identity = Identity("plant", "n2", "store", {topics.forward("n1", 1): "id"})
    local = LocalGroups(tmp_path, identity, {}, topics, UNUSED, UNUSED, StoreSection())
    local.open(print)
    local.close()
    assert [group_name(closed)] == [path.name for path in (tmp_path / "staging").iterdir()]
