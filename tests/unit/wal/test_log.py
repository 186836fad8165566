"""The log's interface on real files: what callers may rely on, one behaviour a test."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest

from headrace.connectors.files import DirectoryHeld
from headrace.consumers.wal import (
    BytesSerde,
    Delete,
    ForeignLog,
    ForeignSerde,
    LogDamaged,
    LogMisused,
    Put,
    RecoveredState,
    UnsupportedKey,
    ValueReference,
    WriteAheadLog,
)

LARGE = os.urandom(20_000)


class JsonishSerde:
    """Records are (name, number); the second version writes the number first."""

    name = "jsonish"

    def __init__(self, version: int = 1) -> None:
        self.version = version
        self.loaded_versions: list[int] = []

    def key(self, record: tuple[str, int]) -> str:
        return record[0]

    def dump(self, record: tuple[str, int]) -> bytes:
        fields = [record[0], str(record[1])]
        return ",".join(fields if self.version == 1 else fields[::-1]).encode()

    def load(self, data: bytes, version: int) -> tuple[str, int]:
        self.loaded_versions.append(version)
        fields = data.decode().split(",")
        name, number = fields if version == 1 else fields[::-1]
        return name, int(number)


def opened(directory: Path, serde: Any = None, **settings: Any) -> tuple[WriteAheadLog, dict[Any, Any]]:
    """A recovered log and its state."""
    log = WriteAheadLog(directory, serde or BytesSerde(), **settings)
    return log, log.recover()


def test_records_are_created_replaced_and_deleted(tmp_path: Path) -> None:
    """Put creates or replaces, Delete removes, and a missing key is no error; ids rise by one."""
    log, state = opened(tmp_path / "log")
    assert {} == state
    assert 1 == log.update([Put((b"a", b"1")), Put((b"b", b"2"))])
    assert 2 == log.update([Put((b"a", b"3")), Delete(b"b"), Delete(b"never")], sync=True, partition=3)
    log.close()
    log, state = opened(tmp_path / "log")
    assert {b"a": (b"a", b"3")} == state
    assert type(state) is dict
    assert 3 == log.update([Put((b"c", b""))])
    log.close()


def test_an_empty_update_does_nothing(tmp_path: Path) -> None:
    """It takes no id and writes nothing."""
    log, _ = opened(tmp_path)
    assert 0 == log.update([])
    assert 1 == log.update([Put((b"a", b"1"))])
    assert 1 == log.update([], sync=True)
    assert 2 == log.update([Put((b"a", b"1"))])
    log.close()


def test_calls_out_of_order_are_errors(tmp_path: Path) -> None:
    """Update before recover, recover twice, and anything after close are refused."""
    log = WriteAheadLog(tmp_path, BytesSerde())
    with pytest.raises(LogMisused, match="call recover first"):
        log.update([Put((b"a", b"1"))])
    with pytest.raises(LogMisused):
        log.checkpoint()
    log.recover()
    with pytest.raises(LogMisused, match="recovered already"):
        log.recover()
    log.close()
    log.close()
    with pytest.raises(LogMisused, match="closed"):
        log.update([Put((b"a", b"1"))])
    with pytest.raises(LogMisused, match="closed"):
        log.recover()


def test_wrong_settings_and_operations_are_errors(tmp_path: Path) -> None:
    """Partitions, reserve and records are checked before anything happens."""
    with pytest.raises(ValueError, match="partitions"):
        WriteAheadLog(tmp_path, BytesSerde(), partitions=0)
    with pytest.raises(ValueError, match="preallocate_bytes"):
        WriteAheadLog(tmp_path, BytesSerde(), preallocate_bytes=2 << 20)
    log, _ = opened(tmp_path, partitions=2)
    with pytest.raises(ValueError, match="partition 2"):
        log.update([Put((b"a", b"1"))], partition=2)
    with pytest.raises(TypeError, match="Put and Delete"):
        log.update([(b"a", b"1")])  # type: ignore[list-item]
    assert 0 == log.last_transaction
    log.close()


def test_one_opener_at_a_time(tmp_path: Path) -> None:
    """A second opener is refused with the holder's pid; a copied directory opens like the original."""
    log, _ = opened(tmp_path / "log")
    log.update([Put((b"a", b"1"))], sync=True)
    with pytest.raises(DirectoryHeld) as caught:
        WriteAheadLog(tmp_path / "log", BytesSerde()).recover()
    assert os.getpid() == caught.value.pid
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    copy, state = opened(tmp_path / "copy")
    assert {b"a": (b"a", b"1")} == state
    copy.close()
    log.close()
    opened(tmp_path / "log")[0].close()


def test_large_values_are_read_at_access(tmp_path: Path) -> None:
    """A recovered large value is a reference until any access; small ones are in memory."""
    log, _ = opened(tmp_path)
    log.update([Put((b"large", LARGE)), Put((b"small", b"1"))], sync=True)
    log.close()
    log, state = opened(tmp_path)
    expected = {b"large": (b"large", LARGE), b"small": (b"small", b"1")}
    assert isinstance(state, dict)
    assert isinstance(state, RecoveredState)
    assert isinstance(state.reference(b"large"), ValueReference)
    assert state.reference(b"small") is None
    assert LARGE not in repr(state).encode()
    assert expected == state
    assert state == expected
    assert state != {b"large": (b"large", b""), b"small": (b"small", b"1")}
    assert expected == dict(state)
    assert expected == {**state}
    assert expected == {} | state
    assert expected == state | {}
    assert expected == dict(state.items())
    assert expected == state.copy()
    assert list(expected.values()) == list(state.values())
    assert expected[b"large"] == state.get(b"large")
    assert state.get(b"none") is None
    key, value = state[b"large"]
    assert (b"large", LARGE) == (key, value)
    assert expected[b"large"] == state.pop(b"large")
    assert [b"small"] == list(state)
    assert LARGE == log.get(b"large")[1]
    log.close()


def test_values_stay_readable(tmp_path: Path) -> None:
    """A returned state is not changed by later deletes, checkpoints or the close of the log."""
    log, _ = opened(tmp_path)
    log.update([Put((b"a", LARGE))])
    log.close()
    log, state = opened(tmp_path)
    log.update([Delete(b"a")], sync=True)
    log.checkpoint()
    assert [] == list(tmp_path.glob("journal-*"))
    log.close()
    assert {b"a": (b"a", LARGE)} == state


def test_values_may_be_any_buffers(tmp_path: Path) -> None:
    """A value may be bytes, bytearray, memoryview or a tuple of them, and is read back as bytes."""
    log, _ = opened(tmp_path)
    log.update(
        [Put((b"a", bytearray(LARGE))), Put((b"b", memoryview(LARGE)[1:])), Put((b"c", (b"head", memoryview(LARGE))))]
    )
    log.update([Put((b"d", bytearray(b"x"))), Put((b"e", memoryview(b"xyz")[1:])), Put((b"f", (b"x", b"y")))])
    log.close()
    log, state = opened(tmp_path)
    assert [LARGE, LARGE[1:], b"head" + LARGE] == [state[key][1] for key in (b"a", b"b", b"c")]
    assert [b"x", b"yz", b"xy"] == [state[key][1] for key in (b"d", b"e", b"f")]
    assert {bytes} == {type(value) for _, value in state.values()}
    log.close()


def test_a_damaged_large_value_is_an_error_when_read(tmp_path: Path) -> None:
    """A value that only the snapshot refers to is checked at every read, by name of file and offset."""
    log, _ = opened(tmp_path)
    log.update([Put((b"a", LARGE))])
    log.checkpoint()
    log.close()
    (journal,) = tmp_path.glob("journal-*")
    with open(journal, "r+b") as file:
        file.seek(10_000)
        file.write(b"\0\1\2\3")
    log, state = opened(tmp_path)
    with pytest.raises(LogDamaged) as caught:
        state[b"a"]
    assert journal == caught.value.file
    log.close()


def test_a_checkpoint_writes_no_payload_again(tmp_path: Path) -> None:
    """The snapshot holds references; a journal is deleted once none of its values is referenced."""
    log, _ = opened(tmp_path, partitions=2, preallocate_bytes=0)
    log.update([Put((b"a", LARGE))], partition=0)
    log.update([Put((b"b", LARGE))], partition=1)
    log.checkpoint()
    assert (tmp_path / "snapshot").stat().st_size < 1_000
    assert 2 == len(list(tmp_path.glob("journal-*")))
    log.update([Delete(b"a")], partition=1)
    log.checkpoint()
    assert ["0001"] == [path.stem.rpartition("-")[2] for path in tmp_path.glob("journal-*")]
    log.update([Delete(b"b")])
    log.checkpoint()
    assert [] == list(tmp_path.glob("journal-*"))
    log.close()
    assert {} == opened(tmp_path)[1]


def test_partition_count_may_change(tmp_path: Path) -> None:
    """Journals of partitions that no longer exist are recovered and disappear with the next checkpoint."""
    log, _ = opened(tmp_path, partitions=8)
    for index in range(16):
        log.update([Put((b"%d" % index, b"x"))], partition=index % 8)
    log.close()
    expected = {b"%d" % index: (b"%d" % index, b"x") for index in range(16)}
    log, state = opened(tmp_path, partitions=1)
    assert expected == state
    log.update([Put((b"new", b"y"))], sync=True)
    log.close()
    log, state = opened(tmp_path, partitions=3)
    assert expected | {b"new": (b"new", b"y")} == state
    log.checkpoint()
    assert [] == list(tmp_path.glob("journal-*"))
    log.close()


def test_an_older_serde_version_is_read(tmp_path: Path) -> None:
    """Records of an older version are loaded as such, from journal and snapshot, mixed with new ones, also after a checkpoint."""
    log, _ = opened(tmp_path, JsonishSerde(1))
    log.update([Put(("a", 1))])
    log.checkpoint()
    log.update([Put(("b", 2)), Put(("large" * 2_000, 7))])
    log.close()
    expected = {"a": ("a", 1), "b": ("b", 2), "large" * 2_000: ("large" * 2_000, 7), "c": ("c", 3)}
    newer = JsonishSerde(2)
    log, _ = opened(tmp_path, newer)
    log.update([Put(("c", 3))])
    log.checkpoint()
    log.close()
    for _ in range(2):
        newer = JsonishSerde(2)
        log, state = opened(tmp_path, newer)
        assert expected == state
        assert {1, 2} == set(newer.loaded_versions)
        log.close()


def test_a_newer_or_foreign_serde_is_refused_by_name(tmp_path: Path) -> None:
    """The error names both serdes, the directory is free afterwards, and nothing is lost."""
    log, _ = opened(tmp_path, JsonishSerde(2))
    log.update([Put(("a", 1))])
    log.close()
    with pytest.raises(ForeignSerde, match="'jsonish' version 2.*'jsonish' version 1"):
        opened(tmp_path, JsonishSerde(1))
    with pytest.raises(ForeignSerde, match=r"'jsonish'.*'bytes'"):
        opened(tmp_path, BytesSerde())
    assert {"a": ("a", 1)} == opened(tmp_path, JsonishSerde(2))[1]


@pytest.mark.parametrize(
    "key", [b"k", "käse", 0, -1, 1 << 80, True, None, 1.5, uuid.UUID(int=7), ("a", 1, (b"x", None)), (), ""], ids=repr
)
def test_keys_of_plain_types(tmp_path: Path, key: Any) -> None:
    """A key reads back equal and of the same type, from journal and snapshot, and can be deleted."""

    class Keyed(JsonishSerde):
        def key(self, record: Any) -> Any:
            return key

    log, _ = opened(tmp_path, Keyed())
    log.update([Put(("a", 1))])
    log.close()
    log, state = opened(tmp_path, Keyed())
    assert [key] == list(state)
    assert type(key) is type(next(iter(state)))
    log.checkpoint()
    log.close()
    log, state = opened(tmp_path, Keyed())
    assert {key: ("a", 1)} == state
    log.update([Delete(key)])
    log.close()
    assert {} == opened(tmp_path, Keyed())[1]


def test_keys_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    """A key of another type, or one that is too long, fails its update alone."""
    log, _ = opened(tmp_path)
    with pytest.raises(UnsupportedKey, match="frozenset"):
        log.update([Put((b"a", b"1")), Delete(frozenset())])
    with pytest.raises(UnsupportedKey, match="70000"):
        log.update([Delete(bytes(70_000))])
    assert 1 == log.update([Put((b"a", b"1"))])
    log.close()


def test_overridden_serde_methods_are_used(tmp_path: Path) -> None:
    """A subclass of BytesSerde with its own dump and load is not bypassed."""

    class Upper(BytesSerde):
        def dump(self, record: Any) -> bytes:
            return super().dump((record[0], bytes(record[1]).upper()))

        def load(self, data: bytes, version: int) -> tuple[bytes, bytes]:
            key, value = super().load(data, version)
            return key, value + b"!"

    log, _ = opened(tmp_path, Upper())
    log.update([Put((b"a", b"x")), Put((b"b", b"y" * 5_000))])
    log.close()
    assert {b"a": (b"a", b"X!"), b"b": (b"b", b"Y" * 5_000 + b"!")} == opened(tmp_path, Upper())[1]


def test_a_file_of_another_log_is_refused(tmp_path: Path) -> None:
    """A snapshot or journal that was copied from another log is refused."""
    for name in ("one", "two"):
        log, _ = opened(tmp_path / name)
        log.update([Put((b"a", name.encode()))])
        log.checkpoint()
        log.update([Put((b"b", name.encode()))])
        log.close()
    for pattern in ("snapshot", "journal-*"):
        (source,) = (tmp_path / "one").glob(pattern)
        kept = (tmp_path / "two" / source.name).read_bytes()
        shutil.copy(source, tmp_path / "two")
        with pytest.raises(ForeignLog, match="another log"):
            opened(tmp_path / "two")
        (tmp_path / "two" / source.name).write_bytes(kept)
    assert {b"a": (b"a", b"two"), b"b": (b"b", b"two")} == opened(tmp_path / "two")[1]


def test_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    """Partial files and journals that the manifest does not name are removed; foreign files stay."""
    log, _ = opened(tmp_path)
    log.update([Put((b"a", b"1"))])
    log.close()
    for name in ("snapshot.partial", "manifest.partial", "journal-0000000099-0000.wal", "README"):
        (tmp_path / name).write_bytes(b"x")
    log, state = opened(tmp_path)
    assert {b"a": (b"a", b"1")} == state
    assert {"manifest", "lock", "journal-0000000001-0000.wal", "README"} == {path.name for path in tmp_path.iterdir()}
    log.close()


def test_thousands_of_deletes_are_one_transaction(tmp_path: Path) -> None:
    """All keys below a version go in one update."""
    log, _ = opened(tmp_path)
    keys = [index.to_bytes(8, "big") for index in range(5_000)]
    log.update([Put((key, b"x")) for key in keys])
    assert 2 == log.update([Delete(key) for key in keys[:-1]])
    log.close()
    assert {keys[-1]: (keys[-1], b"x")} == opened(tmp_path)[1]


def test_metrics_count_what_was_done(tmp_path: Path) -> None:
    """Transactions, bytes, syncs, waits and group sizes are there for monitoring."""
    log, _ = opened(tmp_path, sync_interval_ms=None)
    log.update([Put((b"a", b"1"))])
    assert 0 == log.durable_transaction
    log.update([Put((b"b", LARGE))], sync=True)
    metrics = log.metrics()
    assert (2, 2, 2, 1) == (metrics.transactions, metrics.durable_transaction, metrics.records, metrics.journals)
    assert metrics.bytes_written > len(LARGE)
    assert metrics.syncs >= 1
    assert metrics.sync_wait_p99_ms >= metrics.sync_wait_p50_ms > 0
    assert (1.0, 1, False) == (metrics.group_size_mean, metrics.group_size_max, metrics.failed)
    log.close()


def test_close_truncates_the_reserve(tmp_path: Path) -> None:
    """Close truncates the reserved space, and opening without a write grows no file."""
    log, _ = opened(tmp_path)
    log.update([Put((b"a", b"1"))])
    (journal,) = tmp_path.glob("journal-*")
    assert journal.stat().st_size > 1_000_000
    log.close()
    assert journal.stat().st_size < 1_000
    before = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    for _ in range(2):
        opened(tmp_path)[0].close()
    assert before == {path.name: path.stat().st_size for path in tmp_path.iterdir()}
