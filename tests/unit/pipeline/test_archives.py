"""How a worker drops the importers of archives, without Spark."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from zipimport import zipimporter

import pytest

from headrace.pipeline.package import forget_archives


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
