"""The log in memory as one node of the metadata group sees it: cut off, stopped inside a call, and appends with false reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.connectors.log.memory import MemoryLog, MemoryReader
from headrace.connectors.log.port import (
    AppendFailed,
    Headers,
    LogUnavailable,
    OnDelivery,
    Record,
    TopicState,
)
from tests.sim.world import World

FAIR = 0.8
"""The share of appends that are delivered at once and reported, while there are faults."""
DELAY_MS_MAX = 9_000


class MemberLog:
    """A `Log` of one process, as far as the metadata group uses it. `on_step` is called before every call."""

    def __init__(self, world: World, log: MemoryLog, node: str) -> None:
        self.world = world
        self.log = log
        self.node = node
        self.faulty = True
        self.on_step: Callable[[str], None] = lambda _name: None
        self.on_append: Callable[[bytes], None] = lambda _value: None

    def step(self, name: str) -> None:
        """The process may be stopped or killed here."""
        self.on_step(name)

    @property
    def cut(self) -> bool:
        """Whether this node reaches the log."""
        return self.node in self.world.reads_cut

    def describe(self, topic: str) -> TopicState:
        """See Log."""
        self.step("describe")
        self.check()
        return self.log.describe(topic)

    def check(self) -> None:
        """Raises LogUnavailable for a node that is cut off."""
        if self.cut:
            raise LogUnavailable("the log does not answer", retriable=True)

    def reader(self, starts: Mapping[str, int], *, name: str = "", follow: bool = False) -> MemberReader:
        """See Log."""
        del name, follow
        return MemberReader(self, dict(starts))

    def appender(self, *, repeats: bool = False) -> MemberAppender:
        """See Log."""
        del repeats
        return MemberAppender(self)


class MemberReader(MemoryReader):
    """See Reader; never waits."""

    def __init__(self, log: MemberLog, positions: dict[str, int]) -> None:
        super().__init__(log.log, positions)
        self._member = log

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """See Reader."""
        del timeout_s
        self._member.step("poll")
        self._member.check()
        return super().poll(max_records, 0)


class MemberAppender:
    """See Appender. A record may arrive without a report, later, twice or never; a report may come without it."""

    def __init__(self, log: MemberLog) -> None:
        self._log = log

    def append(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """See Appender."""
        self._log.on_append(value)
        self._log.step("append")
        log, chance = self._log, self._log.world.random

        def arrive() -> int:
            return log.log.store(topic, value, key, headers)

        def report(offset: int | None, error: AppendFailed | None = None) -> None:
            if on_delivery is not None:
                on_delivery(offset, error)

        if not log.faulty or (not log.cut and chance.random() < FAIR):
            report(arrive())
            return
        fate = chance.randrange(6)
        if fate == 0:
            report(None, AppendFailed("the log refused the record"))
        elif fate == 1:
            report(0)
        elif fate <= 4:
            log.world.after(chance.uniform(1, DELAY_MS_MAX), arrive)
            if fate == 4:
                log.world.after(chance.uniform(1, DELAY_MS_MAX), arrive)
        elif not log.cut:
            arrive()

    def flush(self, timeout_s: float) -> int:
        """See Appender."""
        del timeout_s
        self._log.step("flush")
        return 0

    def close(self, flush_s: float = 0.0) -> None:
        """See Appender."""
        del flush_s
