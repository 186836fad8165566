"""What helps where a full disk ends a start."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from headrace.consumers.sync import view_database
from headrace.consumers.sync.view_database import ViewDatabase
from headrace.schemas.errors import HeadraceError
from headrace.terminal.disk_start import ACTION, StartDiskFull, disk_start


def refuse(_path: str, _options: object) -> None:
    """What rocksdict raises on a full disk."""
    raise Exception("IO error: No space left on device: While open a file for appending")


def test_a_view_of_a_receiver_promises_no_other_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that runs waits for space, and one that starts ends: each names what is true for it."""
    monkeypatch.setattr(view_database, "Rdict", refuse)
    with pytest.raises(HeadraceError) as raised:
        ViewDatabase(tmp_path / "owners", "t")
    assert "free disk space: the receiver waits for it" == raised.value.action
    with pytest.raises(HeadraceError) as raised, disk_start():
        ViewDatabase(tmp_path / "owners", "t")
    assert ACTION == raised.value.action


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_an_error_of_the_file_system_has_an_action(code: int) -> None:
    """It names the file, and what to do."""
    with pytest.raises(StartDiskFull, match=r"the start needs space: r1/centre.json: ") as raised, disk_start():
        raise OSError(code, "no space", "r1/centre.json")
    assert ACTION == raised.value.action


def test_other_errors_stay_as_they_are(tmp_path: Path) -> None:
    """Space would not help there."""
    with pytest.raises(HeadraceError) as raised, disk_start():
        raise HeadraceError("the log is away", action="check the broker")
    assert "check the broker" == raised.value.action
    with pytest.raises(FileNotFoundError), disk_start():
        shutil.rmtree(tmp_path / "nowhere")
