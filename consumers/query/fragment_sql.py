"""The SQL of a fragment as it travels: a document of a scan request, checked where it arrives.

The member that answers checks the SQL itself with the guard of users' SQL before it runs it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.consumers.query.parameters import problem_of

FRAGMENT_BYTES_MAX = 64 * 1024
"""SQL of a fragment; a longer one is not sent, and its rows are fetched."""
_MEMBERS = frozenset({"sql", "schema", "parameters", "now_us"})


@dataclass(frozen=True, slots=True)
class FragmentSql:
    """What a member runs over the table of a scan request: its only table, by database and name.

    `schema` is that of the answer, None for rows of the requested columns. `parameters` are the values of the names
    that the SQL writes as `$name`, and `now_us` is the moment that `now()` means.
    """

    sql: str
    schema: pa.Schema | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    now_us: int = 0

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        found: dict[str, Any] = {"sql": self.sql, "parameters": dict(self.parameters), "now_us": self.now_us}
        if self.schema is not None:
            found["schema"] = base64.b64encode(self.schema.serialize().to_pybytes()).decode()
        return found

    @classmethod
    def parse(cls, document: Any) -> FragmentSql:
        """The inverse of `document`. Raises ValueError, which names what is wrong."""
        if not isinstance(document, dict) or set(document) - _MEMBERS:
            raise ValueError("it is not an object of sql, schema, parameters and now_us")
        sql, now_us, parameters = document.get("sql"), document.get("now_us", 0), document.get("parameters", {})
        if not isinstance(sql, str) or not 0 < len(sql) <= FRAGMENT_BYTES_MAX:
            raise ValueError("it has no SQL, or too much")
        if not isinstance(now_us, int) or isinstance(now_us, bool) or not -(2**63) <= now_us < 2**63:
            raise ValueError("now_us is not a whole number")
        problem = problem_of(parameters)
        if problem is not None:
            raise ValueError(problem)
        return cls(sql, _schema(document.get("schema")), parameters, now_us)


def _schema(text: Any) -> pa.Schema | None:
    if text is None:
        return None
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (pa.ArrowException, binascii.Error, TypeError, ValueError, OSError) as error:
        raise ValueError(f"schema: {error}") from error
