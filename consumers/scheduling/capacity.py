"""How many queries and drivers a node has at a time, and who is refused. Pure.

A driver has its place from the submission to its end, wherever it is: one that runs or is blocked may always come
back. So the ready queue cannot be full for a driver that returns. The drivers are held by name, not counted: what
gives its place back twice frees one place, and the rest cannot become negative.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.consumers.scheduling.scheduling_errors import QueryTooLarge, TooManyQueries


@dataclass(frozen=True, slots=True)
class CapacityLimits:
    """The most of each at a time; `drivers_per_query_max` is that of one query."""

    drivers_max: int = 1_000
    queries_max: int = 64
    queries_per_user_max: int = 64
    drivers_per_query_max: int = 64


class Capacity:
    """The places of one node. Not thread-safe."""

    def __init__(self, limits: CapacityLimits) -> None:
        self.limits = limits
        self._drivers: set[str] = set()
        self._users: dict[str, str] = {}

    @property
    def drivers(self) -> int:
        """Drivers that have not ended."""
        return len(self._drivers)

    @property
    def queries(self) -> int:
        """Queries that have not ended."""
        return len(self._users)

    def admit(self, query: str, user: str, drivers: Sequence[str], *, apart: bool = False) -> None:
        """Give a query and its drivers their places, all of them or none. Raises TooManyQueries, QueryTooLarge.

        `apart`: whoever submits it has a limit of its own, so that it is never refused here.
        """
        if apart:
            self._drivers.update(drivers)
            return
        limits = self.limits
        if len(drivers) > limits.drivers_per_query_max:
            raise QueryTooLarge(
                f"the query needs {len(drivers)} drivers, and one query may have {limits.drivers_per_query_max}",
                action="narrow the time range, or ask for fewer tables at once",
            )
        if len(self._users) >= limits.queries_max:
            raise TooManyQueries.because(f"{limits.queries_max} queries are running already")
        if self.of_user(user) >= limits.queries_per_user_max:
            whose = f"of user {user}" if user else "without a user"
            raise TooManyQueries.because(f"{limits.queries_per_user_max} queries {whose} are running already")
        if len(self._drivers) + len(drivers) > limits.drivers_max:
            raise TooManyQueries.because(f"{len(self._drivers)} drivers of {limits.drivers_max} are running already")
        self._users[query] = user
        self._drivers.update(drivers)

    def extend(self, has: int, drivers: Sequence[str]) -> bool:
        """Whether a query that has so many drivers gets places for more: all of them or none."""
        limits, more = self.limits, len(drivers)
        if has + more > limits.drivers_per_query_max or len(self._drivers) + more > limits.drivers_max:
            return False
        self._drivers.update(drivers)
        return True

    def of_user(self, user: str) -> int:
        """Queries of a user that have not ended."""
        return Counter(self._users.values())[user]

    def end_driver(self, driver: str) -> None:
        """A driver has ended."""
        self._drivers.discard(driver)

    def end_query(self, query: str) -> None:
        """A query has ended, and holds nothing any more."""
        self._users.pop(query, None)
