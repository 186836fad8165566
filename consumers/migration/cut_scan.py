"""A scan of rows that left a group with a cut, and its answer, as bytes between two nodes. Pure.

An answer is a line with xxh3-128 of all that follows, in hex; a line of JSON; and an Arrow IPC stream with one batch of
rows for each rank of that line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import xxhash

from headrace.consumers.store import RankedRows, ScanRequest
from headrace.schemas.errors import HeadraceError
from headrace.schemas.payload import SERIES_COLUMN
from headrace.schemas.tables import TIME_COLUMN


class CutAnswerInvalid(HeadraceError):
    """A scan of a cut, or an answer to one, that no node sends."""


@dataclass(frozen=True, slots=True)
class CutScan:
    """What a scan wants of one table; see `Store.scan`."""

    database: str
    table: str
    columns: Sequence[str] | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    tags: Mapping[str, Sequence[str]] | None = None

    @property
    def request(self) -> ScanRequest:
        """The same for a store."""
        columns = None if self.columns is None else frozenset(self.columns)
        return ScanRequest(columns, self.start_ns, self.end_ns, self.tags)

    def to_json(self) -> str:
        """As a parameter of a request."""
        columns = None if self.columns is None else sorted(self.columns)
        tags = None if self.tags is None else {tag: list(values) for tag, values in self.tags.items()}
        return json.dumps(asdict(self) | {"columns": columns, "tags": tags}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> CutScan:
        """The inverse of `to_json`. Raises CutAnswerInvalid."""
        try:
            scan = cls(**json.loads(text))
            names = [scan.database, scan.table, *(scan.columns or ())]
            names += [name for tag, values in (scan.tags or {}).items() for name in (tag, *values)]
            if not all(isinstance(name, str) for name in names):
                raise ValueError("a name is no text")
            times = [each for each in (scan.start_ns, scan.end_ns) if each is not None]
            if not all(type(each) is int for each in times):
                raise ValueError("a time is no whole number")
            return scan
        except (ValueError, TypeError, AttributeError) as error:
            raise CutAnswerInvalid(f"a scan of a cut cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class CutAnswer:
    """Rows of the slots of a cut, and the version of the schema that they have."""

    slots: tuple[int, ...]
    schema_version: int
    batches: tuple[RankedRows, ...] = ()

    def to_bytes(self) -> bytes:
        """All batches have the same columns."""
        ranks = [[each.era, each.version] for each in self.batches]
        head = {"slots": self.slots, "schema_version": self.schema_version, "ranks": ranks}
        sink = pa.BufferOutputStream()
        if self.batches:
            options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
            with pa.ipc.new_stream(sink, self.batches[0].rows.schema, options=options) as writer:
                for each in self.batches:
                    writer.write_batch(each.rows)
        parts = json.dumps(head, separators=(",", ":")).encode() + b"\n", memoryview(sink.getvalue())
        return b"".join((_digest(*parts), b"\n", *parts))

    @classmethod
    def from_bytes(cls, data: bytes) -> CutAnswer:
        """The inverse of `to_bytes`. Raises CutAnswerInvalid."""
        try:
            digest, _, rest = data.partition(b"\n")
            if digest != _digest(rest):
                raise ValueError("its bytes have changed")
            line, _, stream = rest.partition(b"\n")
            head: dict[str, Any] = json.loads(line)
            batches = list[RankedRows]()
            if ranks := head["ranks"]:
                with pa.ipc.open_stream(stream, options=pa.ipc.IpcReadOptions(use_threads=False)) as reader:
                    if reader.schema.names[:2] != [SERIES_COLUMN, TIME_COLUMN]:
                        raise ValueError("the columns are none of rows")
                    batches = [RankedRows(int(era), int(version), reader.read_next_batch()) for era, version in ranks]
            return cls(tuple(map(int, head["slots"])), int(head["schema_version"]), tuple(batches))
        except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, StopIteration) as error:
            raise CutAnswerInvalid(f"rows of a cut cannot be read: {error!r}", retriable=True) from error


def _digest(*parts: bytes | memoryview) -> bytes:
    found = xxhash.xxh3_128()
    for part in parts:
        found.update(part)
    return found.hexdigest().encode()
