"""Senders in a simulation of sync: the Sender that ships, over models of its store, its disk and its producer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.connectors.http import NodeUnreachable
from headrace.consumers.sync.send_settings import SendSettings
from headrace.consumers.sync.sender import Sender, SenderName
from headrace.consumers.sync.sender_ports import Confirmation, StateUnwritable
from headrace.consumers.sync.sender_state import SenderState
from headrace.schemas.sync_records import SyncFile, SyncVerdict, decode_manifest, decode_verdict
from tests.unit.sync.edge_model import STORE, Key, ModelEdge
from tests.unit.sync.state_model import ModelLog

if TYPE_CHECKING:
    from tests.sim.sync_simulation import SyncSimulation

SETTINGS = SendSettings(files_max=3, window_bytes=2_000, tries_max=4)
LOST = 0.02
KILL = 0.03


class Killed(BaseException):
    """The sender was killed."""


class SimCentre:
    """See Centre: a producer with a queue, and a reader of verdicts."""

    def __init__(self, world: SyncSimulation, sender: str, partition: int) -> None:
        self._world, self._sender, self._partition = world, sender, partition
        self._queue: list[tuple[int, int, str, bytes]] = []
        self._bodies: dict[int, str] = {}
        self.offset = 0

    def check(self) -> None:
        """See Centre."""

    def send_manifest(self, number: int, value: bytes) -> None:
        """See Centre. A number has one body for ever."""
        body = decode_manifest(value).body
        text = f"{body.file} {body.deletes}" if isinstance(body, SyncFile) else repr(body)
        assert self._bodies.setdefault(number, text) == text, f"number {number} was given twice"
        self._queue.append((number, -1, self._world.topics.sync_manifest, value))

    def send_chunk(self, number: int, chunk: int, value: bytes) -> None:
        """See Centre."""
        self._queue.append((number, chunk, self._world.topics.sync_chunk, value))

    def events(self, timeout_s: float) -> tuple[list[Confirmation], list[SyncVerdict], int]:
        """See Centre."""
        del timeout_s
        random, confirmed = self._world.random, []
        for _ in range(random.randrange(5)):
            if not self._queue:
                break
            number, chunk, topic, value = self._queue.pop(0)
            lost = self._world.faults and random.random() < LOST
            if not lost or random.random() < 0.5:
                self._world.take(topic, self._partition, value)
            confirmed.append(Confirmation(number, chunk, lost=lost))
        verdicts: list[SyncVerdict] = []
        end = self._world.verdict_end()
        for _ in range(random.randrange(5)):
            if self.offset >= end:
                break
            verdict = decode_verdict(self._world.verdict_at(self.offset))
            self.offset += 1
            if verdict.sender == self._sender:
                verdicts.append(verdict)
        return confirmed, verdicts, self.offset

    def sender_dies(self) -> None:
        """Some of what its producer had reaches the log, the rest never does."""
        for _, _, topic, value in self._queue[: self._world.random.randrange(len(self._queue) + 1)]:
            self._world.take(topic, self._partition, value)
        self._queue = []


class SimSender:
    """One edge with its sender, whose calls are steps."""

    def __init__(self, world: SyncSimulation, number: int, series: tuple[str, ...]) -> None:
        self.world = world
        self.name = f"00000000-0000-0000-0000-{number:012}"
        self.edge = ModelEdge(world.random, series=series, delete_share=0.3)
        self.refused_keys: set[Key] = set()
        self.kills = 0
        self._log = ModelLog(world.random)
        self._partition = number % len(world.kafka.numbers)
        self._centre = SimCentre(world, self.name, self._partition)
        self._next: Callable[[], Any] = self._begin_round
        self._read_to = 0
        self.sender = self._start()

    @property
    def done(self) -> bool:
        """Whether everything is decided, and no round runs."""
        return self.edge.progress == self.edge.version and not self.edge.unsealed

    def note_rejected(self, file: str) -> None:
        """The rows of a file may be missing at the centre from now on."""
        for each in self.edge.files:
            if each.name == file:
                self.refused_keys |= {(row.series, row.time) for row in each.rows}

    def calm(self) -> None:
        """No more faults."""
        self.edge.faults = self._log.faults = False

    def step(self) -> None:
        """One call of the sender, or its end and another start."""
        try:
            self._next()
        except (NodeUnreachable, StateUnwritable):
            return
        except Killed:
            self._restart(power_cut=self.world.random.random() < 0.4)

    def _restart(self, *, power_cut: bool) -> None:
        self.kills += 1
        self._centre.sender_dies()
        if power_cut:
            self._log.recovered(power_cut=True)
        self._next = self._begin_round
        self.sender = self._start()

    def _start(self) -> Sender:
        state = SenderState(self._log.recovered(power_cut=False))
        self._centre.offset = state.counters.verdict_offset
        sender = Sender(
            SenderName(self.name, STORE, ""),
            state,
            self._log,
            self.edge,
            self._centre,
            SETTINGS,
            clock=self.world.clock.monotonic_s,
            on_step=self._on_step,
        )
        self._read_to = self.world.verdict_end()
        self._next = self._open
        return sender

    def _open(self) -> None:
        """As SendLoop: a session, then the verdicts that were there at the start."""
        self.sender.start()
        self._next = self._read

    def _read(self) -> None:
        if self._centre.offset >= self._read_to:
            self._next = self._begin_round
        else:
            self.sender.read_verdicts(0.0)

    def _begin_round(self) -> None:
        self.sender.begin_round()
        self._next = self._turn

    def _turn(self) -> None:
        if self.sender.turn():
            self._next = self._end_round

    def _end_round(self) -> None:
        self.sender.end_round()
        self._next = self._begin_round

    def _on_step(self, name: str) -> None:
        del name
        if self.world.faults and self.world.random.random() < KILL:
            raise Killed
