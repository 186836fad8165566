"""What the driver makes of Spark's plan, and what a worker keeps of archives, without Spark."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from zipimport import zipimporter

import pytest

from pipeline.importers import forget_archives
from pipeline.micro_batch import PlanUnknown, check_stretches
from pipeline.stretch import Stretch


def test_one_stretch_for_each_partition_is_as_it_should_be() -> None:
    """Also none at all: a micro-batch that only learns of a new, empty partition."""
    check_stretches([], "raw")
    check_stretches([Stretch("raw", 0, 0, 5), Stretch("raw", 1, 7, 8)], "raw")


@pytest.mark.parametrize(
    ("stretches", "word"),
    [
        ([Stretch("other", 0, 0, 5)], "other"),
        ([Stretch("raw", 0, -2, 5)], "-2"),
        ([Stretch("raw", 0, 5, -1)], "-1"),
        ([Stretch("raw", 0, 5, 5)], "begin=5"),
        ([Stretch("raw", 0, 0, 5), Stretch("raw", 0, 5, 9)], "two tasks"),
    ],
)
def test_a_plan_that_cannot_be_kept_is_refused(stretches: list[Stretch], word: str) -> None:
    """Another topic, markers instead of offsets, nothing, a partition in two tasks: never read in silence."""
    with pytest.raises(PlanUnknown, match=word):
        check_stretches(stretches, "raw")


def test_modules_of_an_archive_are_found_after_its_importers_were_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The importers go, so that no task pays for them; what is imported later comes from the archive all the same."""
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
