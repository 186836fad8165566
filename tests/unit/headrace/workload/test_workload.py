"""The workloads: the same for the same seed in any batch size, with the documented statistics."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.workload import Workload, WorkloadInvalid, cpu, iot
from headrace.workload.checksum import workload_checksums

DICTIONARY = pa.dictionary(pa.int32(), pa.string())
PINNED = {
    "cpu": (1_200, "e47cf3dda87aaa0e"),
    "readings": (1_087, "4b6e285b2118c65b"),
    "diagnostics": (1_062, "0e419dafdb49fbd0"),
}


def table_of(workload: Workload, table: str, rows_per_batch: int) -> pa.Table:
    """One table, concatenated from batches of this size."""
    return pa.concat_tables([batch for _, batch in workload.batches(rows_per_batch, [table])]).combine_chunks()


def by_host(table: pa.Table, tag: str, fields: list[str]) -> np.ndarray:
    """Values as (step, host, field)."""
    hosts = len(pc.unique(table[tag]))
    return np.stack([table[name].to_numpy().reshape(-1, hosts) for name in fields], axis=2)


@pytest.mark.parametrize(
    "workload", [cpu(37, duration_s=900), iot(37, duration_s=900), iot(37, duration_s=900, disorder=True)]
)
def test_batch_size_changes_nothing(workload: Workload) -> None:
    """A table is the same rows in the same order however large its batches are."""
    for table in workload.tables:
        expected = table_of(workload, table, 100_000)
        assert expected.num_rows == workload.rows_of(table)
        for rows_per_batch in (1, 7, 100, 1_000):
            if rows_per_batch > 1 or workload.rows < 4_000:
                assert expected.equals(table_of(workload, table, rows_per_batch))


def test_chunks_of_time_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of steps generated at once does not change the data, with disorder or without."""
    workloads = [cpu(20, duration_s=700, seed=5), iot(20, duration_s=700, seed=5, disorder=True)]
    expected = [workload.read(table) for workload in workloads for table in workload.tables]
    monkeypatch.setattr("headrace.workload.workload._CHUNK_ROWS", 3 * 32)
    assert expected == [workload.read(table) for workload in workloads for table in workload.tables]


def test_batches_have_the_requested_size() -> None:
    """Every batch but a table's last has the requested number of rows, also when a step has more."""
    sizes = [batch.num_rows for _, batch in cpu(1_000, duration_s=30).batches(700)]
    assert [700, 700, 700, 700, 200] == sizes


def test_hosts_do_not_depend_on_the_number_of_hosts() -> None:
    """The first hosts of a large set have the values and tags that they have in a small one."""
    small, large = cpu(5, duration_s=300).read("cpu"), cpu(40, duration_s=300).read("cpu")
    kept = large.filter(pc.is_in(large["hostname"].cast(pa.string()), pa.array([f"host_{host}" for host in range(5)])))
    for name in small.column_names:
        assert small[name].to_pylist() == kept[name].to_pylist()


def test_tables_do_not_depend_on_each_other() -> None:
    """A table generated alone equals the one generated with the others."""
    fleet = iot(10, duration_s=200)
    together = [batch for name, batch in fleet.batches() if name == "diagnostics"]
    assert fleet.read("diagnostics") == pa.concat_tables(together).combine_chunks()


def test_seed_decides() -> None:
    """Another seed gives other values; the same seed the same ones."""
    assert cpu(4, duration_s=100, seed=1).read("cpu") == cpu(4, duration_s=100, seed=1).read("cpu")
    assert cpu(4, duration_s=100, seed=1).read("cpu") != cpu(4, duration_s=100, seed=2).read("cpu")


def test_data_set_is_pinned() -> None:
    """The data of a seed never changes from release to release: figures and checksums stay comparable."""
    sums = {
        name: (pc.sum(table["rows"]).as_py(), f"{pc.sum(table['checksum']).as_py():016x}")
        for workload in (cpu(20, duration_s=600, seed=42), iot(20, duration_s=600, seed=42, disorder=True))
        for name, table in workload_checksums(workload).items()
    }
    assert PINNED == sums


def test_time_major_order() -> None:
    """All hosts of a time come before the next time, one row each, ten seconds apart."""
    table = cpu(3, start_ns=1_000, duration_s=30).read("cpu")
    assert [1_000 + step * 10_000_000_000 for step in range(3) for _ in range(3)] == table["time"].to_pylist()
    assert [f"host_{host}" for _ in range(3) for host in range(3)] == table["hostname"].to_pylist()


def test_two_hours_of_a_thousand_trucks() -> None:
    """The counts are known without generating: 1,000 trucks for 2 hours are 7.2 million points."""
    fleet = iot(1_000, duration_s=7_200)
    assert (1_440_000, 7_200_000) == (fleet.rows, fleet.points)
    assert (720_000, 5_040_000) == (fleet.rows_of("readings"), fleet.points_of("readings"))


def test_cpu_columns() -> None:
    """`cpu` has ten string tags, time and ten int64 fields."""
    schema = cpu(2, duration_s=10).read("cpu").schema
    assert [DICTIONARY] * 10 + [pa.int64()] * 11 == schema.types
    assert ["hostname", "region", "datacenter", "rack", "os", "arch", "team"] == schema.names[:7]
    assert ["service", "service_version", "service_environment", "time", "usage_user"] == schema.names[7:12]


def test_iot_columns() -> None:
    """Both tables of `iot` have eight string tags and time; fields are floats, but for the status."""
    fleet = iot(2, duration_s=10)
    readings, diagnostics = fleet.read("readings").schema, fleet.read("diagnostics").schema
    assert [DICTIONARY] * 8 + [pa.int64()] + [pa.float64()] * 7 == readings.types
    assert [DICTIONARY] * 8 + [pa.int64(), pa.float64(), pa.float64(), pa.int64()] == diagnostics.types
    assert list(fleet.tags) == readings.names[:8] == diagnostics.names[:8]


def test_cpu_walks_within_bounds() -> None:
    """Usages walk by about N(0, 1) a step and stay in [0, 100]."""
    table = cpu(50, duration_s=20_000).read("cpu")
    values = by_host(table, "hostname", table.column_names[11:])
    steps = np.diff(values, axis=0)
    assert values.min() == 0
    assert values.max() == 100
    assert np.abs(steps).max() <= 7
    assert 0.9 < steps[(values[:-1] > 10) & (values[:-1] < 90)].std() < 1.2


@pytest.mark.parametrize(
    ("field", "step", "low", "high", "decimals"),
    [
        ("latitude", 0.005, -90, 90, 5),
        ("longitude", 0.005, -180, 180, 5),
        ("elevation", 10, 0, 5_000, 0),
        ("velocity", 10, 0, 100, 0),
        ("heading", 5, 0, 360, 0),
        ("grade", 5, 0, 100, 0),
        ("fuel_consumption", 5, 0, 50, 1),
    ],
)
def test_readings_walk_within_bounds(field: str, step: float, low: float, high: float, decimals: int) -> None:
    """A reading moves by at most its step, stays in its range, and has its number of decimals."""
    values = by_host(iot(30, duration_s=10_000).read("readings"), "name", [field])[:, :, 0]
    unit = 10.0**-decimals
    largest = np.abs(np.diff(values, axis=0)).max()
    assert low <= values.min() <= values.max() <= high
    assert 0.9 * step < largest <= step + unit * 1.001
    assert (np.round(values, decimals) == values).all()
    assert not np.signbit(values[values == 0]).any()


def test_diagnostics() -> None:
    """Fuel falls and is filled up again when it is used up.

    The load changes in 5 % of the steps; the status is 0 to 5.
    """
    table = iot(40, duration_s=40_000).read("diagnostics")
    fuel, load, status = np.moveaxis(by_host(table, "name", ["fuel_state", "current_load", "status"]), 2, 0)
    rises = np.diff(fuel, axis=0) > 0
    assert rises.any(axis=0).all()
    assert (fuel[1:][rises] == 1.0).all()
    assert (fuel[:-1][rises] <= 0.1).all()
    assert 0.045 < (np.diff(load, axis=0) != 0).mean() < 0.055
    assert 0 <= load.min() < 50 < 4_950 < load.max() <= 5_000
    assert {0, 1, 2, 3, 4, 5} == set(np.unique(status).tolist())


def test_tags_of_a_truck_belong_together() -> None:
    """A truck has one of four fleets, six drivers, four versions, and three models with their own capacities."""
    rows = iot(500, duration_s=10).read("readings").to_pylist()
    models = {(r["model"], r["load_capacity"], r["fuel_capacity"], r["nominal_fuel_consumption"]) for r in rows}
    assert {("F-150", "2000", "200", "15"), ("G-2000", "5000", "300", "19"), ("H-2", "1500", "150", "12")} == models
    assert (500, 4, 6, 4) == tuple(len({r[tag] for r in rows}) for tag in ("name", "fleet", "driver", "device_version"))


def test_datacenters_belong_to_their_region() -> None:
    """A server's datacenter is one of its region's."""
    rows = cpu(500, duration_s=10).read("cpu").to_pylist()
    assert all(row["datacenter"][:-1] == row["region"] for row in rows)
    assert 9 == len({row["region"] for row in rows})


def test_disorder_shares() -> None:
    """About 1 % of the batches and 10 % of the entries are missing, and 10 % of what is left lacks one field."""
    fleet, complete = iot(200, duration_s=10_000, disorder=True), iot(200, duration_s=10_000)
    for table in fleet.tables:
        kept = fleet.rows_of(table) / complete.rows_of(table)
        fields = complete.points_of(table) / complete.rows_of(table)
        nulls = fleet.rows_of(table) * fields - fleet.points_of(table)
        assert kept == pytest.approx(0.99 * 0.9, abs=0.005)
        assert nulls / fleet.rows_of(table) == pytest.approx(0.1, abs=0.005)


def test_disorder_counts_are_exact() -> None:
    """The announced numbers of rows and points are those of the generated tables."""
    fleet = iot(30, duration_s=2_000, disorder=True)
    points = {"readings": 0, "diagnostics": 0}
    for name, batch in fleet.batches(500):
        fields = batch.column_names[9:]
        points[name] += sum(batch.num_rows - batch[field].null_count for field in fields)
    assert points == {name: fleet.points_of(name) for name in fleet.tables}
    assert fleet.points == sum(points.values())


def test_disorder_only_leaves_out_and_delays() -> None:
    """Every row of the disordered set occurs once in the ordered one, with the same values or null."""
    fleet, complete = iot(50, duration_s=3_000, disorder=True), iot(50, duration_s=3_000)
    for table in fleet.tables:
        ordered = {(row["name"], row["time"]): row for row in complete.read(table).to_pylist()}
        rows = fleet.read(table).to_pylist()
        assert len(rows) == len({(row["name"], row["time"]) for row in rows})
        for row in rows:
            nulls = [name for name, value in row.items() if value is None]
            assert len(nulls) <= 1
            assert {**ordered[row["name"], row["time"]], **dict.fromkeys(nulls)} == row


def test_disorder_is_late_within_bounds() -> None:
    """About a third of the rows come after a row with a later time could; none is more than 63 steps late."""
    fleet = iot(100, duration_s=5_000, disorder=True)
    times = (fleet.read("readings")["time"].to_numpy() - fleet.start_ns) // 10_000_000_000
    lateness = np.maximum.accumulate(times) - times
    assert 0.15 < (lateness > 0).mean() < 0.4
    assert 50 < lateness.max() <= 64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hosts": 0}, "0 hosts"),
        ({"hosts": 1_000_001}, "1000001 hosts"),
        ({"hosts": 1, "seed": -1}, "seed -1"),
        ({"hosts": 1, "interval_s": 0}, "interval"),
        ({"hosts": 1, "duration_s": 5}, "hold no row"),
        ({"hosts": 1, "duration_s": float("inf")}, "hold no row"),
        ({"hosts": 1, "duration_s": float("nan")}, "hold no row"),
        ({"hosts": 1, "start_ns": 2**63 - 1}, "1677 to 2262"),
        ({"hosts": 1, "start_ns": -(2**63) - 1}, "1677 to 2262"),
    ],
)
def test_impossible_sets_are_refused(arguments: dict[str, float], message: str) -> None:
    """A number out of range is refused when the workload is made, by a line that names it."""
    with pytest.raises(WorkloadInvalid, match=message):
        cpu(**arguments)  # type: ignore[arg-type]


def test_unknown_table_is_refused() -> None:
    """A table that the workload does not have is refused at once, not at the first batch."""
    with pytest.raises(WorkloadInvalid, match="no table 'cpus'"):
        cpu(1).batches(tables=["cpus"])
    with pytest.raises(WorkloadInvalid, match="0 rows a batch"):
        cpu(1).batches(0)
