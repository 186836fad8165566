"""Which loops read lines in this process: the compiled ones, or those of NumPy for a small machine."""

from __future__ import annotations

from types import ModuleType

_small = False


def use_small_loops() -> None:
    """From here on read lines with NumPy: a process that has loaded no compiler needs 100 MB less."""
    global _small
    _small = True


def loops() -> ModuleType:
    """The functions `parse_lines`, `dictionary_encode` and `gather_texts`."""
    # Numba takes a third of a second to import; a process that parses no lines must not wait for it.
    if _small:
        from headrace.connectors.formats import numpy_kernel

        return numpy_kernel
    from headrace.connectors.formats import kernel

    return kernel
