"""The golden status with numbers that tests change at a glance."""

from __future__ import annotations

from dataclasses import replace

from headrace.schemas.framing import HEADER_BYTES, MAGIC
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


def newer(value: bytes) -> bytes:
    """A value as a build with a later schema frames it."""
    return MAGIC + b"\xee" * (HEADER_BYTES - len(MAGIC)) + value[HEADER_BYTES:]
