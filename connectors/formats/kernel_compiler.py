"""How the kernels are compiled: by Numba, to machine code that needs neither the interpreter nor its lock.

The machine code is cached beside the source, or in the user's cache directory, so only the first process of
an installation compiles, for some seconds. From an archive, as on Spark's executors, each process compiles:
the archive has another path in every application, so its cached code would never be found again.

Kernels get every array that they use, and make none. So Numba may leave out that it counts the references to arrays,
which at each call of a function, once a value, took most of the time. Numba checks only the file of a kernel for
changes: whoever edits this module touches those too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba import types

Function = TypeVar("Function", bound=Callable[..., object])

_OPTIONS: dict[str, Any] = {"_nrt": False}


def inlined(function: Function) -> Function:
    """Compile a function into its callers: it has no entry point and no cached code of its own."""
    return cast(Function, numba.njit(forceinline=True, **_OPTIONS)(function))


def entry_point(result: types.Type, *arguments: types.Type) -> Callable[[Function], Function]:
    """Compile a function for arguments of these types, or load the code that an earlier process cached."""
    signature = result(*arguments)

    def compiled(function: Function) -> Function:
        source = Path(function.__code__.co_filename)
        try:
            return cast(Function, numba.njit(signature, nogil=True, cache=source.is_file(), **_OPTIONS)(function))
        except Exception:
            # Numba raises when no directory is writable, and unpickles whatever it finds: a power cut may
            # have left a torn file. Either costs this process its own compilation, never the command.
            return cast(Function, numba.njit(signature, nogil=True, **_OPTIONS)(function))

    return compiled
