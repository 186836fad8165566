"""Checks after every run that the stores hold exactly what was written: row counts and per-series checksums."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence

import pyarrow as pa

from headrace.local_cluster import LocalCluster
from headrace.workload.checksum import checksums, compare
from schemas.errors import HeadraceError


class ContentDiffers(HeadraceError):
    """A store does not hold what was written; the run has no figures."""


def read_table(url: str, database: str, table: str) -> pa.Table:
    """All rows of a table at a node."""
    body = json.dumps({"sql": f'SELECT * FROM "{database}"."{table}"', "format": "arrow"}).encode()
    request = urllib.request.Request(f"{url}/api/v1/query", data=body, headers={"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        return pa.ipc.open_stream(response).read_all()


def check_content(local: LocalCluster, database: str, table: str, written: Sequence[pa.Table]) -> None:
    """Compare every node with what was written. Raises ContentDiffers."""
    tags = [field.name for field in written[0].schema if pa.types.is_dictionary(field.type)]
    expected = checksums(pa.concat_tables(written, promote_options="default"), tags)
    for node in local.file.nodes:
        found = checksums(read_table(local.url(node.name), database, table), tags)
        differences = compare(expected, found)
        if differences:
            raise ContentDiffers(f"{database}.{table} at node {node.name}: {'; '.join(differences[:3])}")
