"""`headrace up` that Ctrl-C ends late."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.cli import up
from headrace.cli.main import build_app
from headrace.local_cluster import LocalCluster


@pytest.mark.parametrize("moment", ["_write_settings", "_show"])
def test_what_was_not_shown_to_run_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """All processes run then, and nobody waits for them any more. The exit code means that nothing was started.

    A node that was restarted ran before, and stays.
    """
    stopped = list[str]()

    def started(local: LocalCluster, _progress: object, restarted: Sequence[str]) -> list[str]:
        local._started, local._restarted = ["kafka", "n1", "n2"], restarted
        return ["kafka", "n1", "n2"]

    def stop(_local: LocalCluster, names: Sequence[str], *_: object) -> list[str]:
        stopped[:] = names
        return []

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalCluster, "start", started)
    monkeypatch.setattr(LocalCluster, "stop", stop)
    monkeypatch.setattr(up, moment, interrupted)
    ended = CliRunner().invoke(build_app(["up"]), ["up", "--restart", "n1", "--dir", str(tmp_path / "cluster")])
    assert (130, ["kafka", "n2"]) == (ended.exit_code, stopped)
