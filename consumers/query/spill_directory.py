"""Where the queries of a node write what does not fit into their memory.

Without a setting that is a directory beside its data. What a killed process left there is removed at the next start:
the node alone has its data directory.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from headrace.consumers.query.settings import QuerySettings

SPILL_DIRECTORY = "spill"


def with_spill_directory(settings: QuerySettings, data_directory: Path) -> QuerySettings:
    """The settings with a directory that queries may write to. It is made when the first one does."""
    if settings.spill_directory:
        return settings
    directory = data_directory / SPILL_DIRECTORY
    shutil.rmtree(directory, ignore_errors=True)
    return settings.model_copy(update={"spill_directory": str(directory)})
