"""Scans of few series: their rows come from decoded blocks, and are those that every other way gives."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.consumers.store import Store, StoreDamaged, StoreSettings, block_cache
from headrace.consumers.store.block_cache import BLOCK_OVERHEAD_BYTES, BLOCKS_PER_SCAN_MAX, BlockCache
from tests.unit.store.builders import CPU, HOUR_NS, Row, contents, expected, seal, write

FIELDS = ["busy", "load", "up"]


def rows_of(seed: int, hosts: int = 12, count: int = 60) -> list[Row]:
    """Rows of several series over two hours, with absent fields, in two halves of the same times."""
    chance = random.Random(seed)
    times = sorted(chance.sample(range(2 * 3_600), count))
    return [
        (
            {"host": f"h{host}", "rack": f"r{host % 3}"} if host else {"rack": "r0"},
            second * 1_000_000_000 + host % 2,
            {
                name: value
                for name, value in (("busy", second), ("load", second / 7), ("up", second % 2 == 0))
                if chance.random() < 0.9
            },
        )
        for second in times
        for host in range(hosts)
    ]


def is_within(at_ns: int, start_ns: int | None, end_ns: int | None) -> bool:
    """Whether a time is in a range."""
    return (start_ns is None or at_ns >= start_ns) and (end_ns is None or at_ns < end_ns)


def opened(home: Path, cache_bytes: int, rows: list[Row]) -> Store:
    """A store whose rows are sealed in two files of each bucket and hour, of several row groups."""
    store = Store.open(home, "n1", StoreSettings(row_group_rows=100, blocks_cache_bytes=cache_bytes))
    half = len(rows) // 2
    write(store, 1, rows[:half])
    seal(store, 2)
    write(store, 3, rows[half:])
    seal(store, 4)
    return store


@pytest.mark.parametrize("cache_bytes", [0, 9_000, 1 << 20])
def test_few_series_are_read_as_all_others_are(tmp_path: Path, cache_bytes: int) -> None:
    """Whatever fits into the cache: rows by tags and time are the rows that were written, again and again."""
    rows, chance = rows_of(1), random.Random(2)
    store = opened(tmp_path, cache_bytes, rows)
    for _ in range(60):
        hosts = chance.sample([f"h{host}" for host in range(1, 12)] + ["none"], chance.choice((1, 1, 3)))
        start = chance.choice((None, chance.randrange(2 * HOUR_NS)))
        end = chance.choice((None, chance.randrange(2 * HOUR_NS)))
        bounds: dict[str, Any] = {"start_ns": start, "end_ns": end, "tags": {"host": hosts}}
        found = contents(store, columns=["host", "rack", *FIELDS], **bounds)
        answer = expected(row for row in rows if row[0].get("host") in hosts and is_within(row[1], start, end))
        # Files have other series and times too.
        assert answer == {
            key: row
            for key, row in found.items()
            if dict(key[0]).get("host") in hosts and is_within(key[1], start, end)
        }
        with store.scan("plant", "cpu", columns=FIELDS, **bounds) as scan:
            if cache_bytes and len(hosts) == 1:
                assert not scan.files
                assert len(answer) == scan.table.num_rows
    assert store._components.blocks.cached_bytes <= cache_bytes
    store.close()


def test_texts_many_series_and_many_blocks_are_read_from_files(tmp_path: Path) -> None:
    """What has no known size, or needs too many blocks for one step, is left to whoever reads files."""
    store = opened(tmp_path, 1 << 20, rows_of(3, hosts=40))
    wanted: dict[str, Any] = {"columns": FIELDS, "tags": {"host": ["h1"]}}
    with store.scan("plant", "cpu", **wanted) as scan:
        assert not scan.files
    all_hosts = [f"h{host}" for host in range(1, 40)]
    others: list[dict[str, Any]] = [{"columns": ["busy", "note"]}, {"tags": {"host": all_hosts}}, {"tags": None}]
    for other in others:
        with store.scan("plant", "cpu", **(wanted | other)) as scan:
            assert scan.files
    store.close()
    few = Store.open(tmp_path, "n1", StoreSettings(blocks_cache_bytes=0))
    with few.scan("plant", "cpu", **wanted) as scan:
        assert scan.files
    few.close()


def test_a_scan_decodes_a_bounded_number_of_blocks(tmp_path: Path) -> None:
    """A series in more row groups than that is not held in memory as a whole."""
    store = Store.open(tmp_path, "n1", StoreSettings(row_group_rows=20))
    write(store, 1, [({"host": "h1"}, second * 10**9, {"busy": second}) for second in range(3_000)])
    seal(store, 2)
    with store.scan("plant", "cpu", columns=["busy"], tags={"host": ["h1"]}) as scan:
        assert 1 == len(scan.files)
        assert 0 == scan.merged.row_groups
    assert 3_000 // 20 > BLOCKS_PER_SCAN_MAX
    store.close()


def test_a_block_of_changed_bytes_is_an_error(tmp_path: Path) -> None:
    """Pages have checksums: a flipped bit is never another value in an answer."""
    store = opened(tmp_path, 1 << 20, rows_of(4, hosts=3))
    for path in store.segments_directory.rglob("*.parquet"):
        data, group = bytearray(path.read_bytes()), pq.read_metadata(path).row_group(0)
        times = next(group.column(at) for at in range(group.num_columns) if group.column(at).path_in_schema == "time")
        data[times.data_page_offset + times.total_compressed_size - 1] ^= 1
        path.write_bytes(data)
    with pytest.raises(StoreDamaged), store.scan("plant", "cpu", columns=FIELDS, tags={"host": ["h1"]}):
        pass
    store.close()


def small_files(home: Path, cache_bytes: int) -> Store:
    """A store of small files that share times and texts, with deletes between them."""
    store = Store.open(home, "n1", StoreSettings(blocks_cache_bytes=cache_bytes))
    chance, version = random.Random(6), 0
    for number in range(6):
        hosts = [{"host": f"h{host}"} for host in range(8)]
        # Some are in every file, so that none needs no merge.
        seconds = [0, *chance.sample(range(1, 3_599), 20), 3_599]
        rows: list[Row] = [
            (
                host,
                second * 10**9,
                {"busy": number, "note": f"{number} {second}"} | ({"load": 0.5} if number % 2 else {}),
            )
            for host in hosts
            for second in seconds
        ]
        write(store, version + 1, rows)
        store.delete(version + 2, 1, "plant", "cpu", {"host": (f"h{number}",)}, 600 * 10**9, 900 * 10**9)
        seal(store, version + 3)
        version += 3
    return store


def test_small_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that share times are merged from memory the next time, whatever is asked of them."""
    read, unread = small_files(tmp_path / "1", 1 << 20), small_files(tmp_path / "2", 0)
    columns = ["host", "note", *FIELDS]
    with read.scan("plant", "cpu", columns=columns) as scan:
        assert 1 < scan.merged.segments
    opened_files: list[Path] = []

    def counted(path: Path, **options: Any) -> pq.ParquetFile:
        opened_files.append(path)
        return pq.ParquetFile(path, **options)

    monkeypatch.setattr(block_cache, "pq", SimpleNamespace(ParquetFile=counted))
    chance = random.Random(7)
    for _ in range(40):
        bounds: dict[str, Any] = {
            "columns": ["host", *chance.sample(columns[1:], 2)],
            "start_ns": chance.choice((None, chance.randrange(HOUR_NS))),
            "end_ns": chance.choice((None, chance.randrange(HOUR_NS))),
            "tags": chance.choice((None, {"host": ["h1", "h4"]}, {"host": ["none"]})),
        }
        with read.scan("plant", "cpu", **bounds) as one, unread.scan("plant", "cpu", **bounds) as other:
            assert one.table.equals(other.table)
            assert one.merged == other.merged
    assert [] == opened_files
    read.close()
    unread.close()


def test_the_cache_keeps_what_was_used_last() -> None:
    """Blocks of its size together; one that is larger than all of it is not kept."""
    block = pa.array([1, 2, 3], pa.int64())
    size_bytes = block.nbytes + BLOCK_OVERHEAD_BYTES
    cache = BlockCache(4 * size_bytes + 1)
    for group in range(4):
        cache.put(("digest", group, "busy"), block)
    assert cache.get(("digest", 0, "busy")) is block
    cache.put(("digest", 4, "busy"), block)
    assert [True, False, True, True, True] == [cache.get(("digest", group, "busy")) is block for group in range(5)]
    assert 4 * size_bytes == cache.cached_bytes
    cache.put(("digest", 5, "busy"), pa.array([1] * size_bytes, pa.int64()))
    assert cache.get(("digest", 5, "busy")) is None


def test_unsealed_rows_and_deletes_count(tmp_path: Path) -> None:
    """Rows of memory come beside blocks; a file with rows of a newer write, or of a delete, is merged as before."""
    rows = rows_of(5, hosts=2)
    store = opened(tmp_path, 1 << 20, rows)
    changed = [
        ({"host": "h1", "rack": "r1"}, rows[-1][1], {"busy": -1}),
        ({"host": "h1", "rack": "r1"}, 7, {"busy": 9}),
    ]
    write(store, 5, changed)
    store.delete(6, 1, CPU.database, CPU.table, {"host": ("h1",)}, 100 * 10**9, 400 * 10**9)
    left = {(tuple(sorted(tags.items())), at): fields for tags, at, fields in rows if tags.get("host") == "h1"}
    left = {key: row for key, row in left.items() if not 100 * 10**9 <= key[1] < 400 * 10**9}
    found = contents(store, tags={"host": ["h1"]}, columns=["host", "rack", *FIELDS])
    for tags, at, fields in changed:
        key = (tuple(sorted(tags.items())), at)
        left[key] = {**left.get(key, {}), **fields}
    assert left.keys() == {key for key in found if dict(key[0]).get("host") == "h1"}
    store.close()
