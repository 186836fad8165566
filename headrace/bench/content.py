"""Checks after every run that the stores hold exactly what was written: row counts and per-series checksums."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.connectors.http import request_node
from headrace.local_cluster import LocalCluster
from headrace.schemas.errors import HeadraceError
from headrace.workload.checksum import checksums, compare, total

CHECK_ROWS = 1_000_000


class ContentDiffers(HeadraceError):
    """A store does not hold what was written; the run has no figures."""


def read_checksums(url: str, database: str, table: str, tags: Sequence[str]) -> pa.Table:
    """The checksums of all rows of a table at a node; memory holds about `CHECK_ROWS` of them."""
    query = {"sql": f'SELECT * FROM "{database}"."{table}"', "format": "arrow"}
    answer = request_node(f"{url}/api/v1/query", method="POST", document=query, timeout_s=300)
    sums, held, held_rows = [], [], 0
    with answer, pa.ipc.open_stream(answer.stream) as reader:
        for batch in reader:
            held.append(batch)
            held_rows += len(batch)
            if held_rows >= CHECK_ROWS:
                sums.append(checksums(pa.Table.from_batches(held), tags))
                held, held_rows = [], 0
        if held:
            sums.append(checksums(pa.Table.from_batches(held), tags))
    return total(sums)


def written_checksums(written: Sequence[pa.Table]) -> pa.Table:
    """The checksums of what was written, table by table."""
    return total([checksums(rows, tag_names(rows)) for rows in written])


def tag_names(rows: pa.Table) -> list[str]:
    """The tags of rows as the benchmarks make them."""
    return [field.name for field in rows.schema if pa.types.is_dictionary(field.type)]


def check_node(url: str, database: str, table: str, tags: Sequence[str], expected: pa.Table) -> None:
    """Compare a table at a node with the checksums of what was written. Raises ContentDiffers."""
    differences = compare(expected, read_checksums(url, database, table, tags))
    if differences:
        raise ContentDiffers(f"{database}.{table} at {url}: {'; '.join(differences[:3])}")


def check_content(local: LocalCluster, database: str, table: str, written: Sequence[pa.Table]) -> None:
    """Compare every node with what was written. Raises ContentDiffers."""
    expected = written_checksums(written)
    for node in local.file.nodes:
        check_node(local.url(node.name), database, table, tag_names(written[0]), expected)
