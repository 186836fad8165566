"""How writers behave, as users set it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from headrace.schemas.settings import COUNT_MAX, MEGABYTES_MAX, MEMBERS_MAX, WAIT_MS_MAX, SettingsModel


def _lower_case(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


Compression = Annotated[Literal["zstd", "lz4", "none"], BeforeValidator(_lower_case)]
LineParser = Annotated[Literal["auto", "compiled", "small"], BeforeValidator(_lower_case)]
Resolution = Annotated[Literal["us", "ns"], BeforeValidator(_lower_case)]


class WriteSettings(SettingsModel):
    """How writers behave."""

    quorum: int = Field(
        default=1, ge=0, le=MEMBERS_MAX, description="0 = not awaited, 1 = in the log, k = durable at k members"
    )
    quorum_timeout_ms: int = Field(
        default=2_000, ge=1, le=WAIT_MS_MAX, description="how long to wait for a quorum of 2 or more"
    )
    compression: Compression = Field(
        default="zstd", description="of the rows in a message: zstd, lz4 or none; zstd is smallest"
    )
    time_resolution: Resolution = Field(
        default="us", description="finest digits of the times of a new table: us or ns; a table keeps what it has"
    )
    line_parser: LineParser = Field(
        default="auto",
        description="of lines over HTTP: compiled; small, slower without 100 MB; auto: small without Kafka",
    )
    http_body_mb_max: int = Field(
        default=32, ge=1, le=MEGABYTES_MAX, description="largest body of a write over HTTP, decompressed"
    )
    http_requests_max: int = Field(
        default=4_096, ge=1, le=COUNT_MAX, description="open requests to write over HTTP; more get 503"
    )
    http_waiting_mb_max: int = Field(
        default=64,
        ge=1,
        le=MEGABYTES_MAX,
        description="bodies that arrive, and those that wait to be written; beyond either, 503",
    )
