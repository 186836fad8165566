"""Keeps Spark's Python workers from reading the same archives again and again."""

from __future__ import annotations

import sys
from zipimport import zipimporter


def forget_archives() -> None:
    """Drop the importers of archives, which are made again, without reading anything, when a module of theirs is asked for.

    Before every task Spark tells all importers that there may be new files. Each importer of an archive then reads the archive's list of files,
    once for each package in PySpark's: a tenth of a second and more of each task. No archive changes while a worker lives.
    """
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter):
            del sys.path_importer_cache[path]
