"""Directories that are read for a while."""

from __future__ import annotations

import time
from pathlib import Path

from headrace.connectors.files import ExpiringDirectories

IDLE_S = 0.05


def made(kept: ExpiringDirectories[str], content: str) -> str:
    """One with a file."""
    name = kept.begin(content)
    assert name is not None
    (kept.root / name).mkdir(parents=True)
    (kept.root / name / "file").write_bytes(b"0123456789")
    return name


def test_what_nobody_uses_ends(tmp_path: Path) -> None:
    """One that was made ends when it is idle; one that is being made does not, however long that takes."""
    kept = ExpiringDirectories[str](tmp_path / "root", 3, IDLE_S)
    making, idle = made(kept, "making"), made(kept, "idle")
    kept.finish(idle, "idle")
    time.sleep(3 * IDLE_S)
    kept.expire()
    assert [(making, "making")] == kept.items()
    assert ["making"] == [kept.use(name) for name, _ in kept.items()]
    assert (kept.use(idle), (kept.root / idle).exists()) == (None, False)
    kept.finish(making, "made")
    time.sleep(3 * IDLE_S)
    kept.expire()
    assert [] == kept.items()


def test_there_are_at_most_so_many(tmp_path: Path) -> None:
    """Also those that are being made count; a released one makes room, and its files are gone."""
    kept = ExpiringDirectories[str](tmp_path / "root", 1, 60)
    first = made(kept, "first")
    assert kept.begin("second") is None
    kept.release(first)
    assert not (kept.root / first).exists()
    assert kept.begin("second") is not None


def test_bytes_are_read_from_an_offset(tmp_path: Path) -> None:
    """From the offset to the size that was announced; a new process removes what an earlier one has left."""
    kept = ExpiringDirectories[str](tmp_path / "root", 1, 60)
    name = made(kept, "one")
    assert b"34567" == b"".join(kept.read(name, "file", 3, 8))
    assert b"" == b"".join(kept.read(name, "file", 8, 8))
    ExpiringDirectories[str](tmp_path / "root", 1, 60)
    assert not (tmp_path / "root" / name).exists()
