"""`headrace replay --table`: the rows of one table between two times, from the log into files of their own."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from typer.testing import CliRunner

from headrace.cli.main import build_app
from headrace.consumers.membership.bootstrap import read_slot_table
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.node.offline_replay import DirectoryNotEmpty, ReplayResult
from headrace.consumers.node.selected_replay import replay_selection
from headrace.consumers.replication.heartbeat import StatusWatch
from headrace.consumers.replication.row_selection import RowSelection
from headrace.consumers.store import TableUnknown
from headrace.producers.cluster import Cluster, FixedRouting
from headrace.producers.deletes import delete_rows
from headrace.producers.writer import TableWriter
from tests.unit.nodes import Nodes, running_nodes

SECOND_NS = 1_000_000_000


def test_only_rows_of_the_table_and_the_times_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealed rows and newer ones, each once with its last value, without those that a delete hides; the node runs on.

    A table that is unknown and a directory with files are refused before anything is read.
    """
    with running_nodes(tmp_path, monkeypatch, ("n1",), keep_records=10_000) as nodes:
        nodes.write()
        nodes.seal()
        change(nodes)
        target = tmp_path / "part"
        found = replayed(nodes, RowSelection("plant", "pumps", 100 * SECOND_NS, 600 * SECOND_NS), target)
        rows = ds.dataset(target).to_table().sort_by("time")
        with pytest.raises(TableUnknown, match=r"plant\.pump"):
            replayed(nodes, RowSelection("plant", "pump"), tmp_path / "other")
        with pytest.raises(DirectoryNotEmpty):
            replayed(nodes, RowSelection("plant", "pumps"), target)
    seconds = [second for second in range(100, 510) if not 200 <= second < 210]
    assert seconds == [value // 1_000_000 for value in rows.column("time").cast(pa.int64()).to_pylist()]
    values = dict(zip(seconds, rows.column("flow").to_pylist(), strict=True))
    assert {second: -1.0 if 490 <= second < 510 else float(second) for second in seconds} == values
    assert {"pump", "time", "flow", "site"} == set(rows.column_names)
    assert ["s"] == pc.unique(rows.column("site")).drop_null().to_pylist()
    assert (len(seconds), 2) == (found.rows, len(list(tmp_path.iterdir())))
    assert found.segments == len(list(target.glob("plant/pumps/*.parquet")))


def change(nodes: Nodes) -> None:
    """Newer values and a new tag, rows of another table, and a delete."""
    log, topics = nodes.log, nodes.topics
    tables = SchemaLog(log, topics)
    routing = FixedRouting(read_slot_table(log, topics))
    cluster = Cluster(log, topics, routing, tables, StatusWatch(log, topics), log.appender())
    seconds = range(490, 510)
    times = pa.array([second * SECOND_NS for second in seconds], pa.timestamp("ns"))
    pumps = [f"p{second % 50}" for second in seconds]
    with TableWriter(cluster, "plant", "pumps") as writer:
        writer.write(pa.table({"pump": pumps, "time": times, "flow": [-1.0] * 20}), ["pump"])
        later = pa.array([700 * SECOND_NS] * 20, pa.timestamp("ns"))
        writer.write(pa.table({"pump": pumps, "site": ["s"] * 20, "time": later, "flow": [0.0] * 20}), ["pump", "site"])
        within = pa.array([509 * SECOND_NS], pa.timestamp("ns"))
        writer.write(pa.table({"pump": ["p9"], "site": ["s"], "time": within, "flow": [-1.0]}), ["pump", "site"])
    with TableWriter(cluster, "plant", "tanks") as writer:
        writer.write(pa.table({"tank": pumps, "time": times, "level": [1.0] * 20}), ["tank"])
    delete_rows(cluster, "plant", "pumps", start_ns=200 * SECOND_NS, end_ns=210 * SECOND_NS)
    delete_rows(cluster, "plant", "pumps", {"pump": ["p9"], "site": [""]}, 509 * SECOND_NS, 510 * SECOND_NS)
    tables.close()


def replayed(nodes: Nodes, selection: RowSelection, target: Path) -> ReplayResult:
    """Replay a part of the log of n1 into a directory."""
    settings = nodes.settings("n1")
    settings = settings.model_copy(update={"node": settings.node.model_copy(update={"data_dir": str(target)})})
    return replay_selection(settings, selection, on_progress=lambda _done, _total: None, log=nodes.log)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--start 2026-01-01", "need a table"),
        ("--table pumps", "not DATABASE.TABLE"),
        ("--table plant.pumps --replace", "contradict"),
        ("--table plant.pumps --start yesterday", "yesterday is not a time"),
        ("--table plant.pumps --start 2026-01-02 --end 2026-01-01", "is not before"),
    ],
)
def test_options_that_make_no_sense_are_named(words: str, named: str) -> None:
    """Before a cluster is asked for."""
    done = CliRunner().invoke(build_app(["replay"]), ["replay", "--id", "n1", "--data-dir", "new", *words.split()])
    assert 2 == done.exit_code
    assert named in done.stderr
