"""Large fragments run as several drivers of one query, and give what one statement gives."""

from __future__ import annotations

import random
from collections.abc import Iterator

import duckdb
import pytest

from headrace.consumers.query import fragment_drivers
from headrace.consumers.query.fragment_drivers import FragmentDrivers, Work
from tests.unit.query.cluster_of_stores import cluster_of_stores
from tests.unit.query.random_statements import SCHEMA, random_query
from tests.unit.query.test_distributed import TABLE, Written, fill


@pytest.fixture(scope="module", params=[1, 5])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    """Rows with disorder, upserts and deletes, half sealed: at one node, or divided among five."""
    directory = tmp_path_factory.mktemp("cluster")
    with cluster_of_stores(directory, SCHEMA, request.param) as cluster, duckdb.connect() as connection:
        yield fill(cluster, connection)


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of drivers that fragments had, however few rows they read."""
    counts: list[int] = []
    original = FragmentDrivers.batches

    def counted(self: FragmentDrivers, works: list[Work]) -> object:
        counts.append(len(works))
        return original(self, works)

    monkeypatch.setattr(fragment_drivers, "CUT_VALUES_MIN", 1)
    monkeypatch.setattr(FragmentDrivers, "batches", counted)
    return counts


@pytest.mark.parametrize("seed", range(12))
def test_cut_statements_answer_as_one_duckdb(written: Written, drivers: list[int], seed: int) -> None:
    """Random statements, of the allow-list and beyond it: the same rows, int64 to 128 bits, doubles to 1e-9."""
    chance = random.Random(seed)
    for _ in range(8):
        query = random_query(chance)
        node = chance.choice(written.cluster.ring.headers)
        written.check(node, query.sql.replace("{table}", TABLE), query.ordered)
    assert 2 in drivers
    assert 0 == written.cluster.engines[node].scheduler.figures().memory_bytes
