"""What a sender counts, and what people call it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.connectors.log.port import Record
from headrace.connectors.log.topics import Topics
from headrace.consumers.sync.centre_link import CentreLink
from headrace.consumers.sync.file_states import FileEvent, FileRecord, FileState
from headrace.consumers.sync.sender_state import SenderState
from headrace.consumers.sync.state_directory import StateDirectory
from headrace.consumers.sync.verdicts import SenderCloned, apply_deletes_verdict, apply_verdict, verdicts_for
from headrace.schemas.sync_records import SyncVerdict, Verdict, encode_verdict, verdict_key

SIZE_BYTES = 100


def decided(state: SenderState, file: str, event: FileEvent) -> None:
    """A file is listed, sent and decided."""
    record = FileRecord(file, "g", 1, SIZE_BYTES, "", number=state.new_number())
    state.put_file(record)
    state.step(state.step(record, FileEvent.BEGIN), event)


def counted(state: SenderState) -> tuple[int, int, int]:
    """Accepted, rejected, and bytes of accepted files."""
    return state.counters.accepted, state.counters.rejected, state.counters.bytes_accepted


def test_a_file_that_is_sent_again_counts_once() -> None:
    """It is not accepted, or rejected, until it is decided again."""
    state = SenderState({})
    for file in ("a", "b"):
        decided(state, file, FileEvent.ACCEPT)
    decided(state, "c", FileEvent.REJECT)
    assert (2, 1, 2 * SIZE_BYTES) == counted(state)
    assert ["x"] == state.ask_again(["a", "c", "x"])
    assert (1, 0, SIZE_BYTES) == counted(state)
    assert FileState.WAITING is state.files["a"].state
    for file in ("a", "c"):
        decided(state, file, FileEvent.ACCEPT)
    assert (3, 0, 3 * SIZE_BYTES) == counted(state)
    decided(state, "d", FileEvent.REJECT)
    # Among a thousand rejected ones the oldest are forgotten.
    for file in ("b", "d"):
        state.drop_file(file)
    assert (3, 1, 3 * SIZE_BYTES) == counted(state)
    # Everything, also what is forgotten: that is listed as new.
    assert [] == state.ask_again(None)
    assert (0, 0, 0) == counted(state)
    again = SenderState({key: value for key, value in state.changes().records.items() if value is not None})
    assert (0, 0, 0) == counted(again)


def test_rejected_deletes_stay_known() -> None:
    """Also behind others that are accepted: the centre still lacks them. Everything sent again makes a new start."""
    state = SenderState({})
    for number, verdict in ((1, Verdict.REJECTED), (2, Verdict.ACCEPTED)):
        sent = replace(state.group("g"), deletes_number=number, deletes_sent=7 * number, deletes_body="d")
        state.put_group(sent)
        answer = SyncVerdict("s", number, "g/1", b"", verdict, message="why")
        assert apply_deletes_verdict(state, answer)
        assert ["group g: deletes up to version 7 were rejected: why"] == state.rejections()
    decided(state, "c", FileEvent.REJECT)
    assert "c: " == state.rejections()[0]
    state.ask_again(None)
    assert [] == state.rejections()


def test_the_state_of_an_earlier_build_is_read() -> None:
    """It noted with a group that a lower progress was due, which members show themselves."""
    known = {"group": "g", "progress": 7, "deletes_accepted": 5, "lower": True}
    state = SenderState({b"g/g": json.dumps(known).encode()})
    assert (7, 5) == (state.group("g").progress, state.group("g").deletes_accepted)


def test_a_sender_keeps_its_name(tmp_path: Path) -> None:
    """Until a start gives it another one: a start without a name does not take it away."""
    for given, kept in (("", ""), ("north", "north"), ("", "north"), ("south", "south"), ("", "south")):
        state = StateDirectory.open(tmp_path / "d", "c", {})
        try:
            assert kept == state.claim("store", given).name
        finally:
            state.close()


def test_a_sender_keeps_its_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions were added to the topics between two starts: what it has begun is open in the one that it had."""
    chosen = list[int]()
    for partitions in (8, 8, 1_000):
        found = SimpleNamespace(topics={"c.sync.manifest": SimpleNamespace(partitions=range(partitions))})
        producer = SimpleNamespace(list_topics=lambda *_, found=found, **__: found)
        monkeypatch.setattr(CentreLink, "_new_producer", lambda _, producer=producer: producer)
        state = StateDirectory.open(tmp_path / "d", "c", {})
        try:
            log: Any = SimpleNamespace(bootstrap="none:1")
            chosen.append(CentreLink(log, Topics("c"), state, 0, {})._partition)
            assert ("store", chosen[0]) == (state.claim("store", "").store, state.identity.partition)
        finally:
            state.close()
    assert 1 == len(set(chosen))
    assert chosen[0] < 8


def test_a_sender_takes_no_verdict_that_no_receiver_sends_it() -> None:
    """Whatever key it has: a number that was never given here would stop this sender as one of two copies."""
    own, other = (SyncVerdict(sender, 9, "g/1/f", b"d", Verdict.ACCEPTED) for sender in ("u", "v"))
    values = [(verdict_key("u", "g/1/f"), encode_verdict(each)) for each in (other, own)]
    values += [(b"u/\xff", b"garbage"), (b"u/x", b""), (b"", encode_verdict(own)), (b"ux/f", encode_verdict(own))]
    values += [(verdict_key("u", "g/1/f"), encode_verdict(replace(own, number=2**63 - 1)))]
    records = [Record("t", offset, 0, key or None, value) for offset, (key, value) in enumerate(values)]
    assert [own] == verdicts_for("u", records)


@pytest.mark.parametrize("answer", [Verdict.ACCEPTED, Verdict.RESEND, Verdict.REJECTED])
def test_a_copy_finds_out_that_another_one_sends(answer: Verdict) -> None:
    """Two copies of a disk begin with the same numbers, and their files have names of their own.

    Unnoticed, the rows of two machines would become those of one.
    """
    state = SenderState({})
    number = state.new_number()
    state.put_file(FileRecord("g/1/f", "g", 1, SIZE_BYTES, b"d".hex(), FileState.SENDING, number=number))
    for file, digest in (("g/1/other", b"d"), ("g/1/f", b"e"), ("g/1", b"")):
        with pytest.raises(SenderCloned, match="another content for manifest 1"):
            apply_verdict(state, SyncVerdict("u", number, file, digest, answer), 5)
    assert apply_verdict(state, SyncVerdict("u", number, "g/1/f", b"d", Verdict.ACCEPTED), 5)


def test_a_copy_that_was_restored_sends_no_deletes_again() -> None:
    """Behind files that came since, they would hide rows of these. Its numbers are within those that were reserved."""
    state = SenderState({})
    number = state.new_number()
    state.put_group(replace(state.group("g"), deletes_number=number, deletes_sent=7, deletes_body="d"), sync=True)
    assert apply_deletes_verdict(state, SyncVerdict("u", number, "g/1", b"", Verdict.ACCEPTED))
    # Its own ones once more, and a file of which a power cut has taken everything back.
    assert not apply_verdict(state, SyncVerdict("u", number, "g/1", b"", Verdict.ACCEPTED), 5)
    assert apply_verdict(state, SyncVerdict("u", number + 1, "g/1/f", b"d", Verdict.ACCEPTED), 5)
    with pytest.raises(SenderCloned, match="deletes of g/1"):
        apply_verdict(state, SyncVerdict("u", number + 2, "g/1", b"", Verdict.ACCEPTED), 5)
