"""How the fields of the two workloads change from step to step, after TSBS (github.com/timescale/tsbs).

A field keeps its exact state from step to step; only what is emitted is rounded, so small steps are never
lost to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.workload.streams import BLOCK_HOSTS, BlockStreams, Floats, Purpose, block_count

Values: TypeAlias = npt.NDArray[np.float64] | npt.NDArray[np.int64]

LOAD_MAX = 5_000.0
LOAD_CHANGE_CHANCE = 0.05
FUEL_STEP_MAX = 0.001
FUEL_FULL = 1.0


@dataclass(frozen=True, slots=True)
class Walk:
    """A random walk, clipped to [low, high], that starts uniformly in [start_low, start_high].

    A step is U(-step, step), or N(0, step) when `normal`. `decimals` rounds what is emitted; None emits
    int64, the fraction cut off.
    """

    name: str
    low: float
    high: float
    start_low: float
    start_high: float
    step: float
    normal: bool = False
    decimals: int | None = 0


@dataclass(frozen=True, slots=True)
class Fuel:
    """A tank that falls by U(0, 0.001) a step and is full again when it is empty."""

    name: str
    decimals: int | None = 1


@dataclass(frozen=True, slots=True)
class Cargo:
    """A load that is drawn anew from U(0, 5000) with a chance of 5 % a step."""

    name: str
    decimals: int | None = 0


Field: TypeAlias = Walk | Fuel | Cargo


class FieldWalks:
    """The state of every field of every host of one table, advanced step by step.

    Not thread-safe; forward only.
    """

    def __init__(self, fields: tuple[Field, ...], seed: int, table_id: int, hosts: int) -> None:
        self._fields = fields
        self._hosts = hosts
        self._uniform = BlockStreams(seed, table_id, Purpose.UNIFORM, hosts, sum(_uniform_channels(f) for f in fields))
        self._normal = BlockStreams(seed, table_id, Purpose.NORMAL, hosts, sum(_normal_channels(f) for f in fields))
        start = BlockStreams(seed, table_id, Purpose.START, hosts, len(fields)).draw(1)[0]
        self._state = np.stack([_start(field, start[index]) for index, field in enumerate(fields)])
        self._low = np.array([[field.low if isinstance(field, Walk) else -np.inf] for field in fields])
        self._high = np.array([[field.high if isinstance(field, Walk) else np.inf] for field in fields])

    def advance(self, steps: int) -> list[Values]:
        """The next `steps` steps: one array a field, time-major (all hosts of a step, then the next step)."""
        states = self._walk(steps, *self._steps(steps))
        return [_emitted(field, states[:steps, index, : self._hosts]) for index, field in enumerate(self._fields)]

    def _steps(self, steps: int) -> tuple[Floats, dict[int, npt.NDArray[np.bool_]]]:
        """What each step adds to each field, and for loads (by index) where that replaces the old value."""
        uniform, normal = self._uniform.draw(steps), self._normal.draw(steps)
        added = np.empty((steps, len(self._fields), block_count(self._hosts) * BLOCK_HOSTS))
        replaced: dict[int, npt.NDArray[np.bool_]] = {}
        next_uniform = next_normal = 0
        for index, field in enumerate(self._fields):
            if isinstance(field, Walk) and field.normal:
                np.multiply(normal[:, next_normal], field.step, out=added[:, index])
            elif isinstance(field, Walk):
                np.multiply(uniform[:, next_uniform] - 0.5, 2 * field.step, out=added[:, index])
            elif isinstance(field, Fuel):
                np.multiply(uniform[:, next_uniform], -FUEL_STEP_MAX, out=added[:, index])
            else:
                replaced[index] = uniform[:, next_uniform] < LOAD_CHANGE_CHANCE
                np.multiply(uniform[:, next_uniform + 1], LOAD_MAX, out=added[:, index])
            next_uniform += _uniform_channels(field)
            next_normal += _normal_channels(field)
        return added, replaced

    def _walk(self, steps: int, added: Floats, replaced: dict[int, npt.NDArray[np.bool_]]) -> Floats:
        """States before each step and after the last; a Python loop per step, never per host."""
        fuels = [index for index, field in enumerate(self._fields) if isinstance(field, Fuel)]
        states = np.empty((steps + 1, *self._state.shape))
        states[0] = self._state
        # Clipping makes each step depend on the one before, so a cumulative sum will not do.
        for step in range(steps):
            before, after = states[step], states[step + 1]
            np.add(before, added[step], out=after)
            np.maximum(after, self._low, out=after)
            np.minimum(after, self._high, out=after)
            for index in fuels:
                after[index][after[index] <= 0] = FUEL_FULL
            for index, where in replaced.items():
                np.copyto(after[index], np.where(where[step], added[step, index], before[index]))
        self._state = states[steps].copy()
        return states


def _uniform_channels(field: Field) -> int:
    if isinstance(field, Walk):
        return 0 if field.normal else 1
    return 1 if isinstance(field, Fuel) else 2


def _normal_channels(field: Field) -> int:
    return 1 if isinstance(field, Walk) and field.normal else 0


def _start(field: Field, uniform: Floats) -> Floats:
    if isinstance(field, Walk):
        return field.start_low + uniform * (field.start_high - field.start_low)
    return np.full_like(uniform, FUEL_FULL) if isinstance(field, Fuel) else uniform * LOAD_MAX


def _emitted(field: Field, states: Floats) -> Values:
    if field.decimals is None:
        return states.astype(np.int64).reshape(-1)
    scale = 10.0**field.decimals
    rounded = np.rint(states * scale)
    # -0.0 + 0.0 is 0.0; formats that write whole numbers would lose the sign, and checksums would differ.
    rounded += 0.0
    return (rounded / scale).reshape(-1)
