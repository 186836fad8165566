"""What a Python worker of Spark does before each of our tasks, so that one of few rows takes little time.

Workers live on and run many tasks. PySpark does two things to each that grow with what the process has imported, and
that find nothing.
"""

from __future__ import annotations

import gc
import sys
from zipimport import zipimporter

_modules_frozen = 0


def begin_task() -> None:
    """Call it first in a task."""
    forget_archives()
    freeze_imported()


def forget_archives() -> None:
    """Drop Python's cached importers of zip archives; they are created again, without reading the archive,
    for the next import.
    """
    # Before every task PySpark invalidates all importers. Each importer of an archive then reads the
    # archive's list of files again, once for each package of PySpark: a tenth of a second and more per task.
    # No archive changes while a worker lives.
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter):
            del sys.path_importer_cache[path]


def freeze_imported() -> None:
    """Have garbage collections pass over all that lives, if modules were imported since this was last done."""
    # After every task PySpark collects garbage: a tenth of a second of processor time for half a million objects of
    # imported modules. At the begin of a task that has just been done, so that nothing freed later is kept.
    global _modules_frozen
    if len(sys.modules) != _modules_frozen:
        _modules_frozen = len(sys.modules)
        gc.freeze()
