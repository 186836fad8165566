"""What the demo prints: results of queries as tables, small charts, and the summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.demo.stage import DATABASE, Stage

BARS = "▁▂▃▄▅▆▇█"
FLEETS = f"""
SELECT fleet, count(DISTINCT name) AS trucks, round(avg(velocity), 1) AS mean_kmh, round(max(fuel_consumption), 1) AS most_fuel
FROM {DATABASE}.readings GROUP BY fleet ORDER BY fleet
"""
HEAVIEST = f"""
SELECT name, driver, round(avg(current_load)) AS mean_load, max(time) AS last_seen
FROM {DATABASE}.diagnostics GROUP BY name, driver ORDER BY mean_load DESC LIMIT 3
"""
ONE_TRUCK = f"""
SELECT time_bucket(INTERVAL '1 minute', time) AS minute, avg(velocity) AS kmh
FROM {DATABASE}.readings WHERE name = 'truck_1' GROUP BY minute ORDER BY minute
"""
THIS_MACHINE = f"""
SELECT time, 100 - avg(idle_percent) AS percent FROM {DATABASE}.machine WHERE kind = 'cpu' GROUP BY time ORDER BY time
"""


def sparkline(values: Sequence[float | None]) -> str:
    """One character a value, scaled from the least to the greatest."""
    known = [value for value in values if value is not None]
    if not known:
        return "no values"
    # All values equal: one height for all, and no division by zero.
    low, span = min(known), max(known) - min(known) or 1.0
    return "".join(" " if value is None else BARS[round((value - low) / span * (len(BARS) - 1))] for value in values)


def show_queries(stage: Stage, rows_of: Any) -> None:
    """Run the queries of the demo and print their rows; `rows_of(sql)` returns dicts."""
    for title, sql in (("the fleets, from line protocol", FLEETS), ("who carries most", HEAVIEST)):
        rows = rows_of(sql)
        if rows and not stage.output.json_output:
            stage.output.table(tuple(rows[0]), [tuple(row.values()) for row in rows], title)
    _chart(stage, "truck_1, km/h by minute", [row["kmh"] for row in rows_of(ONE_TRUCK)])
    _chart(stage, "this machine, CPU % while Kafka was fed", [row["percent"] for row in rows_of(THIS_MACHINE)])


def _chart(stage: Stage, title: str, values: Sequence[float | None]) -> None:
    # avg over a bucket without rows is NULL, and no query of a healthy demo returns nothing at all.
    known = [value for value in values if value is not None]
    reach = f"{min(known):.0f} to {max(known):.0f}" if known else "nothing"
    stage.line(f"\n {title}  ({reach})\n {sparkline(values)}")


def show_summary(stage: Stage) -> None:
    """Print the checks, the figures and the time of each step."""
    if stage.output.json_output:
        stage.output.json(
            {
                "ok": stage.ok,
                "checks": [{"name": check.name, "ok": check.ok, "detail": check.detail} for check in stage.checks],
                "figures": {name: round(value, 3) for name, value in stage.figures.items()},
                "steps": [{"title": title, "seconds": round(seconds, 1)} for title, seconds in stage.steps],
            }
        )
        return
    stage.line("")
    rows = [("✓" if check.ok else "✗ FAILED", check.name, check.detail) for check in stage.checks]
    stage.output.table(("", "promise", "seen"), rows, "What was promised")
    figures = [(name.replace("_", " "), f"{value:,.1f}") for name, value in stage.figures.items()]
    stage.output.table(("figure", "value"), figures, "What was measured (shared machine, one run)")
    stage.output.table(("part", "seconds"), [(title, f"{seconds:.1f}") for title, seconds in stage.steps])
