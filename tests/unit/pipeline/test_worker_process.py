"""What a worker does before a task, without Spark."""

from __future__ import annotations

import gc
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from zipimport import zipimporter

import pytest

from headrace.pipeline import worker_process
from headrace.pipeline.worker_process import begin_task, forget_archives


def test_modules_of_an_archive_are_found_after_its_importers_were_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importers are dropped, since each costs every task time; later imports still come from the archive."""
    archive = tmp_path / "some.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("archived_one.py", "NAME = 'one'\n")
        made.writestr("archived_two.py", "NAME = 'two'\n")
    monkeypatch.syspath_prepend(str(archive))
    from archived_one import NAME as FIRST  # type: ignore[import-not-found]

    assert isinstance(sys.path_importer_cache[str(archive)], zipimporter)
    forget_archives()
    assert str(archive) not in sys.path_importer_cache
    from archived_two import NAME as SECOND  # type: ignore[import-not-found]

    assert ("one", "two") == (FIRST, SECOND)


def test_garbage_collections_pass_over_what_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark collects after every task: a task leaves it what the task itself made, and no imported module."""
    monkeypatch.setattr(worker_process, "_modules_frozen", 0)
    try:
        begin_task()
        frozen = gc.get_freeze_count()
        assert frozen > 10_000
        made = [[] for _ in range(1_000)]  # type: ignore[var-annotated]
        begin_task()
        assert frozen >= gc.get_freeze_count(), "without an import nothing more is kept from being collected"
        monkeypatch.setitem(sys.modules, "imported_by_a_task", ModuleType("imported_by_a_task"))
        begin_task()
        assert gc.get_freeze_count() > frozen + len(made) // 2
    finally:
        gc.unfreeze()
