"""References to large values in their journals, and the recovered mapping that reads them on demand."""

from __future__ import annotations

from collections.abc import Callable, Hashable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any

from headrace.consumers.wal.journal_file import JournalFile
from headrace.consumers.wal.record_encoding import PAIR, Stored
from headrace.consumers.wal.serde import Serde, join_pair, loads_pairs


class ValueReference:
    """A value of more than 4 KiB: `length` bytes at `offset` of a journal, verified by CRC at every read.

    It stays readable as long as the reference exists, also after the record or the journal was deleted or the
    log closed.
    """

    __slots__ = ("crc", "journal", "kind", "length", "offset", "version")

    def __init__(self, journal: JournalFile, kind: int, version: int, offset: int, length: int, crc: int) -> None:
        self.journal = journal
        self.kind = kind
        self.version = version
        self.offset = offset
        self.length = length
        self.crc = crc

    def read(self) -> bytes:
        """The value's bytes; raises `LogDamaged` when they are not the bytes that were written."""
        return self.journal.read_value(self.offset, self.length, self.crc)

    def __repr__(self) -> str:
        return f"ValueReference({self.journal.path.name}, offset={self.offset}, length={self.length})"


Entry = bytes | Stored | ValueReference
"""A value in the log: a small pair of the current serde version, another small value, or a reference."""


def load_entry(serde: Serde[Any, Any], key: Hashable, entry: Entry) -> Any:
    """The record of an entry; raises the exception of the serde."""
    if isinstance(entry, bytes):
        kind, version, data = PAIR, serde.version, entry
    elif isinstance(entry, Stored):
        kind, version, data = entry.kind, entry.version, entry.data
    else:
        kind, version, data = entry.kind, entry.version, entry.read()
    if kind != PAIR:
        return serde.load(data, version)
    if loads_pairs(serde):
        return (key, data)
    # Another serde reads what `BytesSerde` wrote, so it gets the bytes that `BytesSerde.dump` would have made.
    assert isinstance(key, bytes)
    return serde.load(join_pair(key, data), version)


class RecoveredState(dict[Any, Any]):
    """The recovered records by key: a `dict` that reads a record with a large value from disk at each access.

    Iterating over `items()` holds one large value at a time. `reference(key)` returns such a value without
    reading it.
    """

    # The C methods of `dict` bypass `__getitem__`, so every method that returns values is overridden.

    def __init__(self, entries: Mapping[Any, Any], load: Callable[[Hashable, ValueReference], Any]) -> None:
        super().__init__(entries)
        self._load = load

    def reference(self, key: Hashable) -> ValueReference | None:
        """The reference to a key's value; None for a small value, which is in memory. Raises `KeyError`."""
        value = super().__getitem__(key)
        return value if isinstance(value, ValueReference) else None

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        return self._load(key, value) if isinstance(value, ValueReference) else value

    def __iter__(self) -> Iterator[Any]:
        # Overriding this makes dict(state) and {**state} go through __getitem__ as well.
        return super().__iter__()

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401

    def items(self) -> ItemsView[Any, Any]:  # type: ignore[override]
        return ItemsView(self)

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        return ValuesView(self)

    def keys(self) -> KeysView[Any]:  # type: ignore[override]
        return KeysView(self)

    def pop(self, key: Any, *default: Any) -> Any:
        if key not in self and default:
            return default[0]
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[Any, Any]:
        if not self:
            raise KeyError("popitem(): the state is empty")
        key = next(reversed(self))
        return key, self.pop(key)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        super().setdefault(key, default)
        return self[key]

    def copy(self) -> RecoveredState:
        """A copy that reads on demand as well."""
        return RecoveredState({key: dict.__getitem__(self, key) for key in self}, self._load)

    def __or__(self, other: Any) -> dict[Any, Any]:
        return {**self, **other}

    def __ror__(self, other: Any) -> dict[Any, Any]:
        return {**other, **self}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, dict) or len(self) != len(other):
            return False
        return all(key in other and self[key] == other[key] for key in self)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __repr__(self) -> str:
        return repr({key: dict.__getitem__(self, key) for key in self})

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)
