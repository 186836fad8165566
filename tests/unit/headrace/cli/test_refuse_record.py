"""`headrace refuse-record` on a log in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from headrace.cli import refuse_record
from headrace.cli.main import build_app
from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.schemas.framing import format_headers
from tests.poison import encoded, row_batch, write_message

TOPICS = Topics("c")


def test_the_record_that_a_group_waits_at_is_refused_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer names record and version; any other record is an error."""
    log = MemoryLog()
    for topic in (TOPICS.table, TOPICS.forward("n1")):
        log.create_topic(topic, {})
    for version in (99, 99):
        value = write_message(encoded(row_batch()), schema_version=version)
        log.store(TOPICS.forward("n1"), value, None, format_headers())

    @contextmanager
    def session(*_options: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(log=log, topics=TOPICS)

    monkeypatch.setattr(refuse_record, "cluster_session", session)
    command = ["refuse-record", "--group", "n1", "--json", "--offset"]
    done = CliRunner().invoke(build_app(command), [*command, "1"])
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    assert ({"group": "n1", "offset": 1}, "pumps", 99) == (shown["record"], shown["table"], shown["schema_version"])
    tables = SchemaLog(log, TOPICS)
    tables.refresh()
    assert [1] == [record.offset for record in tables.catalogue.refused]
    assert CliRunner().invoke(build_app(command), [*command, "2"]).exit_code != 0
