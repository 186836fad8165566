"""The queries of TSBS (github.com/timescale/tsbs) for its two workloads, as SQL of DuckDB.

Tables are named `{cpu}`, `{readings}` and `{diagnostics}`. Which hosts, and which part of the day, is drawn once from
a seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

CPU_FIELDS = (
    *("usage_user", "usage_system", "usage_idle", "usage_nice", "usage_iowait"),
    *("usage_irq", "usage_softirq", "usage_steal", "usage_guest", "usage_guest_nice"),
)
HOUR_NS = 3_600_000_000_000
LAST_ROW_QUERIES = frozenset({"lastpoint", "last-loc", "single-last-loc", "low-fuel", "high-load"})
"""Queries of the newest row of each series."""
_DRIVING = """WITH windows AS (
  SELECT name, driver, fleet, model, time_bucket(INTERVAL '10 minutes', time) AS ten, avg({measure}) AS mean
  FROM {table} WHERE {condition} GROUP BY name, driver, fleet, model, ten)"""


@dataclass(frozen=True, slots=True)
class BenchQuery:
    """One query; `workload` is cpu or iot. `ordered`: its rows have an order."""

    name: str
    workload: str
    sql: str
    ordered: bool = False


def cpu_queries(hosts: int, start_ns: int, hours: int, seed: int) -> list[BenchQuery]:
    """The queries of the workload cpu."""
    chance = random.Random(seed)
    found = [
        _single_groupby(chance, hosts, start_ns, hours, metrics, of_hosts, width)
        for metrics, of_hosts, width in ((1, 1, 1), (1, 1, 12), (1, 8, 1), (5, 1, 1), (5, 1, 12), (5, 8, 1))
    ]
    for of_hosts in (1, 8):
        where = f"{_hosts(chance, hosts, of_hosts)} AND {_within(chance, start_ns, hours, 8)}"
        listed = _aggregated("max", CPU_FIELDS)
        sql = f"SELECT time_bucket(INTERVAL '1 hour', time) AS hour, {listed} FROM {{cpu}} WHERE {where}"
        found.append(_cpu(f"cpu-max-all-{of_hosts}", f"{sql} GROUP BY hour ORDER BY hour", ordered=True))
    for name, fields in (("1", CPU_FIELDS[:1]), ("5", CPU_FIELDS[:5]), ("all", CPU_FIELDS)):
        where, listed = _within(chance, start_ns, hours, 12), _aggregated("avg", fields)
        sql = f"SELECT time_bucket(INTERVAL '1 hour', time) AS hour, hostname, {listed} FROM {{cpu}} WHERE {where}"
        found.append(
            _cpu(f"double-groupby-{name}", f"{sql} GROUP BY hour, hostname ORDER BY hour, hostname", ordered=True)
        )
    busy = f"SELECT * FROM {{cpu}} WHERE usage_user > 90.0 AND {_within(chance, start_ns, hours, 12)}"
    found.append(_cpu("high-cpu-1", f"{busy} AND {_hosts(chance, hosts, 1)}"))
    found.append(_cpu("high-cpu-all", busy))
    found.append(
        _cpu("lastpoint", "SELECT DISTINCT ON (hostname) * FROM {cpu} ORDER BY hostname, time DESC", ordered=True)
    )
    end = _moment(start_ns + chance.randrange(max(1, hours - 1), hours + 1) * HOUR_NS)
    sql = f"SELECT time_bucket(INTERVAL '1 minute', time) AS minute, max(usage_user) AS usage FROM {{cpu}} WHERE time < {end}"
    found.append(_cpu("groupby-orderby-limit", f"{sql} GROUP BY minute ORDER BY minute DESC LIMIT 5", ordered=True))
    return found


def iot_queries(trucks: int, start_ns: int, hours: int, seed: int) -> list[BenchQuery]:
    """The queries of the workload iot."""
    truck = f"truck_{random.Random(seed).randrange(trucks)}"
    end_ns = start_ns + hours * HOUR_NS
    last_ten = f"time >= {_moment(end_ns - HOUR_NS // 6)}"
    last_four = f"time >= {_moment(end_ns - 4 * HOUR_NS)}"
    newest = "SELECT DISTINCT ON (name) name, driver, {columns} FROM {table} WHERE {where} ORDER BY name, time DESC"
    place = {"columns": "longitude, latitude", "table": "{readings}"}
    fuel = newest.format(columns="fuel_state", table="{diagnostics}", where="fleet = 'South'")
    load = newest.format(columns="current_load, load_capacity", table="{diagnostics}", where="fleet = 'South'")
    velocity = _DRIVING.format(measure="velocity", table="{readings}", condition="{condition}")
    driving = velocity.format(condition="name IS NOT NULL", readings="{readings}")
    recent = velocity.format(condition=last_four, readings="{readings}")
    status = _DRIVING.format(measure="status", table="{diagnostics}", condition="name IS NOT NULL")
    sessions = "SELECT name, driver FROM windows WHERE mean > 1 GROUP BY name, driver HAVING count(*) > {least}"
    found = {
        "last-loc": newest.format(where="name IS NOT NULL", **place),
        "single-last-loc": newest.format(where=f"name = '{truck}'", **place),
        "low-fuel": f"SELECT * FROM ({fuel}) WHERE fuel_state <= 0.1",
        "high-load": f"SELECT * FROM ({load}) WHERE current_load / CAST(load_capacity AS DOUBLE) >= 0.9",
        "stationary-trucks": "SELECT name, driver FROM {readings} WHERE "
        f"{last_ten} AND fleet = 'West' GROUP BY name, driver HAVING avg(velocity) < 1",
        "long-driving-sessions": f"{recent} {sessions.format(least=22)}",
        "long-daily-sessions": f"{driving} {sessions.format(least=60)}",
        "avg-vs-projected-fuel-consumption": "SELECT fleet, avg(fuel_consumption) AS used, "
        "avg(CAST(nominal_fuel_consumption AS DOUBLE)) AS projected FROM {readings} WHERE velocity > 1 GROUP BY fleet",
        "avg-daily-driving-duration": f"{driving}, days AS (SELECT fleet, name, driver, date_trunc('day', ten) AS day, "
        "count(*) / 6.0 AS hours FROM windows WHERE mean > 1 GROUP BY ALL) "
        "SELECT fleet, name, driver, avg(hours) AS hours FROM days GROUP BY fleet, name, driver",
        "avg-daily-driving-session": f"{driving}, moves AS (SELECT name, ten, mean > 5 AS driving, "
        "lag(mean > 5) OVER (PARTITION BY name ORDER BY ten) AS before FROM windows), "
        "changes AS (SELECT name, ten, driving, lead(ten) OVER (PARTITION BY name ORDER BY ten) AS stop "
        "FROM moves WHERE driving IS DISTINCT FROM before) SELECT name, date_trunc('day', ten) AS day, "
        "avg(epoch(stop) - epoch(ten)) AS seconds FROM changes WHERE driving AND stop IS NOT NULL GROUP BY ALL",
        "avg-load": "SELECT fleet, model, load_capacity, avg(current_load / CAST(load_capacity AS DOUBLE)) AS load "
        "FROM {diagnostics} WHERE name IS NOT NULL GROUP BY fleet, model, load_capacity",
        "daily-activity": f"{status} SELECT fleet, model, date_trunc('day', ten) AS day, count(*) / 144.0 AS activity "
        "FROM windows WHERE mean < 1 GROUP BY ALL",
        "breakdown-frequency": f"{status}, steps AS (SELECT model, mean >= 1 AS broken, lead(mean >= 1) "
        "OVER (PARTITION BY name ORDER BY ten) AS after FROM windows) "
        "SELECT model, count(*) AS breakdowns FROM steps WHERE NOT broken AND after GROUP BY model",
    }
    return [BenchQuery(name, "iot", sql) for name, sql in found.items()]


def _single_groupby(
    chance: random.Random, hosts: int, start_ns: int, hours: int, metrics: int, of_hosts: int, width: int
) -> BenchQuery:
    where = f"{_hosts(chance, hosts, of_hosts)} AND {_within(chance, start_ns, hours, width)}"
    listed = _aggregated("max", CPU_FIELDS[:metrics])
    sql = f"SELECT time_bucket(INTERVAL '1 minute', time) AS minute, {listed} FROM {{cpu}} WHERE {where}"
    name = f"single-groupby-{metrics}-{of_hosts}-{width}"
    return _cpu(name, f"{sql} GROUP BY minute ORDER BY minute", ordered=True)


def _cpu(name: str, sql: str, *, ordered: bool = False) -> BenchQuery:
    return BenchQuery(name, "cpu", sql, ordered)


def _aggregated(function: str, fields: Sequence[str]) -> str:
    return ", ".join(f"{function}({name}) AS {function}_{name}" for name in fields)


def _hosts(chance: random.Random, hosts: int, count: int) -> str:
    names = ", ".join(f"'host_{number}'" for number in chance.sample(range(hosts), min(count, hosts)))
    return f"hostname IN ({names})"


def _within(chance: random.Random, start_ns: int, hours: int, width: int) -> str:
    width = min(width, hours)
    begin_ns = start_ns + chance.randrange(hours - width + 1) * HOUR_NS
    return f"time >= {_moment(begin_ns)} AND time < {_moment(begin_ns + width * HOUR_NS)}"


def _moment(time_ns: int) -> str:
    return f"TIMESTAMP '{datetime.fromtimestamp(time_ns // 1_000_000_000, UTC):%Y-%m-%d %H:%M:%S}'"
