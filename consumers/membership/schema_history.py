"""What a node has read of the table log, remembered over restarts.

A table log that was deleted and created again gives the version numbers of schemas to other schemas, and rows
name the number. So a log counts as the one that was read only if it begins with the same records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from headrace.connectors.files import write_atomically
from headrace.connectors.log.port import Record
from headrace.consumers.replication.hash_chain import next_chain, record_digest
from headrace.schemas.errors import HeadraceError
from headrace.schemas.messages import NO_CHAIN

HISTORY_FILE = "tables.json"
_log = structlog.get_logger(__name__)


class SchemaLogLost(HeadraceError):
    """The table log does not begin with the records that were read from it."""


@dataclass(frozen=True, slots=True)
class SchemaHistory:
    """How many records were read, and the chain over them."""

    records: int = 0
    chain: bytes = NO_CHAIN

    def after(self, records: Iterable[Record]) -> SchemaHistory:
        """The history with more records."""
        history = self
        for record in records:
            chain = next_chain(history.chain, record_digest(record.value))
            history = replace(history, records=history.records + 1, chain=chain)
        return history

    @classmethod
    def load(cls, path: Path) -> SchemaHistory:
        """The history in a file; an empty one without it, or when it is damaged."""
        try:
            content = json.loads(path.read_bytes())
            return cls(int(content["records"]), bytes.fromhex(content["chain"]))
        except FileNotFoundError:
            return cls()
        except (ValueError, KeyError, TypeError) as error:
            # The file only guards against another fault.
            _log.warning("history of the table log not readable", path=str(path), error=repr(error))
            return cls()

    def save(self, path: Path) -> None:
        """Write it durably, or log why not."""
        content = {"records": self.records, "chain": self.chain.hex()}
        try:
            write_atomically(path, json.dumps(content, indent=1))
        except OSError as error:
            _log.warning("history of the table log not saved", path=str(path), error=str(error))


def lost_error(topic: str, why: str) -> SchemaLogLost:
    """The error that names what is missing and what can be done."""
    return SchemaLogLost(
        f"topic {topic} {why}",
        action="restore all its records in their order; or begin with a new cluster, the data is kept",
    )
