"""Files of sync senders in a group's log: which row wins, and that every member comes to the same files."""

from __future__ import annotations

import random
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.consumers.replication.actions import ApplyLoad, Ignored
from headrace.consumers.replication.replica import Replica
from headrace.consumers.store import compaction, load_job
from headrace.consumers.store.slot_moves import SlotMoves
from headrace.consumers.store.synced import ranked
from headrace.schemas.messages import (
    Claim,
    Delete,
    Load,
    Message,
    ProducerPosition,
    deletes_batch,
    deletes_producer,
    encode_message,
)
from tests.memory_directory import memory
from tests.unit.replication.synced_groups import ANCHOR, LEADER, Key, Member, SyncedLog

COMMANDS = (
    "write",
    "write",
    "write",
    "delete",
    "seal",
    "merge",
    "load",
    "load",
    "load",
    "load",
    "repeat",
    "work",
    "crash",
)
SOAK_SEEDS = 1_000


def newest(rows: dict[Key, int]) -> dict[Key, int]:
    """The last row of each series."""
    times = {name: max(at for each, at in rows if each == name) for name, _ in rows}
    return {key: value for key, value in rows.items() if times[key[0]] == key[1]}


def run(commands: list[str], seed: int) -> None:
    """A schedule: what the log decides, on members that get files and run jobs at any time."""
    chance, directory = random.Random(seed), Path(tempfile.mkdtemp(prefix="headrace-synced-", dir=memory()))
    log = SyncedLog(directory / "depot", chance)
    # The first has every file at once and no job open, as the leader that plans merges.
    members = [Member(directory / str(number), log.depot) for number in range(3)]
    try:
        for command in commands:
            if command == "crash":
                chance.choice(members[1:]).crash()
            elif command == "work":
                chance.choice(members[1:]).pool.run(chance.randrange(4))
            elif command == "merge":
                members[0].settle()
                log.merge(members[0])
            else:
                getattr(log, command)()
            for load in log.sent[-1:] if command == "load" else ():
                members[0].stage(load.content_digest.hex())
                if chance.random() < 0.5:
                    members[1].stage(load.content_digest.hex())
            for member in members:
                if member is members[0] or chance.random() < 0.7:
                    member.read(log.values)
            members[0].settle()
            if chance.random() < 0.1:
                chance.choice(members[1:]).attach()
        check(log, members, directory)
    finally:
        for member in members:
            member.group.store.close()
        shutil.rmtree(directory)


def check(log: SyncedLog, members: list[Member], directory: Path) -> None:
    """The rows are those of the model, on each member and on those that begin anew."""
    for member in members:
        member.read(log.values)
        member.settle()
    first = members[0].group.store
    first.snapshot(directory / "copied")
    members.append(Member(directory / "copied", log.depot))
    members.append(Member(directory / "fresh", log.depot))
    members[-1].read(log.values)
    rows = members[0].rows()
    log.check(rows)
    for number, member in enumerate(members):
        member.read(log.values)
        member.settle()
        assert first.digests() == member.group.store.digests(), number
        assert rows == member.rows(), number
        last = member.last()
        assert last is None or newest(rows) == last, number
    names = sorted(first.digests())
    for member in members:
        assert names == [entry.name for entry in member.group.store.segments()]


@pytest.mark.slow(20)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(COMMANDS), min_size=4, max_size=45), st.integers(0, 1 << 30))
def test_the_newest_file_of_a_sender_wins_in_any_schedule(commands: list[str], seed: int) -> None:
    """Whatever is late, merged, repeated or lost in a crash; rows of the centre win by the order of its log."""
    run(commands, seed)


def schedule(seed: int) -> list[str]:
    """Commands of a seed."""
    chance = random.Random(seed)
    return [chance.choice(COMMANDS) for _ in range(chance.randint(10, 40))]


def seals_never_first(patch: pytest.MonkeyPatch) -> None:
    """A file is loaded between unsealed rows."""
    patch.setattr(Replica, "_must_seal", lambda *_: False)


def late_files_rank_by_the_log(patch: pytest.MonkeyPatch) -> None:
    """A late file gets the rank of its load."""
    patch.setattr(load_job, "ranked", lambda entry, era, version, _: ranked(entry, era, version, ()))


def unsettled_files_are_merged(patch: pytest.MonkeyPatch) -> None:
    """A merge takes the place of a file that is still to come."""
    patch.setattr(compaction, "may_join", lambda *_: True)
    patch.setattr(compaction, "is_settled", lambda *_: True)


def earlier_deletes_concern_files(patch: pytest.MonkeyPatch) -> None:
    """A delete that came before a late file hides its rows, by rank."""
    patch.setattr(SlotMoves, "load", _load_uncleaned(SlotMoves.load))


def _load_uncleaned(load: Any) -> Any:
    def uncleaned(*given: Any) -> Any:
        job = load(*given)
        job._entry = replace(job._entry, cleaned_version=0)
        return job

    return uncleaned


BROKEN = {
    seals_never_first: 3,
    late_files_rank_by_the_log: 17,
    unsettled_files_are_merged: 20,
    earlier_deletes_concern_files: 26,
}
"""Each rule with the first schedule that finds it."""


@pytest.mark.slow(5)
@pytest.mark.parametrize("broken", BROKEN, ids=lambda each: each.__name__)
def test_a_broken_rule_is_found(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rule is needed: without it, a schedule goes wrong that is right with it."""
    run(schedule(BROKEN[broken]), BROKEN[broken])
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        run(schedule(BROKEN[broken]), BROKEN[broken])


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_the_newest_file_of_a_sender_wins_in_many_schedules() -> None:
    """The soak test of the same."""
    for seed in range(SOAK_SEEDS):
        run(schedule(seed), seed)


def deletes_of(sender: str, group: str, number: int, place: int = 0) -> Message:
    """A delete of a sender, as its receivers append it."""
    position = ProducerPosition(deletes_producer(sender, group), deletes_batch(number, 1, place), 0)
    return Message(position, Delete("db", "t", {"name": ("a",)}))


def loads_of(messages: list[Message]) -> tuple[list[int], dict[Ignored, int]]:
    """(the numbers of the files that counted, what was ignored) of a log."""
    replica, counted = Replica(("n1",)), []
    claim = Message(ProducerPosition("n1", 1, 0), Claim(LEADER, ANCHOR, 1_000, 1 << 20))
    for offset, message in enumerate([claim, *messages]):
        actions = replica.apply(offset, encode_message(message), ())
        counted += [each.load.number for each in actions if isinstance(each, ApplyLoad)]
    return counted, dict(replica.ignored)


def load_of(number: int, sender: str = "s1", group: str = "e1/1") -> Message:
    """The load of a file that was announced under a number."""
    body = Load(
        leadership=LEADER,
        origin=sender,
        held_since=0,
        database="db",
        table="t",
        slice_number=0,
        bucket=0,
        era=1,
        first_version=number,
        last_version=number,
        generation=0,
        content_digest=number.to_bytes(16, "little"),
        rows=1,
        min_time_ns=1,
        max_time_ns=1,
        size_bytes=1,
        schema_version=1,
        sender=sender,
        order=f"{number:015}",
        group=group,
        number=number,
    )
    return Message(ProducerPosition("n1", 2, number), body)


def test_deletes_of_a_sender_are_a_fence_in_the_log() -> None:
    """A file announced before them is void behind them, whoever asks for it; others, and later ones, are loaded."""
    fence = [deletes_of("s1", "e1/1", 7), deletes_of("s1", "e1/1", 7, 1)]
    assert ([6, 5, 8], {}) == loads_of([load_of(6), load_of(5), *fence, load_of(8)])
    assert ([8], {Ignored.VOID: 1}) == loads_of([*fence, load_of(6), load_of(8)])
    assert ([6, 6], {}) == loads_of([*fence, load_of(6, "s2"), load_of(6, group="e2/1")])
    # It was loaded in time: asked for again it is a repeat.
    assert ([6], {Ignored.REPEATED: 1}) == loads_of([load_of(6), *fence, load_of(6)])
    # A receiver that is behind cannot lower the fence.
    assert ([], {Ignored.SUPERSEDED: 1, Ignored.VOID: 1}) == loads_of([*fence, deletes_of("s1", "e1/1", 3), load_of(6)])
