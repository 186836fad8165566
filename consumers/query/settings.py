"""What the queries of one node may use."""

from __future__ import annotations

from pydantic import Field

from headrace.schemas.durations import DURATION_S_MAX
from headrace.schemas.settings import COUNT_MAX, MEGABYTES_MAX, THREADS_MAX, WAIT_MS_MAX, SettingsModel


class QuerySettings(SettingsModel):
    """Limits of all queries of a node together; `timeout_ms` is also the default of one query."""

    memory_limit_mb: int = Field(default=1_000, ge=16, le=MEGABYTES_MAX, description="memory of all running queries")
    memory_per_query_mb: int = Field(
        default=750,
        ge=16,
        le=MEGABYTES_MAX,
        description="the most of it that one query may have; queries wait while there is none",
    )
    threads: int = Field(
        default=2, ge=1, le=THREADS_MAX, description="queries that compute at the same time; the others take turns"
    )
    short_threads: int = Field(
        default=1,
        ge=0,
        le=THREADS_MAX,
        description="threads beside them for queries that have computed next to nothing so far",
    )
    slice_ms: float = Field(
        default=2.0, ge=0.1, le=86_400_000, description="how long a query computes before another one has its turn"
    )
    timeout_ms: int = Field(default=60_000, ge=1, le=WAIT_MS_MAX, description="the most time that a query may take")
    queue_max: int = Field(
        default=1_000,
        ge=1,
        le=COUNT_MAX,
        description="parts of all queries that run or wait; more are refused and may be retried",
    )
    queries_max: int = Field(
        default=64, ge=1, le=COUNT_MAX, description="queries that run or wait; more are refused and may be retried"
    )
    queries_per_user_max: int = Field(default=64, ge=1, le=COUNT_MAX, description="those of one user")
    scans_max: int = Field(
        default=16,
        ge=1,
        le=COUNT_MAX,
        description="scans for queries of other nodes that run at the same time; more are refused and tried elsewhere",
    )
    remote_mb_max: int = Field(
        default=1_000,
        ge=1,
        le=MEGABYTES_MAX,
        description="rows of other nodes that all running queries hold together, in memory",
    )
    stale_max_s: float = Field(
        default=0.0,
        ge=0,
        le=DURATION_S_MAX,
        description="age in seconds up to which a node that cannot serve answers queries that name no age; 0 = never",
    )
    spill_directory: str = Field(
        default="", description="where queries that outgrow their memory write; empty = in the data directory"
    )
    spill_mb_max: int = Field(
        default=4_000, ge=1, le=MEGABYTES_MAX, description="the most that each of them may write there"
    )
