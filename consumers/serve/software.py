"""The version of the software that a node runs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """Version of the installed distribution, `unknown` in a source tree that is not installed."""
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "unknown"
