"""The tables of the two workloads: their tags, as one row a host, and their fields."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.workload.fields import Cargo, Field, Fuel, Walk
from headrace.workload.streams import BlockStreams, Purpose

TAG_TYPE = pa.dictionary(pa.int32(), pa.string())
_TAG_TABLE_ID = 0

_FLEETS = ("East", "West", "North", "South")
_DRIVERS = ("Derek", "Rodney", "Albert", "Andy", "Seth", "Trish")
_DEVICE_VERSIONS = ("v1.0", "v1.5", "v2.0", "v2.3")
_MODELS = ("F-150", "G-2000", "H-2")
_MODEL_TAGS = {
    "load_capacity": ("2000", "5000", "1500"),
    "fuel_capacity": ("200", "300", "150"),
    "nominal_fuel_consumption": ("15", "19", "12"),
}
# Names and values after TSBS (github.com/timescale/tsbs).
_REGIONS = {
    "us-east-1": "abce",
    "us-west-1": "ab",
    "us-west-2": "abc",
    "eu-west-1": "abc",
    "eu-central-1": "ab",
    "ap-southeast-1": "ab",
    "ap-southeast-2": "ab",
    "ap-northeast-1": "ac",
    "sa-east-1": "abc",
}
_CPU_FIELDS = (
    "usage_user",
    "usage_system",
    "usage_idle",
    "usage_nice",
    "usage_iowait",
    "usage_irq",
    "usage_softirq",
    "usage_steal",
    "usage_guest",
    "usage_guest_nice",
)


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One table of a workload; `table_id` names its random streams and never changes."""

    name: str
    table_id: int
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class HostTags:
    """A tag of all hosts: the index of each host's value, and the values."""

    name: str
    indices: npt.NDArray[np.int32]
    values: pa.StringArray

    def column(self, hosts: npt.NDArray[np.int32]) -> pa.DictionaryArray:
        """The tag of each row, given the host of each row."""
        return pa.DictionaryArray.from_arrays(pa.array(self.indices[hosts]), self.values, safe=False)


CPU = TableSpec("cpu", 1, tuple(Walk(name, 0, 100, 0, 100, 1, normal=True, decimals=None) for name in _CPU_FIELDS))
READINGS = TableSpec(
    "readings",
    2,
    (
        Walk("latitude", -90, 90, 0, 90, 0.005, decimals=5),
        Walk("longitude", -180, 180, 0, 180, 0.005, decimals=5),
        Walk("elevation", 0, 5_000, 0, 500, 10),
        Walk("velocity", 0, 100, 0, 0, 10),
        Walk("heading", 0, 360, 0, 360, 5),
        Walk("grade", 0, 100, 0, 0, 5),
        Walk("fuel_consumption", 0, 50, 25, 25, 5, decimals=1),
    ),
)
DIAGNOSTICS = TableSpec(
    "diagnostics",
    3,
    (Fuel("fuel_state"), Cargo("current_load"), Walk("status", 0, 5, 0, 0, 1, normal=True, decimals=None)),
)


def truck_tags(trucks: int, seed: int) -> list[HostTags]:
    """The tags of a fleet."""
    fleet, driver, model, version = _choices(
        trucks, seed, [len(_FLEETS), len(_DRIVERS), len(_MODELS), len(_DEVICE_VERSIONS)]
    )
    return [
        _names("name", "truck_", trucks),
        _tag("fleet", fleet, _FLEETS),
        _tag("driver", driver, _DRIVERS),
        _tag("model", model, _MODELS),
        _tag("device_version", version, _DEVICE_VERSIONS),
        *(_tag(name, model, values) for name, values in _MODEL_TAGS.items()),
    ]


def host_tags(hosts: int, seed: int) -> list[HostTags]:
    """The tags of a number of servers."""
    datacenters = [f"{region}{zone}" for region, zones in _REGIONS.items() for zone in zones]
    first = np.cumsum([0, *(len(zones) for zones in _REGIONS.values())])[:-1]
    region, zone, rack, system, arch, team, service, version, environment = _choices(
        hosts, seed, [len(_REGIONS), None, 100, 3, 2, 4, 20, 2, 3]
    )
    zones = np.array([len(zones) for zones in _REGIONS.values()])[region.astype(np.int32)]
    return [
        _names("hostname", "host_", hosts),
        _tag("region", region, tuple(_REGIONS)),
        _tag("datacenter", first[region.astype(np.int32)] + np.floor(zone * zones), tuple(datacenters)),
        _tag("rack", rack, tuple(str(number) for number in range(100))),
        _tag("os", system, ("Ubuntu16.10", "Ubuntu16.04LTS", "Ubuntu15.10")),
        _tag("arch", arch, ("x64", "x86")),
        _tag("team", team, ("SF", "NYC", "LON", "CHI")),
        _tag("service", service, tuple(str(number) for number in range(20))),
        _tag("service_version", version, ("0", "1")),
        _tag("service_environment", environment, ("production", "staging", "test")),
    ]


def _choices(hosts: int, seed: int, sizes: list[int | None]) -> list[npt.NDArray[np.float64]]:
    """One array a size: whole numbers below it, one a host; for None the uniform number in [0, 1) itself."""
    drawn = BlockStreams(seed, _TAG_TABLE_ID, Purpose.TAGS, hosts, len(sizes)).draw(1)[0, :, :hosts]
    return [drawn[index] if size is None else np.floor(drawn[index] * size) for index, size in enumerate(sizes)]


def _tag(name: str, indices: npt.NDArray[np.float64], values: tuple[str, ...]) -> HostTags:
    return HostTags(name, indices.astype(np.int32), pa.array(values, pa.string()))


def _names(name: str, prefix: str, hosts: int) -> HostTags:
    return HostTags(
        name, np.arange(hosts, dtype=np.int32), pa.array([f"{prefix}{host}" for host in range(hosts)], pa.string())
    )
