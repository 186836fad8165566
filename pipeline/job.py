"""What an ingest job is: from which raw topic, into which database, read how. Plain values that travel to Spark's Python workers."""

from __future__ import annotations

from dataclasses import dataclass, field

from connectors.formats.parsed import Format, FormatOptions

COMPRESSION = "zstd"


@dataclass(frozen=True, slots=True)
class IngestJob:
    """Raw topic to forward topics. `settings` are librdkafka's, as (name, value) pairs, and win over ours."""

    cluster: str
    bootstrap: str
    topic: str
    database: str
    format: Format
    options: FormatOptions = field(default_factory=FormatOptions)
    settings: tuple[tuple[str, str], ...] = ()
    compression: str = COMPRESSION
