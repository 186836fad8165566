"""The rows of a scan between two nodes: an Arrow IPC stream that shows whether it is complete.

Batches with rows have no mark. An empty batch with a mark in its custom metadata means one of three things: the
member still computes, the rows so far are all of them, or the scan failed. A stream without its end mark is cut,
wherever it ends: an answer of Arrow alone has no difference between its end and that of its connection.
"""

from __future__ import annotations

import http.client
import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from headrace.consumers.query import query_errors
from headrace.consumers.query.query_errors import QueryError, UnknownTable
from headrace.schemas.errors import HeadraceError

MEDIA_TYPE = "application/vnd.apache.arrow.stream"
COMPRESSION = "lz4"
_MARK, _ROWS, _ERROR = b"headrace.scan", b"rows", b"error"
HAND_OVERS = b"headrace.hand_overs"
FIGURES = b"headrace.figures"
_BESIDE = (HAND_OVERS, FIGURES)
_WAITING, _END, _FAILED = b"waiting", b"end", b"failed"


class ScanCut(QueryError):
    """A scan of another node that ended before its end mark: the rows so far are not all."""

    @classmethod
    def because(cls, reason: str) -> ScanCut:
        """The error of a stream that cannot be used, for a reason."""
        return cls(f"its answer was cut: {reason}", action="retry, or ask another node", retriable=True)


class ScanEncoder:
    """Encodes one answer. Used by one thread at a time; every method returns the bytes to send."""

    def __init__(self, schema: pa.Schema) -> None:
        self._sink = io.BytesIO()
        self._nothing = pa.RecordBatch.from_pylist([], schema)
        options = pa.ipc.IpcWriteOptions(compression=COMPRESSION)
        self._writer = pa.ipc.new_stream(self._sink, schema, options=options)
        self._rows = 0

    def waiting(self) -> bytes:
        """The member still computes: without it the asker could not tell it from one that hangs."""
        return self._mark({_MARK: _WAITING})

    def rows(self, batch: pa.RecordBatch) -> bytes:
        """Some rows."""
        self._rows += batch.num_rows
        self._writer.write_batch(batch)
        return self._taken()

    def end(self, hand_overs: Mapping[str, Any] | None = None, figures: Mapping[str, Any] | None = None) -> bytes:
        """There are no more rows, and the member has served until now; see HandOvers and ScanFigures."""
        marks = {_MARK: _END, _ROWS: str(self._rows).encode()}
        if hand_overs:
            marks[HAND_OVERS] = json.dumps(hand_overs).encode()
        if figures:
            marks[FIGURES] = json.dumps(figures).encode()
        return self._mark(marks) + self._closed()

    def failed(self, error: HeadraceError) -> bytes:
        """The scan ended early."""
        document = {
            "kind": type(error).__name__,
            "message": error.message,
            "action": error.action,
            "retriable": error.retriable,
        }
        return self._mark({_MARK: _FAILED, _ERROR: json.dumps(document).encode()}) + self._closed()

    def _mark(self, metadata: dict[bytes, bytes]) -> bytes:
        self._writer.write_batch(self._nothing, custom_metadata=metadata)
        return self._taken()

    def _closed(self) -> bytes:
        self._writer.close()
        return self._taken()

    def _taken(self) -> bytes:
        taken = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        return taken


def read_scan(stream: Any, schema: pa.Schema, reserve: Callable[[int], None]) -> pa.Table:
    """All rows of an answer, or the error that ended it; `reserve` is called with the bytes of each batch first.

    Its hand-overs and figures, if it has any, are in the metadata of the table's schema. `stream` is read like a file.
    Raises ScanCut, SchemaAhead, and the error that the member sent.
    """
    batches: list[pa.RecordBatch] = []
    try:
        with pa.ipc.open_stream(stream) as reader:
            _check_schema(reader.schema, schema)
            while True:
                batch, metadata = reader.read_next_batch_with_custom_metadata()
                mark = metadata[_MARK] if metadata is not None and _MARK in metadata else b""
                if mark == _END:
                    table = _complete(batches, schema, metadata[_ROWS])
                    beside = {name: metadata[name] for name in _BESIDE if name in metadata}
                    return table.replace_schema_metadata(beside) if beside else table
                if mark == _FAILED:
                    raise error_of(json.loads(metadata[_ERROR]))
                if not mark:
                    reserve(batch.nbytes)
                    batches.append(batch)
    except StopIteration:
        raise ScanCut.because("it ended without its end mark") from None
    except (pa.ArrowException, OSError, http.client.HTTPException, ValueError) as error:
        raise ScanCut.because(str(error) or repr(error)) from error


class SchemaAhead(QueryError):
    """A member has a newer schema of a table than the node that asks it, or another build."""

    @classmethod
    def of_fragment(cls) -> SchemaAhead:
        """The error of a member whose answer has other types than the asker expects."""
        return cls(
            "its answer has other types: it has a newer schema of the table, or another build",
            action="retry: this node reads the schema in a moment",
            retriable=True,
        )


def _check_schema(found: pa.Schema, wanted: pa.Schema) -> None:
    # A field that became float64 meanwhile must not be rounded to the integers that this node knows.
    if not found.equals(wanted):
        raise SchemaAhead(
            "it has a newer schema of the table", action="retry: this node reads it in a moment", retriable=True
        )


def _complete(batches: list[pa.RecordBatch], schema: pa.Schema, rows: bytes) -> pa.Table:
    table = pa.Table.from_batches(batches, schema)
    if table.num_rows != int(rows):
        raise ScanCut.because(f"it has {table.num_rows} rows of {int(rows)}")
    return table


def error_of(document: Any) -> QueryError:
    """The error that a member sent, as its own class where it is a query error; another one is retriable."""
    found = document if isinstance(document, dict) else {}
    known = getattr(query_errors, str(found.get("kind", "")), None)
    kind = known if isinstance(known, type) and issubclass(known, QueryError) else QueryError
    # An invalid query is that at every node. But a member that does not know a table may only be behind.
    is_final = kind not in (QueryError, UnknownTable) and found.get("retriable") is False
    return kind(str(found.get("message", "it failed")), action=str(found.get("action", "")), retriable=not is_final)
