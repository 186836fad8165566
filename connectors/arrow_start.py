"""Keeps pandas out of processes that need none: it would be a third of what a short command costs."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

_UNUSED = "pandas"


class _Hidden(MetaPathFinder):
    """Finds no pandas."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        """Raises ModuleNotFoundError for pandas; other modules are left to the next finder."""
        if name == _UNUSED:
            raise ModuleNotFoundError(f"{name} is not used by this process", name=name)


def keep_pandas_out() -> None:
    """Let pyarrow load pandas only for a conversion to pandas.

    For processes of our own. In a user's program pyarrow would no longer recognise the user's pandas objects.
    """
    # At its first conversion of Python values pyarrow imports pandas, if there is one, only to recognise its
    # objects: half a second of processor time and 40 MB. It tries once, here.
    if _UNUSED in sys.modules:
        return
    sys.meta_path.insert(0, hidden := _Hidden())
    try:
        import pyarrow as pa

        pa.array([])
    finally:
        sys.meta_path.remove(hidden)
