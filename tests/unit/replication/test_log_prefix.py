"""What the next record is to a reader that knows the last one, by leader epochs alone."""

from __future__ import annotations

from headrace.connectors.log.port import Record
from headrace.consumers.replication.log_prefix import Cursor, LogPrefix, Verdict


def record(offset: int, epoch: int) -> Record:
    """A record that a leader of some epoch appended."""
    return Record("t", offset, 0, None, b"", leader_epoch=epoch)


def test_a_record_of_an_older_leader_is_of_another_log() -> None:
    """A topic that was created again counts its leaders from 0, and no log has a newer leader before an older one."""
    read = LogPrefix(Cursor(5, 4, b"4", 3))
    assert Verdict.NEXT is read.judge(record(5, 3), b"5")
    assert Verdict.FOREIGN is read.judge(record(6, 2), b"6")
    assert (5, 3) == (read.cursor.offset, read.cursor.leader_epoch)
