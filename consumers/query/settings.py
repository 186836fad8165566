"""What the queries of one node may use."""

from __future__ import annotations

from pydantic import Field

from headrace.schemas.durations import DURATION_S_MAX
from headrace.schemas.settings import SettingsModel


class QuerySettings(SettingsModel):
    """Limits of all queries of a node together; `timeout_ms` is also the default of one query."""

    memory_limit_mb: int = Field(default=1_000, ge=16, description="memory of all running queries")
    threads: int = Field(default=2, ge=1, description="threads of all running queries")
    timeout_ms: int = Field(default=60_000, ge=1, description="the most time that a query may take")
    queries_max: int = Field(
        default=8, ge=1, description="queries that run at the same time; more are refused and may be retried"
    )
    scans_max: int = Field(
        default=16,
        ge=1,
        description="scans for queries of other nodes that run at the same time; more are refused and tried elsewhere",
    )
    remote_mb_max: int = Field(
        default=1_000, ge=1, description="rows of other nodes that all running queries hold together, in memory"
    )
    stale_max_s: float = Field(
        default=0.0,
        ge=0,
        le=DURATION_S_MAX,
        description="age in seconds up to which a node that cannot serve answers queries that name no age; 0 = never",
    )
    spill_directory: str = Field(
        default="", description="where queries that outgrow their memory may write; empty = they fail instead"
    )
    spill_mb_max: int = Field(default=4_000, ge=1, description="the most that they may write there together")
