"""Which copy of another member's files is installed, and from whom a group copies: whole files, by single steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from headrace.connectors.log.port import LogUnavailable
from headrace.consumers.recovery.coordinator import CORRUPT_EXCLUSION_S, FAILED_EXCLUSION_S
from headrace.consumers.recovery.file_copy import Snapshot, SnapshotFile, SourceFailed, commit_empty, digest_of
from headrace.consumers.recovery.group_copies import check_copy
from headrace.consumers.replication.group_health import Event, State
from headrace.consumers.replication.group_state import GroupState, LogBase
from headrace.consumers.replication.hash_chain import next_chain, record_digest
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.consumers.store import Store
from headrace.schemas.messages import NO_CHAIN
from headrace.schemas.records import Status
from tests.unit.recovery.test_steps import TOPIC, Recovery, append_records
from tests.unit.statuses import STATUS, newer
from tests.unit.store.builders import write

SEALED = 3
FIRST_RECORD = LogBase()


class Member:
    """Member n2, whose files hold the first records of the log; `chain` is what it has read, `base` where it began."""

    def __init__(
        self, directory: Path, recovery: Recovery, chain: bytes, group: str = "g", base: LogBase = FIRST_RECORD
    ) -> None:
        self.directory = directory / "snapshot"
        self.during: Callable[[], None] = lambda: None
        state = GroupState(version=SEALED, offset=SEALED - 1, chain=chain, base=base)
        store = Store.open(directory / "n2", group)
        write(store, 1, [({"host": "a"}, 1, {"busy": 1})])
        store.freeze(SEALED, 1, state.to_bytes()).run()
        store.snapshot(self.directory)
        store.close()
        paths = sorted(path for path in self.directory.rglob("*") if path.is_file())
        files = tuple(
            SnapshotFile(str(path.relative_to(self.directory)), path.stat().st_size, digest_of(path)) for path in paths
        )
        topic_id = recovery.node.topic_id(TOPIC)
        self.snapshot = Snapshot("s", group, topic_id, SEALED, SEALED - 1, 1, chain.hex(), files)

    def open(self) -> Snapshot:
        """See Source."""
        self.during()
        return self.snapshot

    def read(self, _snapshot: Snapshot, path: str, offset: int) -> Iterator[bytes]:
        """See Source."""
        yield (self.directory / path).read_bytes()[offset:]

    def release(self, _snapshot: Snapshot) -> None:
        """See Source."""


def chain_of_log(records: int = SEALED) -> bytes:
    """The chain after the first records, those that the member has."""
    chain = NO_CHAIN
    for number in range(records):
        chain = next_chain(chain, record_digest(f"no message {number}".encode()))
    return chain


def source(node: str = "n2") -> Status:
    """The status of a member whose files hold the first records."""
    return replace(
        STATUS, node=node, eligible=True, http=f"http://{node}", sealed_version=SEALED, sealed_offset=SEALED - 1
    )


@pytest.fixture
def recovery(tmp_path: Path) -> Iterator[Recovery]:
    """A group whose data is wrong, and a log that has its beginning."""
    made = Recovery(tmp_path / "n1")
    append_records(made.log, 6)
    made.node.live_statuses = [source()]
    yield made
    made.gap_search.stop()
    made.node.close()


def copy(recovery: Recovery, member: Member) -> int:
    """How often a copy of the member was installed after one attempt for wrong data."""
    recovery.node.source = lambda _url, _group: member  # type: ignore[method-assign]
    recovery.wrong_data.mark(TOPIC, "a file has changed")
    recovery.coordinator.turn()
    assert 1 == len(recovery.pool.submitted)
    recovery.pool.run()
    return recovery.node.installed


def without_index(snapshot: Snapshot) -> Snapshot:
    """A listing that lacks the file from which the index finds all others."""
    return replace(snapshot, files=tuple(file for file in snapshot.files if not file.path.endswith("CURRENT")))


def test_a_copy_that_is_what_its_listing_says_is_installed(recovery: Recovery, tmp_path: Path) -> None:
    """Once: the next step plans nothing for the same group."""
    assert 1 == copy(recovery, Member(tmp_path, recovery, chain_of_log()))


@pytest.mark.parametrize(
    "changed",
    [
        lambda listing: replace(listing, group="another"),
        lambda listing: replace(listing, topic_id="another"),
        lambda listing: replace(listing, offset=SEALED),
        without_index,
    ],
)
def test_a_copy_that_is_not_what_its_listing_says_is_refused(
    recovery: Recovery, tmp_path: Path, changed: Callable[[Snapshot], Snapshot]
) -> None:
    """Of another group or topic, of another offset, or no store at all."""
    member = Member(tmp_path, recovery, chain_of_log())
    member.snapshot = changed(member.snapshot)
    assert 0 == copy(recovery, member)


def test_a_copy_of_another_group_is_refused(recovery: Recovery, tmp_path: Path) -> None:
    """Although it is whole, and all that it has read fits: it holds other rows."""
    assert 0 == copy(recovery, Member(tmp_path, recovery, chain_of_log(), "another"))


def test_a_copy_whose_index_names_other_segments_is_refused(recovery: Recovery, tmp_path: Path) -> None:
    """What the index does not name would be deleted at the next start, and its rows were missing."""
    member = Member(tmp_path, recovery, chain_of_log())
    (segment,) = (file for file in member.snapshot.files if file.path.endswith(".parquet"))
    other = segment.path.replace(".parquet", "-9.parquet")
    (member.directory / other).write_bytes((member.directory / segment.path).read_bytes())
    member.snapshot = replace(member.snapshot, files=(*member.snapshot.files, replace(segment, path=other)))
    assert 0 == copy(recovery, member)


def test_a_member_that_has_read_another_log_is_no_source_for_long(recovery: Recovery, tmp_path: Path) -> None:
    """Its chain is not that of the log: its scrubber first has to find why, so it is not tried again soon."""
    assert 0 == copy(recovery, Member(tmp_path, recovery, b"x" * 16))
    assert "is not that of the log" in recovery.health.reason
    recovery.clock.now_s += FAILED_EXCLUSION_S
    recovery.coordinator.turn()
    assert State.RECOVERING is recovery.health.state
    recovery.pool.run()
    assert 1 == recovery.node.installed, "the log has everything: the group is built again from it"
    recovery.node.live_statuses = [source()]
    assert not recovery.coordinator._sources(TOPIC, recovery.node.group)
    recovery.clock.now_s += CORRUPT_EXCLUSION_S
    assert recovery.coordinator._sources(TOPIC, recovery.node.group)


def test_a_member_that_an_accepted_gap_proves_right_is_a_source_at_once(recovery: Recovery, tmp_path: Path) -> None:
    """The schedule: a log is cut, and a copy is compared with it before its source notices the loss.

    The log continues behind that member then, and its files are all that is left of what was cut.
    """
    assert 0 == copy(recovery, Member(tmp_path, recovery, b"x" * 16))
    assert not recovery.coordinator._sources(TOPIC, recovery.node.group)
    gap = LogBase(recovery.node.topic_id(TOPIC), SEALED, SEALED, b"x" * 16)
    recovery.wrong_data.mark(TOPIC, "its log continues behind another record", gap=gap)
    assert recovery.coordinator._sources(TOPIC, recovery.node.group)


@pytest.mark.parametrize("agrees", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_without_the_whole_log_a_copy_is_compared_with_another_member(
    recovery: Recovery, tmp_path: Path, agrees: bool, whole: bool
) -> None:
    """Not with the one that it came from, which agrees with itself whatever it holds. A log that is there and cannot
    be read proves as little as one that is trimmed.
    """
    member = Member(tmp_path, recovery, chain_of_log())
    if whole:
        recovery.log.undeliverable.add((TOPIC, 0))
    else:
        recovery.log.trim(TOPIC, 1)
    recovery.node.live_statuses = [source("n2"), replace(source("n3"), sealed_offset=1)]
    recovery.node.chains = {("http://n2", SEALED): chain_of_log(), ("http://n3", SEALED): b"x" * 16}
    if agrees:
        recovery.node.chains["http://n3", SEALED] = chain_of_log()
    assert agrees is bool(copy(recovery, member))
    assert [("http://n3", SEALED)] == [asked for asked in recovery.node.asked if asked[1] == SEALED]


@pytest.mark.parametrize("agrees", [True, False])
def test_a_copy_whose_log_has_a_gap_is_compared_with_another_member(
    recovery: Recovery, tmp_path: Path, agrees: bool
) -> None:
    """This replica has not read the gap, and to it the log is whole: it would call each right copy corrupt."""
    read = b"y" * 16
    base = LogBase(recovery.node.topic_id(TOPIC), SEALED - 1, SEALED - 1, b"z" * 16)
    member = Member(tmp_path, recovery, read, base=base)
    recovery.node.live_statuses = [source("n2"), replace(source("n3"), sealed_offset=1)]
    recovery.node.chains = {("http://n3", SEALED): read if agrees else b"x" * 16}
    assert agrees is bool(copy(recovery, member))
    assert [("http://n3", SEALED)] == recovery.node.asked
    recovery.clock.now_s += FAILED_EXCLUSION_S
    assert "n2" in [each.node for each in recovery.coordinator._sources(TOPIC, recovery.node.group)]


@pytest.mark.parametrize("agrees", [True, False])
def test_a_log_with_a_record_that_nobody_can_read_decides_up_to_that_record(
    recovery: Recovery, tmp_path: Path, agrees: bool
) -> None:
    """The schedule: two members are wrong, and the third is behind, so nobody else knows the chain of the copy."""
    member = Member(tmp_path, recovery, chain_of_log())
    recovery.log.undeliverable.add((TOPIC, 1))
    recovery.node.chains = {("http://n2", 1): chain_of_log(1) if agrees else b"x" * 16}
    assert agrees is bool(copy(recovery, member))
    assert agrees or "at version 1 is not that of the log" in recovery.health.reason


def test_a_log_that_does_not_answer_is_waited_for(
    recovery: Recovery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has every record, so no other member is taken for the truth in the meantime."""

    def poll(_max_records: int, _timeout_s: float) -> NoReturn:
        raise LogUnavailable("the log does not answer", retriable=True)

    recovery.node.live_statuses = [source("n2"), replace(source("n3"), sealed_offset=1)]
    with monkeypatch.context() as patch:
        patch.setattr(recovery.log, "reader", lambda _starts: SimpleNamespace(poll=poll, close=lambda: None))
        assert 0 == copy(recovery, Member(tmp_path, recovery, b"x" * 16))
    assert [] == recovery.node.asked
    assert "does not answer" in recovery.health.reason


def test_a_node_that_stops_takes_no_copy_that_it_could_not_compare(recovery: Recovery, tmp_path: Path) -> None:
    """The log is read no further, and nobody is asked in its place."""
    member = Member(tmp_path, recovery, b"x" * 16)
    member.during = recovery.coordinator._task.stopping.set
    assert 0 == copy(recovery, member)
    assert [] == recovery.node.asked


@pytest.mark.parametrize(("begin", "installed"), [(SEALED, 1), (SEALED + 1, 0)])
def test_a_copy_that_the_log_no_longer_continues_is_not_installed(
    recovery: Recovery, tmp_path: Path, begin: int, installed: int
) -> None:
    """The log was trimmed while the copy ran: one record between both is missing for ever."""
    member = Member(tmp_path, recovery, chain_of_log())
    member.during = lambda: recovery.log.trim(TOPIC, begin)
    assert installed == copy(recovery, member)


@pytest.mark.parametrize("changed", [{"topic_id": "another"}, {"http": ""}])
def test_a_member_of_another_topic_or_without_an_address_is_no_source(
    recovery: Recovery, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str]
) -> None:
    """Its offsets mean nothing here, or nobody can ask it."""
    changes: dict[str, Any] = {"topic_id": recovery.node.topic_id(TOPIC), **changed}
    status = replace(source(), **changes)
    monkeypatch.setattr(recovery.node, "live", lambda _group: [status])
    recovery.log.trim(TOPIC, 1)
    recovery.health.report(Event.TRIM, "the log begins at offset 1, 0 is needed")
    recovery.coordinator.turn()
    assert ([], State.UNSOURCED) == (recovery.pool.submitted, recovery.health.state)


def test_no_more_copies_run_at_once_than_allowed(recovery: Recovery) -> None:
    """Those of other groups count."""
    others = [f"other {number}" for number in range(ReplicationLimits().recoveries_max)]
    recovery.coordinator._copying |= set(others)
    recovery.wrong_data.mark(TOPIC, "a file has changed")
    recovery.coordinator.turn()
    assert [] == recovery.pool.submitted
    recovery.coordinator._copying.discard(others[0])
    recovery.coordinator.turn()
    assert 1 == len(recovery.pool.submitted)


def test_a_committed_copy_is_installed_although_no_source_is_left(recovery: Recovery) -> None:
    """It was verified, and a crash would install it all the same."""
    recovery.node.live_statuses = []
    recovery.log.trim(TOPIC, 1)
    recovery.health.report(Event.TRIM, "the log begins at offset 1, 0 is needed")
    recovery.coordinator.turn()
    assert State.UNSOURCED is recovery.health.state
    commit_empty(recovery.node.directory, recovery.node.group.directory_name)
    recovery.coordinator.turn()
    recovery.pool.run()
    assert 1 == recovery.node.installed


def test_what_a_full_disk_refused_is_recorded_by_each_step(recovery: Recovery) -> None:
    """Of groups that are healthy by now as well."""
    repeated: list[bool] = []
    recovery.node.repeat_records = lambda: repeated.append(True)  # type: ignore[method-assign]
    recovery.wrong_data.turn()
    assert [True] == repeated


def test_a_copy_of_a_newer_build_is_no_damage(tmp_path: Path) -> None:
    """The member that has it is right, and this node is to be upgraded: moving a directory away would help nobody."""
    store = Store.open(tmp_path, "g")
    store.freeze(1, 1, newer(GroupState(version=1).to_bytes())).run()
    store.close()
    listing = Snapshot("1", "g", "t", 1, 0, 1, NO_CHAIN.hex(), ())
    with pytest.raises(SourceFailed, match="its files are of a newer build.*upgrade this node"):
        check_copy(tmp_path, listing, "g")
