"""What a verdict of the centre changes at its sender. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from headrace.connectors.log.port import Record
from headrace.consumers.sync.file_states import FileEvent, FileRecord
from headrace.consumers.sync.sender_state import DELETES_REJECTED, GroupRecord, SenderState
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import FrameInvalid
from headrace.schemas.group_names import group_identity
from headrace.schemas.messages import MANIFEST_NUMBER_MAX
from headrace.schemas.sync_records import SyncVerdict, Verdict, decode_verdict, verdict_key

UNKNOWN_VERSION = 1 << 62
CLONED_KIND = "SenderCloned"


class SenderCloned(HeadraceError):
    """Another store, or another copy of this state directory, sends under the UUID of this sender."""

    @classmethod
    def of(cls, sender: str, why: str) -> SenderCloned:
        """The error for a sender."""
        return cls(
            f"sender {sender} is in use elsewhere: {why}",
            action="headrace sync forget at this store, then give it a state directory of its own (--data-dir), and "
            "hand its devices over at the centre with headrace sync owners move; see docs/operating/sync.md",
        )


def verdicts_for(sender: str, records: Sequence[Record]) -> list[SyncVerdict]:
    """The verdicts for a sender among the records of their topic."""
    found, prefix = [], verdict_key(sender, "")
    for record in records:
        # Those of other senders are not decoded.
        if record.key is not None and record.key.startswith(prefix) and record.value:
            with suppress(FrameInvalid):
                verdict = decode_verdict(record.value)
                # Anything may have that key: the verdict of another sender would stop this one as a clone. So would a
                # number that no manifest has.
                if verdict.sender == sender and verdict.number <= MANIFEST_NUMBER_MAX:
                    found.append(verdict)
    return found


def check_verdict(state: SenderState, verdict: SyncVerdict) -> None:
    """Raises SenderCloned for an answer to what this state directory has never sent."""
    if verdict.kind == CLONED_KIND:
        raise SenderCloned.of(verdict.sender, verdict.message)
    # Two copies of a disk have one UUID and one store, and only their numbers differ.
    if not state.was_given(verdict.number):
        raise SenderCloned.of(
            verdict.sender,
            f"the centre has answered manifest {verdict.number}, which was never sent from here: this directory is a "
            "copy, or was restored from one",
        )
    record, deletes = state.of_number(verdict.number), _deletes_of(state, verdict)
    # Within what is reserved as well. A power cut takes back that a file was sent, but not that deletes were, and no
    # number is given twice behind it.
    if record is None and (verdict.content_digest or verdict.number <= deletes.deletes_number):
        return
    if record is None or (record.file, record.digest) != (verdict.file, verdict.content_digest.hex()):
        what = "deletes of" if not verdict.content_digest else "file"
        raise SenderCloned.of(
            verdict.sender, f"the centre has another content for manifest {verdict.number}, {what} {verdict.file}"
        )


def apply_deletes_verdict(state: SenderState, verdict: SyncVerdict) -> bool:
    """Whether a verdict is about the newest deletes of a group, which then are decided, or to be sent anew."""
    known = _deletes_of(state, verdict)
    if not known.deletes_body or known.deletes_number != verdict.number:
        return False
    if verdict.state in (Verdict.RETRY, Verdict.RESEND):
        state.put_group(replace(known, deletes_body="", error=verdict.message), sync=True)
        return True
    rejected = verdict.state is Verdict.REJECTED
    # One that was rejected stays known: those behind it do not cure it.
    why = f"{DELETES_REJECTED} {known.deletes_sent} were rejected: {verdict.message}" if rejected else known.rejection
    # Durable before any file: sent a second time behind one, they would hide its rows at the centre.
    state.put_group(replace(known, deletes_accepted=known.deletes_sent, deletes_body="", error=why), sync=True)
    return True


def _deletes_of(state: SenderState, verdict: SyncVerdict) -> GroupRecord:
    """The group whose deletes a verdict is about; one that has sent none where it is about a file."""
    known = (each for each in state.groups.values() if group_identity(each.group) == verdict.file)
    return next(known, GroupRecord(verdict.file))


def apply_verdict(state: SenderState, verdict: SyncVerdict, tries_max: int) -> FileRecord | None:
    """The record of a file behind its verdict; None where it changes nothing. Raises SenderCloned."""
    check_verdict(state, verdict)
    if apply_deletes_verdict(state, verdict):
        return None
    record = state.files.get(verdict.file)
    if record is None and verdict.state is Verdict.ACCEPTED and verdict.content_digest:
        # A power cut has taken back that it was sent. The next listing completes the record.
        unknown = FileRecord(verdict.file, "", UNKNOWN_VERSION, 0, verdict.content_digest.hex())
        return _changed(state, unknown, FileEvent.ACCEPT)
    if record is None or record.digest != verdict.content_digest.hex():
        return None
    if verdict.state is Verdict.ACCEPTED:
        # Whichever attempt it was: the content is the same.
        return _changed(state, record, FileEvent.ACCEPT, tries=0, error="")
    if verdict.number != record.number:
        return None
    why = f"{verdict.kind}: {verdict.message}" if verdict.kind else verdict.message
    if verdict.state is Verdict.REJECTED:
        return _changed(state, record, FileEvent.REJECT, error=why)
    if verdict.state is Verdict.RESEND and verdict.chunk >= record.chunks > 0:
        # Nothing is missing there: what it waits for is named, and others need not wait for this file.
        state.held.add(record.number)
        state.put_file(replace(record, error=why))
        return None
    state.held.discard(record.number)
    if verdict.state is Verdict.RESEND and verdict.chunk >= record.chunk:
        # The centre waits for what is being sent: over a slow line a chunk takes longer than its patience.
        return None
    tries = record.tries + 1
    if tries >= tries_max:
        return _changed(state, record, FileEvent.LEAVE, tries=tries, error=why)
    if verdict.state is Verdict.RETRY:
        return _changed(state, record, FileEvent.RETRY, tries=tries, error=why)
    return _changed(state, record, FileEvent.RESEND, tries=tries, error=why, chunk=max(0, verdict.chunk))


def _changed(state: SenderState, record: FileRecord, event: FileEvent, **changes: object) -> FileRecord | None:
    found = state.step(record, event, **changes)
    return None if found is record else found
