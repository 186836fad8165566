"""The deletion of a closed group's directories, killed at each of its steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.consumers.node import group_deletion

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
            patch.setattr("shutil.rmtree", counted(group_deletion.shutil.rmtree))
            try:
                group_deletion.decide(directory, "n1")
                group_deletion.finish_deletion(directory, "n1")
            except Killed:
                killed = True
        if not killed:
            steps = kill_at
            break
        decided = group_deletion.is_decided(directory, "n1")
        # The last step is the sync behind the removal of the decision, which a kill does not take back.
        assert decided or len(left(directory, "n1")) in (0, len(PARTS))
        finished = group_deletion.finish_deletions(directory)
        assert (["n1"] if decided else []) == finished
        assert (decided or not left(directory, "n1")) == (left(directory, "n1") == [])
        assert sorted(PARTS) == sorted(left(directory, "n2"))
        assert [] == group_deletion.finish_deletions(directory)
    assert steps > 2 * len(PARTS)
    assert [] == left(tmp_path / str(steps), "n1")
