"""Limits of receivers, and of members that take their files; each is a metric of its process."""

from __future__ import annotations

from pydantic import Field

from headrace.schemas.settings import COUNT_MAX, MEGABYTES_MAX, Internal, SettingsModel


class SyncSettings(SettingsModel):
    """How files of senders are received."""

    partitions: int = Field(
        default=8, ge=1, le=1_024, description="partitions of the topics of senders when they are made: most receivers"
    )
    files_max: int = Field(
        default=64, ge=1, le=COUNT_MAX, description="whole files that may wait at a receiver to be loaded"
    )
    staging_mb_max: int = Field(
        default=4_096, ge=1, le=MEGABYTES_MAX, description="their bytes; beyond that, a receiver reads no more"
    )
    loads_max: int = Field(default=32, ge=1, le=64, description="files that a receiver verifies and loads at once")
    uploads_max: int = Field(
        default=64, ge=1, le=COUNT_MAX, description="files that a node takes from receivers at once"
    )
    upload_mb_max: int = Field(
        default=4_096,
        ge=1,
        le=MEGABYTES_MAX,
        description="bytes of files that wait at a node for their load, an equal part for each group; more get 503",
    )
    resend_s: Internal[float] = Field(default=30.0, description="pause before missing chunks are asked for again")
    held_max: Internal[int] = Field(default=1_000, description="files that have waited for long, beyond these")
    retry_s: Internal[float] = Field(default=1.0, description="pause before a step is tried again")
    staged_age_s: Internal[float] = Field(
        default=86_400.0, description="age at which a file that no load has named is removed at a node"
    )

    def figures(self) -> dict[str, float]:
        """Every limit by name, for metrics."""
        return {name: float(getattr(self, name)) for name in SyncSettings.model_fields}
