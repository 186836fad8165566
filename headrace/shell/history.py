"""The file with what was typed before."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

HISTORY_BYTES_MAX = 1024 * 1024
_ENTRY = b"\n# "


def history_path(environment: Mapping[str, str]) -> Path:
    """`headrace/sql_history` in the user's state directory (XDG)."""
    state = environment.get("XDG_STATE_HOME", "")
    # The specification takes a relative path for none.
    root = Path(state) if state.startswith("/") else Path(environment.get("HOME") or Path.home()) / ".local" / "state"
    return root / "headrace" / "sql_history"


def prepare_history(path: Path) -> None:
    """Make the file, for this user alone, and drop the older half of one that is too large. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # SQL may hold what is nobody else's business.
    os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
    if path.stat().st_size <= HISTORY_BYTES_MAX:
        return
    content = path.read_bytes()
    begin = content.find(_ENTRY, len(content) - HISTORY_BYTES_MAX // 2)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content[begin:] if begin >= 0 else b"")
    fresh.chmod(0o600)
    fresh.replace(path)
