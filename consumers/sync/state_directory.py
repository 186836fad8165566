"""The state directory of a sender: one centre and one store. Only one process has it open.

sender.json      UUID of the sender, its store and partition, its centre and the ids of the centre's topics
lock             pid of the process that has it open
state/           the write-ahead log of `SenderState`
status.json      what `headrace sync status` shows while the sender runs; may be old after a crash
resend-*.json    what an operator wants sent again, until the sender takes it
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headrace.connectors.files import DirectoryLock, create_directories, write_atomically
from headrace.consumers.sync.sender_ports import StateUnwritable
from headrace.consumers.sync.sender_state import Changes, SenderState
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
from headrace.schemas.errors import HeadraceError

IDENTITY_FILE = "sender.json"
STATUS_FILE = "status.json"
STATE_FORMAT = 1
_LOG_DIRECTORY = "state"
_RESEND = "resend-"


class StateForeign(HeadraceError):
    """A state directory of another centre or another store."""


class StateDamaged(HeadraceError):
    """A state directory whose identity cannot be read."""


class NoSender(HeadraceError):
    """A directory without a sender, or one that does not have the sender that was asked for."""


class CentreForeign(HeadraceError):
    """A centre that was made again: it is not the one that the state is about."""


@dataclass(frozen=True, slots=True)
class SenderIdentity:
    """Whom a state directory is about. `topics` are the ids of the centre's topics by name, that of membership first.

    `partition` is that of its manifests and chunks, -1 before it was chosen.
    """

    sender: str
    centre: str
    topics: Mapping[str, str]
    store: str = ""
    name: str = ""
    partition: int = -1


class StateDirectory:
    """Owns a directory until `close`."""

    def __init__(self, directory: Path, identity: SenderIdentity, lock: DirectoryLock) -> None:
        """Use `open`."""
        self.directory = directory
        self.identity = identity
        self._lock = lock
        self._log = WriteAheadLog(directory / _LOG_DIRECTORY, BytesSerde(), partitions=1)

    @classmethod
    def open(cls, directory: Path, centre: str, topics: Mapping[str, str]) -> StateDirectory:
        """Take a directory for a centre, a new one for an empty directory.

        Raises DirectoryHeld, StateForeign, CentreForeign, StateDamaged, OSError.
        """
        create_directories(directory)
        lock = DirectoryLock(directory, purpose="state directory")
        try:
            found = read_identity(directory)
            if found is None:
                found = SenderIdentity(str(uuid.uuid4()), centre, dict(topics))
                write_identity(directory, found)
            check_centre(directory, found, centre, topics)
            return cls(directory, found, lock)
        except BaseException:
            lock.release()
            raise

    def claim(self, store: str, name: str) -> SenderIdentity:
        """Bind the directory to a store; the first one counts. Without a `name` it keeps its own. Raises StateForeign."""
        found, name = self.identity, name or self.identity.name
        if found.store and found.store != store:
            raise StateForeign(
                f"state directory {self.directory} is about store {found.store}, and the node is of store {store}",
                action="use another --data-dir for this store",
            )
        if (found.store, found.name) != (store, name):
            self.identity = replace(found, store=store, name=name)
            write_identity(self.directory, self.identity)
        return self.identity

    def partition(self, partitions: int) -> int:
        """The partition of this sender for good, chosen at its first start."""
        # Of a topic with more partitions it would be another one: what is open in this one would stay so for ever, and
        # be asked for in the middle of what is sent in the other.
        if self.identity.partition < 0:
            chosen = zlib.crc32(self.identity.sender.encode()) % partitions
            self.identity = replace(self.identity, partition=chosen)
            write_identity(self.directory, self.identity)
        return self.identity.partition

    def recover(self) -> SenderState:
        """The state. Raises WriteAheadLogError."""
        return SenderState(dict(self._log.recover().values()))

    def write(self, changes: Changes) -> None:
        """See StateLog."""
        records = [Delete(key) if value is None else Put((key, value)) for key, value in changes.records.items()]
        self._update(records, changes.sync)

    def rewrite(self, records: Mapping[bytes, bytes]) -> None:
        """See StateLog."""
        try:
            self._log.checkpoint()
        except (CheckpointFailed, DurabilityUnknown, OSError) as error:
            raise StateUnwritable(f"{self.directory}: {error}", rewrite=True) from error
        self._update([Put(each) for each in records.items()], True)

    def _update(self, records: list[Put[Any] | Delete[Any]], sync: bool) -> None:
        try:
            if records:
                self._log.update(records, sync=sync)
            elif sync:
                self._log.sync()
        except UpdateFailed as error:
            raise StateUnwritable(f"{self.directory}: {error.message}") from error
        except (LogFailed, DurabilityUnknown) as error:
            raise StateUnwritable(f"{self.directory}: {error.message}", rewrite=True) from error

    def requests(self) -> Iterator[tuple[Path, list[str] | None]]:
        """What operators want sent again: the file of each request, and the names, None for everything."""
        for path in sorted(self.directory.glob(f"{_RESEND}*.json")):
            try:
                files = json.loads(path.read_bytes())["files"]
                yield path, None if files is None else [str(each) for each in files]
            except (ValueError, KeyError, TypeError):
                path.unlink(missing_ok=True)

    def show(self, document: Mapping[str, Any]) -> None:
        """Let `headrace sync status` see this while the sender runs."""
        # Never worth stopping for: a full disk shows itself elsewhere.
        with suppress(OSError):
            path = self.directory / STATUS_FILE
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(document))
            partial.rename(path)

    def close(self) -> None:
        """Release the directory."""
        try:
            with suppress(DurabilityUnknown):
                self._log.close()
        finally:
            self._lock.release()


def check_centre(directory: Path, found: SenderIdentity, centre: str, topics: Mapping[str, str]) -> None:
    """Raises StateForeign for another centre, and CentreForeign for one that was made again under its name."""
    if found.centre != centre:
        raise StateForeign(
            f"state directory {directory} is about centre {found.centre}, and not {centre}",
            action="give each centre a directory of its own with --data-dir",
        )
    for topic, known in found.topics.items():
        if topics.get(topic) != known:
            raise CentreForeign(
                f"topic {topic} of centre {centre} was made again (id {known} is now {topics.get(topic, 'none')}): "
                "it does not have what was sent before",
                action=f"headrace sync forget --to-cluster {centre}, then give another --data-dir: everything is sent "
                "as by a new sender; nothing was changed or deleted",
            )


def read_identity(directory: Path) -> SenderIdentity | None:
    """Whom a state directory is about, None for an empty one. Raises StateDamaged."""
    path = directory / IDENTITY_FILE
    try:
        content = json.loads(path.read_bytes())
        if content.pop("format") != STATE_FORMAT:
            raise ValueError("a format of another build")
        return SenderIdentity(**content)
    except FileNotFoundError:
        # A log without an identity is no empty directory: another UUID would send everything under another name.
        if (directory / _LOG_DIRECTORY).exists():
            raise StateDamaged(f"{path} is missing", action="restore it from a copy of the directory") from None
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateDamaged(f"{path} cannot be read: {error!r}", action="restore it from a copy") from error


def write_identity(directory: Path, identity: SenderIdentity) -> None:
    """Write it durably."""
    content = {"format": STATE_FORMAT, **asdict(identity)}
    write_atomically(directory / IDENTITY_FILE, json.dumps(content, indent=1, sort_keys=True))


def sender_directories(root: Path) -> list[Path]:
    """The state directories at or below a path."""
    found = [root, *sorted(each for each in root.glob("*") if each.is_dir())] if root.is_dir() else []
    return [each for each in found if (each / IDENTITY_FILE).exists()]


def find_sender(root: Path, sender: str) -> Path:
    """The state directory of a sender. Raises NoSender."""
    directories = sender_directories(root)
    for each in directories:
        identity = read_identity(each)
        if identity is not None and identity.sender == sender:
            return each
    known = ", ".join(read.sender for each in directories if (read := read_identity(each)) is not None)
    raise NoSender(
        f"there is no sender {sender} in {root}",
        action=f"give the --data-dir that it was started with; this directory has {known or 'no sender'}",
    )


def request_resend(directory: Path, files: list[str] | None) -> None:
    """Ask for files to be sent again, None for everything: the sender takes it when its next round begins."""
    write_atomically(directory / f"{_RESEND}{uuid.uuid4().hex}.json", json.dumps({"files": files}))
