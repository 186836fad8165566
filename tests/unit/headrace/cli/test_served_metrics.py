"""Metrics that `headrace ingest run` and `headrace sync receive` serve."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from headrace.cli.ingest_server import served_metrics
from headrace.terminal.output import Output


class Figures:
    """What has metrics."""

    def text(self) -> str:
        """One."""
        return "rows 1\n"


def statuses(capsys: pytest.CaptureFixture[str], *hosts: str) -> list[int]:
    """The statuses of requests under these names."""
    with served_metrics(Figures(), "127.0.0.1:0", Output()):
        address = re.search(r"metrics at (\S+)", capsys.readouterr().err)
        assert address is not None
        return [httpx.get(address[1], headers={"host": host} if host else {}).status_code for host in hosts]


def test_a_name_that_resolves_to_this_machine_gets_no_metrics(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page in a browser can make one (DNS rebinding), and would read them. Nodes refuse it, too."""
    monkeypatch.chdir(tmp_path)
    assert [200, 200, 403] == statuses(capsys, "", "localhost:9090", "evil.example")


def test_further_names_are_those_of_the_setting(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of a proxy."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE__NODE__ALLOWED_HOSTS", "Proxy.example")
    assert [200, 200, 403] == statuses(capsys, "", "proxy.example", "evil.example")
