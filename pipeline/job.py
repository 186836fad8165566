"""An ingest job: its raw topic, its database and its raw format.

Plain values that are pickled to Spark's Python workers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.connectors.formats.interface import Format, FormatOptions
from headrace.schemas.tables import TimeResolution

COMPRESSION = "zstd"


@dataclass(frozen=True, slots=True)
class IngestJob:
    """Raw topic to forward topics. `settings` are librdkafka's, as (name, value) pairs, and override ours."""

    cluster: str
    bootstrap: str
    topic: str
    database: str
    format: Format
    options: FormatOptions = field(default_factory=FormatOptions)
    # Pairs, not a dict: a worker keeps one Kafka client for equal settings, so they have to be hashable.
    settings: tuple[tuple[str, str], ...] = ()
    compression: str = COMPRESSION
    # Of the tables that the job makes.
    resolution: TimeResolution = TimeResolution.US
    any_time: bool = False
