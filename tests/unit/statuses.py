"""The golden status with numbers that tests change at a glance."""

from __future__ import annotations

from dataclasses import replace

from tests.golden_values import STATUS as GOLDEN

STATUS = replace(
    GOLDEN,
    group="g",
    topic_id="t",
    epoch=1,
    version=10,
    offset=12,
    position=13,
    durable_offset=12,
    sealed_version=5,
    sealed_offset=6,
    chain_version=0,
    stored_version=-1,
    sealed_log_bytes=0,
    segment_bytes=0,
    sent_boot_ns=7,
)
