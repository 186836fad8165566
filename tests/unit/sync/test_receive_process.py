"""Whose directory a receiver has."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.consumers.sync.receive_process import CENTRE_FILE, ReceiverForeign, check_centre


def test_a_directory_of_a_receiver_is_of_one_centre(tmp_path: Path) -> None:
    """Parts of files in it come from the topics of that centre, and of no other one, nor of one that was made again."""
    for _ in range(2):
        check_centre(tmp_path, "c", "id/1")
    with pytest.raises(ReceiverForeign, match=r"receiver of centre c \("):
        check_centre(tmp_path, "d", "id/2")
    with pytest.raises(ReceiverForeign, match="centre c before it was made again"):
        check_centre(tmp_path, "c", "id/2")
    (tmp_path / CENTRE_FILE).write_text("{")
    with pytest.raises(ReceiverForeign, match="cannot be read"):
        check_centre(tmp_path, "c", "id/1")
