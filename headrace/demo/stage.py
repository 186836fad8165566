"""What the steps of the demo share: the cluster, the checks and the figures of the run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace.local_cluster import LocalCluster
from headrace.terminal.output import Output

CLUSTER = "demo"
DATABASE = "demo"
FLEET_TOPIC = f"{CLUSTER}.ingest.fleet"
MACHINE_TOPIC = f"{CLUSTER}.ingest.machine"


@dataclass(frozen=True, slots=True)
class Check:
    """One promise and whether it held."""

    name: str
    ok: bool
    detail: str


@dataclass(slots=True)
class Stage:
    """One run of the demo."""

    cluster: LocalCluster
    output: Output
    checks: list[Check] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    steps: list[tuple[str, float]] = field(default_factory=list)

    def check(self, name: str, problems: list[str], detail: str) -> None:
        """Record and print a promise: it held if there are no problems."""
        made = Check(name, not problems, "; ".join(problems[:3]) if problems else detail)
        self.checks.append(made)
        # At once and not only in the summary, which a demo that fails later never reaches.
        self.line(f"    {chr(0x2713) if made.ok else chr(0x2717)} {made.name}: {made.detail}")

    def line(self, text: str) -> None:
        """Print a line for people; nothing with --json."""
        if not self.output.json_output:
            self.output.line(text)

    @contextmanager
    def step(self, number: int, title: str) -> Iterator[None]:
        """One step of the demo, with its title and its time."""
        self.line(f"\n[{number}] {title}")
        started = time.monotonic()
        yield
        self.steps.append((title, time.monotonic() - started))

    @property
    def ok(self) -> bool:
        """Whether every promise held."""
        return all(check.ok for check in self.checks)
