"""How far a group has read its log, as operators see it."""

from __future__ import annotations

from headrace.consumers.recovery.progress import LogProgress


def test_no_position_is_beyond_the_end() -> None:
    """The end is looked up now and then, and the log grows meanwhile: whoever is there has read up to the end."""
    progress = LogProgress(0)
    assert progress.reason(422, 419).startswith("recovering: read up to offset 419 of 419")
    found = progress.progress(422, 419)
    assert (419, 419) == (found.offsets_done, found.offsets_total)
    assert found.seconds_left <= 0
    assert progress.reason(3, 419).startswith("recovering: read up to offset 3 of 419")
