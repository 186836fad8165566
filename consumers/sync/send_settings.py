"""Limits of `headrace sync send`."""

from __future__ import annotations

from pydantic import Field

from headrace.schemas.durations import DURATION_S_MAX
from headrace.schemas.settings import BYTES_MAX, COUNT_MAX, WAIT_S_MAX, SettingsModel

CHUNK_BYTES = 1 << 20
DELETES_PER_MANIFEST = 500
DELETES_BYTES_MAX = 512 << 10
"""Of a manifest of several: a topic may take records of a megabyte alone."""
REJECTED_KEPT_MAX = 1_000
"""Rejected files up to the progress that a state directory remembers by name; older ones are counted, and forgotten."""


class SendSettings(SettingsModel):
    """How `headrace sync send` sends."""

    interval_s: float = Field(default=60.0, ge=0, le=DURATION_S_MAX, description="pause between two rounds of a sender")
    seal_age_s: float = Field(
        default=300.0, ge=0, le=DURATION_S_MAX, description="age at which a round seals rows that are in no file"
    )
    tries_max: int = Field(
        default=5, ge=1, le=COUNT_MAX, description="how often a round tries a file before it leaves it"
    )
    window_bytes: int = Field(
        default=256 << 20, ge=1, le=BYTES_MAX, description="bytes sent without a verdict; one file may be larger"
    )
    files_max: int = Field(default=64, ge=1, le=COUNT_MAX, description="files under way at a time")
    rate_limit_bytes: int = Field(
        default=0, ge=0, le=BYTES_MAX, description="bytes a second that a sender sends; 0 = no limit"
    )
    wait_s: float = Field(
        default=60.0,
        ge=0,
        le=WAIT_S_MAX,
        description="how long sync send --once waits for node and centre at its start",
    )
