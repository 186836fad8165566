"""One change of the code: a place, its text before and after, and the tests that must notice it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old`, which the file has exactly once, becomes `new`; `tests`, below tests/unit of the room, are run first.

    `simulated`: what no unit test notices may show in a schedule of tests/sim.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    simulated: bool = False

    @property
    def room(self) -> str:
        """The room below `consumers`."""
        return self.file.split("/")[0]

    @property
    def path(self) -> str:
        """The file, relative to the root of the tree."""
        return f"consumers/{self.file}"

    def applied(self, text: str) -> str:
        """The text of the file with the change. Raises ValueError when `old` is not there exactly once."""
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: its text is {count} times in {self.path}")
        return text.replace(self.old, self.new)
