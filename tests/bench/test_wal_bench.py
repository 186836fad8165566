"""`headrace bench wal`: a leg that cannot write, or a peer that recovers less, has no figure."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from headrace.bench import wal
from headrace.bench.nifi_peer import NifiPeer
from headrace.schemas.errors import HeadraceError

SIZES = {"seconds": "0.05", "rounds": "1", "recover": "100", "recover_large": "2"}


class _Forgetful(NifiPeer):
    """NiFi's logs, which recover a record too few."""

    def compiled(self, classes: Path) -> NifiPeer:
        """As it is."""
        return self

    def measured(self, kind: str, directory: Path, *arguments: str) -> dict[str, float]:
        """What its program prints."""
        directory.mkdir(parents=True, exist_ok=True)
        return {"updates": 10, "nanoseconds": 1e6, "records": 99}


def test_a_leg_that_cannot_write_has_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk the limit would look slow, and ours fast beside it."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("headrace.bench.wal.os.posix_fallocate", full)
    for name in ("_ours", "_rewrite"):
        monkeypatch.setattr(wal, name, lambda *_: 1.0)
    with pytest.raises(wal.UpdateFailed, match="No space left"):
        # Long enough for any machine; the first call ends it.
        wal.run({**SIZES, "seconds": "60", "peers": "0", "dir": str(tmp_path)})
    assert [] == list(tmp_path.iterdir())


def test_a_target_compares_legs_of_one_round() -> None:
    """A round that was slow for both counts against neither; the medians of all rounds would be 10 over 10."""
    taken = {"recover 100 B": {wal.OURS: [8.0, 10.0, 40.0], wal.SEQUENTIAL: [4.0, 10.0, 20.0]}}
    found = wal.target_of(taken, "recover 100 B", wal.SEQUENTIAL, 1.5)
    assert (2.0, 1.0, 2.0, True) == tuple(found[name] for name in ("median", "min", "max", "met"))


def test_a_leg_without_an_update_has_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be compared with none: that was a division by zero, behind all legs."""
    for name, rate in (("_ours", 1.0), ("_rewrite", 1.0), ("_limit", 0.0)):
        monkeypatch.setattr(wal, name, lambda *_, rate=rate: rate)
    with pytest.raises(wal.UpdateFailed, match="no update of limit: a file each ended in time"):
        wal.run({**SIZES, "peers": "0", "dir": str(tmp_path)})


def test_a_peer_that_recovers_less_has_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ours has none: less is recovered sooner."""
    monkeypatch.setattr(NifiPeer, "found", lambda: _Forgetful("", ""))
    monkeypatch.setattr(wal, "_measure_updates", lambda *_: {})
    with pytest.raises(wal.ContentLost, match="recovered 99 records instead of 100"):
        wal.run({**SIZES, "dir": str(tmp_path)})


def test_without_java_no_directory_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java is looked for before anything is made."""

    def missing() -> NifiPeer:
        raise HeadraceError("no Java")

    monkeypatch.setattr(NifiPeer, "found", missing)
    with pytest.raises(HeadraceError, match="no Java"):
        wal.run({**SIZES, "dir": str(tmp_path)})
    assert [] == list(tmp_path.iterdir())
