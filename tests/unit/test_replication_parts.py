"""The small parts of replication: who is alive, how recovery goes, what may be trimmed, when members differ, what the journal keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connectors.log.port import Record
from consumers.replication.chain import next_chain, record_digest
from consumers.replication.journal import Journal, JournalBroken, JournalEntry
from consumers.replication.recovery import Costs, Need, Way, plan_recovery, trim_before
from consumers.replication.status import StatusBoard
from consumers.replication.verify import MemberEvidence, compare, exit_code
from schemas.records import Role, Status, decode_status, encode_status

STATUS = Status(
    node="n1",
    incarnation="i1",
    store="s",
    http="http://127.0.0.1:1",
    flight="",
    group="g",
    topic_id="t",
    role=Role.FOLLOWER,
    eligible=True,
    epoch=1,
    version=10,
    offset=12,
    position=13,
    durable_offset=12,
    sealed_version=5,
    sealed_offset=6,
    chain_version=0,
    chain=bytes(16),
    stored_version=-1,
    content=bytes(16),
    sealed_log_bytes=0,
    segment_bytes=0,
    log_lost=False,
    recovery_done=0,
    recovery_total=0,
    format=1,
    reason="",
    sent_boot_ns=7,
)


def test_a_status_comes_back_as_it_was() -> None:
    """Every field survives the status topic."""
    assert STATUS == decode_status(encode_status(STATUS))


def test_offline_is_three_seconds_of_the_brokers_time() -> None:
    """A node is offline when the newest status read is 3 s younger than its own newest; who never spoke is offline too."""
    board = StatusBoard()
    board.hear(1_000, STATUS)
    board.hear(3_999, replace(STATUS, node="n2"))
    assert [True, True, False] == [board.alive("g", node) for node in ("n1", "n2", "n3")]
    board.hear(4_000, replace(STATUS, node="n2"))
    assert [False, True] == [board.alive("g", node) for node in ("n1", "n2")]
    assert [3_000, 0, -1] == [board.silent_ms("g", node) for node in ("n1", "n2", "n3")]


def test_copies_count_only_live_members_of_the_same_topic() -> None:
    """A quorum is of members that live, hold the offset durably, and follow the topic that the record is in."""
    board = StatusBoard()
    board.hear(1_000, STATUS)
    board.hear(1_000, replace(STATUS, node="n2", durable_offset=11))
    board.hear(1_000, replace(STATUS, node="n3", topic_id="an older topic"))
    board.hear(1_000, replace(STATUS, node="n4"))
    members = ("n1", "n2", "n3")
    assert [2, 1, 0] == [board.durable_copies("g", members, "t", offset) for offset in (11, 12, 13)]
    board.hear(9_000, replace(STATUS, node="n2", durable_offset=20))
    assert board.durable_copies("g", members, "t", 11) == 1


def need(next_offset: int, log_begin: int, **others: Any) -> Need:
    """What n1 has, at version 3 after 1 KB of records."""
    return Need("n1", next_offset, log_begin, **{"version": 3, "log_bytes": 1_000, "whole": log_begin == 0, **others})


def test_recovery_follows_the_log_where_it_reaches() -> None:
    """Own journal and log first; files below the trim point, from the eligible member whose files reach furthest; else waiting."""
    near, far = replace(STATUS, node="n2", sealed_offset=30), replace(STATUS, node="n3", sealed_offset=40)
    assert plan_recovery(need(20, 20), []).way is Way.LOG
    assert plan_recovery(need(19, 20), [near, far]).source == "n3"
    assert plan_recovery(need(19, 20), [near, replace(far, eligible=False)]).source == "n2"
    stuck = plan_recovery(need(19, 50), [near, far, replace(STATUS, node="n1", sealed_offset=99)])
    assert (Way.WAIT, True) == (stuck.way, "offset 50" in stuck.reason)


def test_recovery_takes_files_where_they_are_cheaper() -> None:
    """A long log to read against few bytes of files: files; a short one, or files that reach no further than own data: the log."""
    costs = Costs(log_bytes_per_second=100.0, file_bytes_per_second=1_000.0, worth_s=10.0)
    far = replace(STATUS, node="n2", sealed_log_bytes=1_000 + 3_000, segment_bytes=10_000)
    assert plan_recovery(need(4, 0), [far], costs).way is Way.FILES
    assert plan_recovery(need(4, 0), [replace(far, sealed_log_bytes=1_000 + 1_900)], costs).way is Way.LOG
    assert plan_recovery(need(4, 0), [replace(far, segment_bytes=30_000)], costs).way is Way.LOG
    assert plan_recovery(need(4, 0, version=5), [far], costs).way is Way.LOG
    assert plan_recovery(need(4, 0), [replace(far, sealed_version=0)], costs).way is Way.LOG


def test_wrong_data_is_replaced_only_by_what_is_trusted() -> None:
    """Files of a member that was found right, else the whole log from its beginning, else an operator."""
    one, two = replace(STATUS, node="n2"), replace(STATUS, node="n3", sealed_offset=9)
    assert plan_recovery(need(20, 0, wrong=True), [one, two]).source == "n3"
    assert plan_recovery(need(20, 0, wrong=True, trusted=frozenset({"n2"})), [one, two]).source == "n2"
    assert plan_recovery(need(20, 0, wrong=True, trusted=frozenset()), [one, two]).way is Way.REBUILD
    assert plan_recovery(need(20, 0, wrong=True), []).way is Way.REBUILD
    assert plan_recovery(need(20, 5, wrong=True), []).way is Way.WAIT


def test_the_log_is_trimmed_only_below_what_all_live_members_have_sealed() -> None:
    """Neither a slow member, nor a missing majority, nor the replay window lets go of what is needed."""
    live = [replace(STATUS, node=f"n{number}", sealed_offset=30 + number) for number in (1, 2, 3)]
    members = ("n1", "n2", "n3")
    assert trim_before(live, members, 40, 1_000) == 32
    assert trim_before(live, members, 20, 1_000) == 21
    assert trim_before(live, members, 40, 25) == 25
    assert trim_before(live[:1], members, 40, 1_000) == 0
    assert trim_before([replace(live[0], sealed_offset=-1), *live[1:]], members, 40, 1_000) == 0


def test_the_chain_tells_order_and_content() -> None:
    """Equal records in equal order give equal chains, anything else does not."""
    one, two = record_digest(b"one"), record_digest(b"two")
    start = bytes(16)
    assert next_chain(next_chain(start, one), two) != next_chain(next_chain(start, two), one)
    assert next_chain(start, one) == next_chain(start, record_digest(b"one"))


def test_verify_names_every_difference_and_who_is_missing() -> None:
    """Chains and segments are compared with the first member; the exit code follows DESIGN 6."""
    equal = [MemberEvidence(node, "aa", {"s1": "d1"}) for node in ("n1", "n2")]
    assert exit_code([compare("g", 5, 3, equal, [])], 0) == 0
    missing = compare("g", 5, 3, equal, ["n3"])
    assert [2, 0] == [exit_code([missing], allowed) for allowed in (0, 1)]
    different = compare("g", 5, 3, [*equal, MemberEvidence("n3", "bb", {"s2": "d1"})], [])
    assert len(different.differences) == 3
    assert exit_code([different, missing], 1) == 1
    assert exit_code([compare("g", 0, 0, [], ["n1", "n2", "n3"])], 3) == 2


def entry(group: str, version: int, value: bytes) -> JournalEntry:
    """A journal entry as the runner makes it."""
    return JournalEntry.of(
        group, version, Record("topic", version * 2, 99, None, value, (("format", b"1"), ("x", b"")))
    )


def test_the_journal_gives_back_what_no_segment_holds(tmp_path: Path) -> None:
    """Entries survive a reopening by group and in order, small ones and large ones; forgotten ones do not come back."""
    journal = Journal(tmp_path, ("a", "b"))
    entries = {"a": [entry("a", version, b"x" * version * 3_000) for version in range(1, 6)], "b": [entry("b", 1, b"")]}
    journal.append(entries)
    journal.forget("a", 2)
    journal.close()
    again = Journal(tmp_path, ("b", "a", "c"))
    assert entries["a"][2:] == list(again.recovered("a", 2))
    assert entries["b"] == list(again.recovered("b", 0))
    assert [5, 1, 0] == [again.newest_version(group) for group in ("a", "b", "c")]
    again.forget("a", 5)
    again.forget("a", 5)
    again.close()


def test_a_gap_in_the_journal_is_an_error(tmp_path: Path) -> None:
    """Records that are not there are never passed over."""
    journal = Journal(tmp_path, ("a",))
    journal.append({"a": [entry("a", 1, b"1"), entry("a", 3, b"3")]})
    journal.close()
    again = Journal(tmp_path, ("a",))
    with pytest.raises(JournalBroken, match="from version 1 to 3"):
        list(again.recovered("a", 0))
    again.close()
