"""Sizes and counts for people."""

from __future__ import annotations

_UNITS = ("B", "KB", "MB", "GB", "TB")


def short_bytes(size_bytes: float) -> str:
    """A size in decimal units, which disks and networks are sold in."""
    step = 0
    while size_bytes >= 1_000 and step < len(_UNITS) - 1:
        size_bytes, step = size_bytes / 1_000, step + 1
    return f"{size_bytes:.1f} {_UNITS[step]}" if step else f"{size_bytes:.0f} B"


def short_number(value: float) -> str:
    """A count with one decimal and k, M or G from a thousand up."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.1f} {suffix}"
    return f"{value:.0f}"
