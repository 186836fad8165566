"""The figures of a receiver as Prometheus reads them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

COUNTERS: Mapping[str, tuple[str, str]] = {
    "chunks": ("headrace_sync_chunks_total", "Chunks that were read"),
    "chunk_bytes": ("headrace_sync_chunk_bytes_total", "Bytes of those chunks"),
    "chunks_ignored": ("headrace_sync_chunks_ignored_total", "Chunks that were there already, or of an old attempt"),
    "chunks_damaged": ("headrace_sync_chunks_damaged_total", "Chunks whose bytes are not those of their digest"),
    "resends": ("headrace_sync_resends_total", "Times that missing chunks were asked for again"),
    "files_accepted": ("headrace_sync_files_accepted_total", "Files that were loaded"),
    "files_rejected": ("headrace_sync_files_rejected_total", "Files that were rejected, such as for a device"),
    "files_damaged": ("headrace_sync_files_damaged_total", "Files that arrived damaged and are sent again"),
    "disk_full": ("headrace_sync_disk_full_total", "Times that the disk of the receiver was full"),
}
GAUGES: Mapping[str, tuple[str, str]] = {
    "partitions": ("headrace_sync_partitions", "Partitions of manifests that are this receiver's"),
    "files_open": ("headrace_sync_files_open", "Files that are not decided"),
    "files_loading": ("headrace_sync_files_loading", "Whole files that are verified or loaded"),
    "files_waiting": ("headrace_sync_files_waiting", "Files whose step is tried again"),
    "staging_bytes": ("headrace_sync_staging_bytes", "Bytes of files on the disk of the receiver"),
    "disk_fault": ("headrace_sync_disk_fault", "1 while the receiver cannot write to its disk"),
}
LIMITS = ("headrace_sync_receiver_limit", "Limits of the receiver")


@dataclass(slots=True)
class ReceiverFigures:
    """Counts since the start of a receiver."""

    chunks: int = 0
    chunk_bytes: int = 0
    chunks_ignored: int = 0
    chunks_damaged: int = 0
    resends: int = 0
    files_accepted: int = 0
    files_rejected: int = 0
    files_damaged: int = 0


def receiver_text(
    cluster: str, counters: Mapping[str, float], gauges: Mapping[str, float], limits: Mapping[str, float]
) -> str:
    """Each figure with the label `cluster`; names of figures that are not in the tables raise KeyError."""
    return "".join(f"{line}\n" for line in _lines(cluster, counters, gauges, limits))


def _lines(
    cluster: str, counters: Mapping[str, float], gauges: Mapping[str, float], limits: Mapping[str, float]
) -> Iterator[str]:
    for kind, table, values in (("counter", COUNTERS, counters), ("gauge", GAUGES, gauges)):
        for name, value in values.items():
            metric, text = table[name]
            yield f"# HELP {metric} {text}"
            yield f"# TYPE {metric} {kind}"
            yield f'{metric}{{cluster="{cluster}"}} {value:g}'
    metric, text = LIMITS
    yield f"# HELP {metric} {text}"
    yield f"# TYPE {metric} gauge"
    for name, value in limits.items():
        yield f'{metric}{{cluster="{cluster}",name="{name}"}} {value:g}'
