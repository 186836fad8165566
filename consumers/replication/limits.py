"""Every limit of a node's way from log to memtable, in one place; each is shown as a metric `headrace_limit{name=…}`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicationLimits:
    """`*_bytes` count the bytes of message values; 0 bytes a second is no limit, 0 records to keep means all."""

    poll_records: int = 64
    poll_timeout_s: float = 0.1
    apply_queue_bytes: int = 64 * 1024 * 1024
    journal_retry_s: float = 1.0
    job_retry_s: float = 1.0
    job_backlog: int = 1
    schema_wait_s: float = 5.0
    chain_history: int = 65_536
    recoveries_max: int = 2
    recovery_bytes_per_second: int = 0
    log_keep_records: int = 0
    scrub_bytes_per_second: int = 64 * 1024 * 1024
    scrub_interval_s: float = 86_400.0
