"""What the demo shows people: answers as tables, a small chart, and the summary."""

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
    low, span = min(known), max(known) - min(known) or 1.0
    return "".join(" " if value is None else BARS[round((value - low) / span * (len(BARS) - 1))] for value in values)


def answers(stage: Stage, rows_of: Any) -> None:
    """Ask, and show what comes back; `rows_of(sql)` gives dicts."""
    for title, sql in (("the fleets, from line protocol", FLEETS), ("who carries most", HEAVIEST)):
        rows = rows_of(sql)
        if rows and not stage.output.json_output:
            stage.output.table(tuple(rows[0]), [tuple(row.values()) for row in rows], title)
    _chart(stage, "truck_1, km/h by minute", [row["kmh"] for row in rows_of(ONE_TRUCK)])
    _chart(stage, "this machine, CPU % while Kafka was fed", [row["percent"] for row in rows_of(THIS_MACHINE)])


def _chart(stage: Stage, title: str, values: Sequence[float | None]) -> None:
    known = [value for value in values if value is not None]
    reach = f"{min(known):.0f} to {max(known):.0f}" if known else "nothing"
    stage.say(f"\n {title}  ({reach})\n {sparkline(values)}")


def summary(stage: Stage) -> None:
    """The checks, the figures and the time each part took."""
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
    stage.say("")
    rows = [("✓" if check.ok else "✗ FAILED", check.name, check.detail) for check in stage.checks]
    stage.output.table(("", "promise", "seen"), rows, "What was promised")
    figures = [(name.replace("_", " "), f"{value:,.1f}") for name, value in stage.figures.items()]
    stage.output.table(("figure", "value"), figures, "What was measured (shared machine, one run)")
    stage.output.table(("part", "seconds"), [(title, f"{seconds:.1f}") for title, seconds in stage.steps])
