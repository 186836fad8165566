"""The checks of the demo: every node holds exactly what was produced, and all hold the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc

from headrace._member_views import LogView
from headrace.admin_client import AdminClient
from headrace.bench.content import read_checksums
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import read_slot_table
from headrace.demo.stage import DATABASE, Stage
from headrace.workload.checksum import compare

VERIFY_TIMEOUT_S = 120.0


def check_tables(stage: Stage, when: str, expected: Mapping[str, pa.Table], tags: Mapping[str, Sequence[str]]) -> None:
    """Compare every table at every node with per-series checksums of what was produced."""
    problems: list[str] = []
    rows = 0
    for node in stage.cluster.file.nodes:
        # By checksum and not by count: a row lost and another one written twice would not change the count.
        for table, wanted in expected.items():
            found = read_checksums(stage.cluster.url(node.name), DATABASE, table, tags[table])
            rows += pc.sum(found.column("rows")).as_py() or 0
            problems += [f"{node.name} {table}: {line}" for line in compare(wanted, found)]
    stage.check(f"every row once, on every node, {when}", problems, f"{rows:,} rows compared by series")


def seal(stage: Stage) -> None:
    """Seal as `headrace seal` does: only sealed segments can be compared between members."""
    with _admin_client(stage) as admin:
        admin.seal_all(VERIFY_TIMEOUT_S, lambda _line: None)


def check_replicas(stage: Stage, when: str) -> None:
    """Compare hash chains and segment digests of all members as `headrace verify` does."""
    with _admin_client(stage) as admin:
        verdicts = admin.verify(VERIFY_TIMEOUT_S, lambda _line: None)
    problems = [difference for verdict in verdicts for difference in verdict.differences]
    problems += [f"{node} did not answer for group {verdict.group}" for verdict in verdicts for node in verdict.missing]
    versions = sum(verdict.version for verdict in verdicts)
    segments = sum(verdict.segments for verdict in verdicts)
    stage.check(
        f"replicas equal {when}", problems, f"{versions} records, {segments} segments, by chain and content digest"
    )


@contextmanager
def _admin_client(stage: Stage) -> Iterator[AdminClient]:
    log, topics = KafkaLog(stage.cluster.bootstrap), Topics(stage.cluster.cluster)
    admin = AdminClient(LogView(log, topics, read_slot_table(log, topics)))
    try:
        yield admin
    finally:
        admin.close()
        log.close()
