"""Jobs of a receiver in their order."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from headrace.consumers.sync.file_loader import FileJob, FileLoader
from headrace.schemas.sync_records import SyncDeletes, SyncManifest, Verdict

GRACE_S = 0.3


def job_of(number: int, *behind: FileJob) -> FileJob:
    """Deletes, behind other jobs."""
    manifest = SyncManifest("u", "s", "", 1, number, 1, SyncDeletes("e/1", ()))
    return FileJob(manifest, None, lambda: None, threading.Event(), threading.Event(), behind)


@pytest.fixture
def applied() -> list[int]:
    """The numbers of deletes that were applied."""
    return []


@pytest.fixture
def loader(applied: list[int], monkeypatch: pytest.MonkeyPatch) -> FileLoader:
    """A loader whose deletes go nowhere."""
    nothing: Any = None
    found = FileLoader(nothing, nothing, nothing, nothing, retry_s=0.01)
    monkeypatch.setattr(found, "_delete", lambda manifest: applied.append(manifest.number))
    return found


def test_deletes_wait_for_what_they_made_void(loader: FileLoader, applied: list[int]) -> None:
    """A load that is under way is in the log before the deletes, or nowhere: they wait until it is settled."""
    void = job_of(1)
    void.ended.set()
    verdicts: list[Any] = []
    deciding = threading.Thread(target=lambda: verdicts.append(loader.decide(job_of(2, void))))
    deciding.start()
    time.sleep(GRACE_S)
    assert not applied
    void.settled.set()
    deciding.join(10)
    assert applied == [2]
    assert verdicts[0].state is Verdict.ACCEPTED


def test_deletes_that_nobody_waits_for_end(loader: FileLoader, applied: list[int]) -> None:
    """A partition that goes to another receiver ends the job, also while it waits."""
    waiting = job_of(2, job_of(1))
    waiting.ended.set()
    assert loader.decide(waiting) is None
    assert not applied
