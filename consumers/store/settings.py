"""Every size and limit of a store, in one place."""

from __future__ import annotations

from pydantic import Field

from headrace.schemas.settings import THREADS_MAX, Internal, SettingsModel


class StoreSettings(SettingsModel):
    """Sizes and limits of one store.

    A segment's content digest depends neither on its row groups nor on its compression.
    """

    encode_threads: int = Field(
        default=2, ge=1, le=THREADS_MAX, description="threads of the node that encode the files of seals"
    )
    compression_level: int = Field(
        default=1, ge=1, le=22, description="zstd level of sealed files; higher is smaller and slower"
    )
    row_group_rows: Internal[int] = Field(
        default=131_072, ge=1, description="rows of a Parquet row group; smaller means finer pruning and larger files"
    )
    compaction_files_min: Internal[int] = Field(
        default=4, ge=2, description="fewest neighbouring small files of one slice and bucket that are worth merging"
    )
    compaction_rows_max: Internal[int] = Field(
        default=4_000_000, ge=1, description="most rows of a merged file; a merge holds them in memory"
    )
    runs_cache_series: Internal[int] = Field(
        default=500_000, ge=0, description="series of segments kept decoded in memory, about 200 bytes each"
    )
    blocks_cache_bytes: Internal[int] = Field(
        default=32 << 20,
        ge=0,
        description="columns of row groups that a group keeps decoded, for few series and for small files",
    )
    last_tables_cache_bytes: Internal[int] = Field(
        default=128 << 20, ge=0, description="last rows of tables that a group keeps with their tags decoded"
    )
    rollups: bool = Field(
        default=True, description="keep hourly rollups beside sealed files, and answer hourly aggregates from them"
    )
    rollup_rows_min: Internal[int] = Field(
        default=16, ge=1, description="rows of a series and hour, on average, from which on a rollup pays"
    )
    rollup_segment_rows_min: Internal[int] = Field(
        default=16_384,
        ge=1,
        description="rows of a file that gets its rollup at once; a smaller one, soon merged, when a query wants it",
    )
    rollups_cache_bytes: Internal[int] = Field(
        default=32 << 20, ge=0, description="columns of rollups that a group keeps decoded in memory"
    )
    rollups_pending_max: Internal[int] = Field(
        default=64, ge=1, description="files of a group that wait for a rollup which a query did not find"
    )
    index_write_buffer_bytes: Internal[int] = Field(
        default=2 << 20, ge=1, description="RocksDB write buffer of each column family; a node opens one index a group"
    )
    index_open_files_max: Internal[int] = Field(default=64, ge=1, description="RocksDB table files kept open")
