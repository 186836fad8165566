"""How the driver checks Spark's plan, and how a worker drops archive importers, without Spark."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from zipimport import zipimporter

import pytest

from headrace.pipeline.micro_batch import PlanUnknown, check_offset_ranges
from headrace.pipeline.offset_ranges import OffsetRange
from headrace.pipeline.package import forget_archives


def test_one_offset_range_for_each_partition_is_accepted() -> None:
    """So is an empty plan, of a micro-batch that only discovers a new, empty partition."""
    check_offset_ranges([], "raw")
    check_offset_ranges([OffsetRange("raw", 0, 0, 5), OffsetRange("raw", 1, 7, 8)], "raw")


@pytest.mark.parametrize(
    ("ranges", "word"),
    [
        ([OffsetRange("other", 0, 0, 5)], "other"),
        ([OffsetRange("raw", 0, -2, 5)], "-2"),
        ([OffsetRange("raw", 0, 5, -1)], "-1"),
        ([OffsetRange("raw", 0, 5, 5)], "begin=5"),
        ([OffsetRange("raw", 0, 0, 5), OffsetRange("raw", 0, 5, 9)], "two tasks"),
    ],
)
def test_an_unknown_plan_is_refused(ranges: list[OffsetRange], word: str) -> None:
    """Another topic, markers instead of offsets, an empty range and a partition in two tasks are errors."""
    with pytest.raises(PlanUnknown, match=word):
        check_offset_ranges(ranges, "raw")


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
