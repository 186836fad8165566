"""The promise of the log, against a model, over random histories of updates, checkpoints, faults and crashes."""

from __future__ import annotations

import contextlib
import gc
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headrace.consumers.wal import (
    BytesSerde,
    CheckpointFailed,
    Delete,
    DurabilityUnknown,
    LogFailed,
    Put,
    UpdateFailed,
    WriteAheadLog,
)
from tests.unit.wal.disk import Crash, SimulatedDisk

DIRECTORY = Path("/log")
KEYS = [b"a", b"b", b"c", b"d"]
VALUES = st.one_of(st.binary(max_size=40), st.integers(4_090, 6_000).map(lambda size: bytes([size % 251]) * size))
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(KEYS), VALUES),
        st.tuples(st.just("delete"), st.sampled_from(KEYS), st.just(b"")),
    ),
    min_size=1,
    max_size=4,
)
UPDATE = st.tuples(st.just("update"), OPERATIONS, st.booleans(), st.one_of(st.none(), st.integers(0, 3)))
ACTION = st.one_of(UPDATE, UPDATE, UPDATE, UPDATE, UPDATE, st.just(("sync",)), st.just(("checkpoint",)))
FAULT = st.one_of(
    st.tuples(
        st.just("fail"),
        st.sampled_from(
            ["data", "data", "data", "write", "write", "sync", "truncate", "create", "rename", "directory"]
        ),
        st.integers(1, 5),
    ),
    st.tuples(st.just("fill"), st.integers(0, 3_000)),
    st.just(("short",)),
    st.tuples(st.just("stop"), st.integers(1, 25)),
    st.just(("none",)),
)
State = dict[bytes, bytes]


def values_of(records: dict[Any, Any]) -> State:
    """The model's form of recovered records."""
    assert all(key == record[0] for key, record in records.items())
    return {key: record[1] for key, record in records.items()}


class LogMachine(RuleBasedStateMachine):
    """`states[i]` is the state after i transactions that may survive; the first `required` of them must."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimulatedDisk()
        self.partitions = 3
        self.states: list[State] = [{}]
        self.required = 0
        self.in_doubt = False
        self.log = self.new_log()
        self.log.recover()

    def new_log(self) -> WriteAheadLog:
        return WriteAheadLog(
            DIRECTORY,
            BytesSerde(),
            self.partitions,
            sync_interval_ms=None,
            checkpoint_bytes=None,
            checkpoint_age_ms=None,
            preallocate_bytes=self.reserve,
            files=self.disk,
        )

    reserve = 512

    @initialize(seed=st.integers(0, 1 << 32), reserve=st.sampled_from([0, 512, 4_096]))
    def begin(self, seed: int, reserve: int) -> None:
        self.disk.random = random.Random(seed)
        self.reserve = reserve

    @rule(fault=FAULT, actions=st.lists(ACTION, min_size=1, max_size=8))
    def work(self, fault: tuple[Any, ...], actions: list[tuple[Any, ...]]) -> None:
        """Some calls, with a fault somewhere among them or none."""
        self.arm(fault)
        for action in actions:
            getattr(self, action[0])(*action[1:])
        self.disk.clear_faults()

    @rule(actions=st.lists(ACTION, min_size=1, max_size=8))
    def work_undisturbed(self, actions: list[tuple[Any, ...]]) -> None:
        """The same on a good disk."""
        self.work(("none",), actions)

    def arm(self, fault: tuple[Any, ...]) -> None:
        kind, *how = fault
        if kind == "fail":
            self.disk.fail(*how)
        elif kind == "fill":
            self.disk.capacity = sum(self.disk.sizes().values()) + how[0]
        elif kind == "short":
            self.disk.short_writes = True
        elif kind == "stop":
            self.disk.crash_in(how[0])

    def update(self, operations: list[tuple[str, bytes, bytes]], sync: bool, partition: int | None) -> None:
        after = dict(self.states[-1])
        records: list[Any] = []
        for kind, key, value in operations:
            if kind == "put":
                after[key] = value
                records.append(Put((key, value)))
            else:
                after.pop(key, None)
                records.append(Delete(key))
        if partition is not None:
            partition %= self.partitions
        try:
            self.log.update(records, sync=sync, partition=partition)
        except (UpdateFailed, LogFailed):
            return
        except DurabilityUnknown:
            self.states.append(after)
            self.in_doubt = True
        except Crash:
            self.states.append(after)
            self.recover()
        else:
            self.states.append(after)
            if sync:
                self.required = len(self.states) - 1

    def sync(self) -> None:
        try:
            self.log.sync()
        except LogFailed:
            assert self.in_doubt
        except DurabilityUnknown:
            self.in_doubt = True
        except Crash:
            self.recover()
        else:
            self.required = len(self.states) - 1

    def checkpoint(self) -> None:
        try:
            self.log.checkpoint()
        except CheckpointFailed:
            return
        except DurabilityUnknown:
            self.in_doubt = True
            return
        except Crash:
            self.recover()
            return
        if self.in_doubt:
            # The checkpoint removes transactions in doubt; a sync inside a failed one may have made more of them durable.
            self.keep_prefix(self.now())
            self.in_doubt = False
        self.required = len(self.states) - 1

    @rule(any_sectors=st.booleans(), partitions=st.integers(1, 4), kill=st.booleans())
    def crash(self, any_sectors: bool, partitions: int, kill: bool) -> None:
        self.recover(any_sectors, partitions, kill)

    @precondition(lambda self: not self.in_doubt)
    @rule(partitions=st.integers(1, 4))
    def close_and_open(self, partitions: int) -> None:
        self.disk.clear_faults()
        self.disk.crash_in(None)
        self.log.close()
        self.required = len(self.states) - 1
        self.recover(partitions=partitions, kill=True)

    def recover(self, any_sectors: bool = False, partitions: int | None = None, kill: bool = False) -> None:
        self.partitions = partitions or self.partitions
        self.disk = self.disk.kill() if kill else self.disk.crash(any_sectors=any_sectors)
        if self.disk.random.random() < 0.2:
            self.stop_during_recovery(any_sectors)
        self.log = self.new_log()
        recovered = values_of(self.log.recover())
        self.keep_prefix(recovered)
        self.required = len(self.states) - 1
        self.in_doubt = False
        self.check_second_recovery(recovered)

    def keep_prefix(self, state: State) -> None:
        """The history ends with this state, which must be one after a prefix that holds all that is required."""
        candidates = [index for index, known in enumerate(self.states) if index >= self.required and known == state]
        assert candidates, f"{state} is no state after a prefix that holds every synced transaction"
        del self.states[candidates[-1] + 1 :]

    def stop_during_recovery(self, any_sectors: bool) -> None:
        self.disk.crash_in(self.disk.random.randint(1, 12))
        with contextlib.suppress(Crash):
            self.new_log().recover()
        self.disk.crash_in(None)
        self.disk = self.disk.crash(any_sectors=any_sectors)

    def check_second_recovery(self, recovered: State) -> None:
        sizes = self.disk.sizes()
        last = self.log.last_transaction
        self.disk = self.disk.crash(any_sectors=True)
        self.log = self.new_log()
        assert recovered == values_of(self.log.recover())
        assert last == self.log.last_transaction
        # After a power cut an old journal, held only by large values, may lack the bytes of a failed sync at its end.
        again = self.disk.sizes()
        assert set(sizes) == set(again)
        assert all(again[name] <= size for name, size in sizes.items())
        assert self.log.report is not None
        assert () == self.log.report.dropped

    def now(self) -> State:
        found = {key: self.log.get(key) for key in KEYS}
        return {key: record[1] for key, record in found.items() if record is not None}

    @invariant()
    def state_in_memory_is_the_newest(self) -> None:
        if not self.in_doubt:
            assert self.states[-1] == self.now()

    def teardown(self) -> None:
        self.recover()


def run_machine(examples: int, steps: int, same_every_time: bool = True) -> None:
    """Runs the machine with garbage collected at the end: simulated descriptors are closed by the destructors of their owners."""
    run_state_machine_as_test(
        LogMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=same_every_time,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
    gc.collect()


@pytest.mark.slow(15)
def test_recovered_state_is_a_prefix_with_every_synced_transaction() -> None:
    """After any history the recovered state is that after a prefix of the transactions which holds all synced ones."""
    run_machine(100, 25)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_recovered_state_is_a_prefix_long() -> None:
    """The same over ten thousand and more longer histories."""
    run_machine(12_000, 40, same_every_time=False)
