"""Every limit between a node's log and its memtables; each is a metric `headrace_limit{name=…}`."""

from __future__ import annotations

from pydantic import Field

from headrace.schemas.durations import DURATION_S_MAX
from headrace.schemas.settings import BYTES_MAX, RECORDS_MAX, ROWS_MAX, THREADS_MAX, Internal, SettingsModel


class ReplicationLimits(SettingsModel):
    """`*_bytes` count the bytes of message values."""

    poll_records: Internal[int] = Field(default=64, description="most records that one poll of the log returns")
    poll_timeout_s: Internal[float] = Field(default=0.1, description="how long a poll waits for the first record")
    apply_queue_bytes: int = Field(
        default=67_108_864,
        ge=1,
        le=BYTES_MAX,
        description="bytes of messages that may wait between journal and memtable",
    )
    journal_retry_s: Internal[float] = Field(
        default=1.0, description="pause before a failed journal or log reader is tried again"
    )
    job_retry_s: Internal[float] = Field(default=1.0, description="pause before a failed job on files is tried again")
    job_backlog: Internal[int] = Field(
        default=1, description="jobs on files that may wait while a group applies further records"
    )
    load_backlog: Internal[int] = Field(
        default=1_000, description="loads of files that may wait while a group applies further records"
    )
    schema_wait_s: Internal[float] = Field(
        default=5.0, description="how long a group waits for the schema that a message names"
    )
    chain_history: Internal[int] = Field(
        default=65_536, description="newest records of a group whose hash chain is kept in memory"
    )
    recoveries_max: int = Field(
        default=2, ge=1, le=THREADS_MAX, description="groups that are copied from other nodes at the same time"
    )
    recovery_bytes_per_second: int = Field(
        default=0, ge=0, le=BYTES_MAX, description="most bytes that a recovery copies from another node; 0 = no limit"
    )
    migration_fetches_max: int = Field(
        default=4,
        ge=1,
        le=THREADS_MAX,
        description="files of moved slots that are fetched from other nodes at the same time",
    )
    migration_bytes_per_second: int = Field(
        default=0,
        ge=0,
        le=BYTES_MAX,
        description="most bytes of moved slots that are fetched from other nodes; 0 = no limit",
    )
    migration_busy_share: float = Field(
        default=0.25,
        gt=0,
        le=1,
        description="share of its time that a copy ahead works at least while processors are busy; 1 = it never yields",
    )
    background_nice: int = Field(
        default=10,
        ge=0,
        le=19,
        description="added niceness of the threads that seal, merge, recover and check files; 0 = as the others",
    )
    log_keep_records: int = Field(
        default=0, ge=0, le=RECORDS_MAX, description="records of a group's log that trimming leaves; 0 = never trim"
    )
    scrub_bytes_per_second: int = Field(
        default=67_108_864, ge=0, le=BYTES_MAX, description="most bytes of files that such a check reads; 0 = no limit"
    )
    scrub_interval_s: float = Field(
        default=86_400.0, ge=1, le=DURATION_S_MAX, description="pause between two checks of all files for changed bytes"
    )

    def figures(self) -> dict[str, float]:
        """Every limit by name, for metrics."""
        # Of this class and not of `self`: the section `store` is these limits and the settings of other rooms.
        return {name: float(getattr(self, name)) for name in ReplicationLimits.model_fields}


class SealPolicy(SettingsModel):
    """When a leader seals: at a size, which its claim writes into the log, and at an age."""

    seal_rows: int = Field(default=2_000_000, ge=1, le=ROWS_MAX, description="seal a group at this many unsealed rows")
    seal_bytes: int = Field(
        default=268_435_456, ge=1, le=BYTES_MAX, description="seal a group at this many unsealed bytes"
    )
    seal_age_ms: int = Field(
        default=300_000, ge=1, le=1_000 * DURATION_S_MAX, description="seal a group when unsealed rows are this old"
    )
