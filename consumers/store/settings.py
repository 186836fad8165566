"""Every size and limit of a store, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Sizes and limits of one store. Those marked (content) must be equal on every replica: they decide what is in a file."""

    row_group_rows: int = 131_072
    """Rows of a Parquet row group; smaller means finer pruning and larger files. Not part of the content."""
    compression_level: int = 1
    """zstd level of segments. Not part of the content."""
    encode_threads: int = 2
    """Threads that encode and sync the files of seals, for all stores that share them."""
    compaction_files_min: int = 4
    """Fewest neighbouring small files of one slice and bucket that are worth merging."""
    compaction_rows_max: int = 4_000_000
    """Most rows a merged file may have: a merge holds them in memory."""
    runs_cache_series: int = 500_000
    """Series of segments kept decoded in memory, summed over their lists (about 200 bytes each)."""
    index_write_buffer_bytes: int = 2 << 20
    """RocksDB write buffer of each column family; a node opens one index a group."""
    index_open_files_max: int = 64
    """RocksDB table files kept open."""
