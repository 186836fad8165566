"""What the next record is to a reader that knows the last one, by leader epochs alone."""

from __future__ import annotations

from headrace.connectors.log.port import Record
from headrace.consumers.replication.group_state import GapRecord, GroupState, LogBase
from headrace.consumers.replication.log_prefix import Continuation, Cursor, LogPrefix
from headrace.schemas.messages import NO_CHAIN


def record(offset: int, epoch: int) -> Record:
    """A record that a leader of some epoch appended."""
    return Record("t", offset, 0, None, b"", leader_epoch=epoch)


def test_a_record_of_an_older_leader_is_of_another_log() -> None:
    """A topic that was created again counts its leaders from 0, and no log has a newer leader before an older one."""
    read = LogPrefix(Cursor(5, 4, b"4", 3))
    assert Continuation.NEXT is read.judge(record(5, 3), b"5")
    assert Continuation.FOREIGN is read.judge(record(6, 2), b"6")
    assert (5, 3) == (read.cursor.offset, read.cursor.leader_epoch)


def expecting(offset: int) -> LogPrefix:
    """A reader behind an anchor, whose log had the gap at offset 9, of leader epoch 2, when it was accepted."""
    return LogPrefix(Cursor(5, offset, NO_CHAIN, gap=GapRecord(9, b"gap", 2)))


def test_a_log_that_was_cut_before_an_accepted_gap_is_another_log() -> None:
    """What was appended before the gap has no newer epoch, and at its offset there is nothing else."""
    for other, digest in ((record(8, 3), b"8"), (record(9, 2), b"9"), (record(10, 2), b"10")):
        read = expecting(7)
        assert Continuation.FOREIGN is read.judge(other, digest)
        assert (5, 7) == (read.cursor.version, read.cursor.offset)


def test_a_gap_is_expected_until_it_was_read() -> None:
    """Behind its record only the last record that was read counts, as in any log."""
    read = expecting(6)
    assert 9 == read.cursor.needs
    assert [Continuation.NEXT] * 3 == [
        read.judge(record(7, 2), b"7"),
        read.judge(record(8, -1), b"8"),
        read.judge(record(9, 2), b"gap"),
    ]
    assert (9, None) == (read.cursor.needs, read.cursor.gap)
    state = GroupState(version=6, offset=8, base=LogBase("t", 7, 5, record=GapRecord(9, b"gap", 2)))
    assert 9 == Cursor.of(state).needs
    state.offset = 9
    assert Cursor.of(state).gap is None
