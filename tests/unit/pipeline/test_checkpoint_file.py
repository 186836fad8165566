"""The small files of ours in a checkpoint, when something else has changed them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.pipeline.batch_table import TABLE_FILE, BatchTables
from headrace.pipeline.checkpoint import (
    CLUSTER_FILE,
    IDENTITY_FILE,
    SINK_FILE,
    BoundCluster,
    check_sink,
    held_checkpoint,
)
from headrace.pipeline.checkpoint_file import OWN_FOLDER, CheckpointDamaged, CheckpointFile
from headrace.pipeline.raw_topic import TOPIC_FILE, RawTopic
from tests.unit.pipeline.harness import influx_job


def hold(checkpoint: str) -> None:
    """Begin a run, and end it."""
    with ExitStack() as run:
        run.enter_context(held_checkpoint(checkpoint, influx_job()))


READERS: dict[str, Callable[[str], object]] = {
    CLUSTER_FILE: lambda checkpoint: BoundCluster("c", checkpoint),
    TOPIC_FILE: lambda checkpoint: RawTopic("raw", checkpoint),
    TABLE_FILE: BatchTables,
    SINK_FILE: lambda checkpoint: check_sink(checkpoint, "c", "d.t"),
    IDENTITY_FILE: hold,
}


DAMAGES = [b"", b'{"topic_id": ', b"17", b"\xff\xfe", b"[1]"]
# Of these two any JSON object is that of some job.
CASES = [
    *((name, content) for name in READERS for content in DAMAGES),
    *((name, b"{}") for name in READERS if name not in (SINK_FILE, IDENTITY_FILE)),
    (TABLE_FILE, b'{"batch": 1, "table": "AAAA"}'),
]


@pytest.mark.parametrize(("name", "content"), CASES)
def test_a_damaged_file_of_a_checkpoint_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    """Whatever a file holds that is not ours, the error has its path, and what to do."""
    (tmp_path / OWN_FOLDER).mkdir()
    path = tmp_path / OWN_FOLDER / name
    path.write_bytes(content)
    with pytest.raises(CheckpointDamaged, match=f"{name} is damaged") as caught:
        READERS[name](str(tmp_path))
    assert "restore it" in caught.value.action
    assert content == path.read_bytes()


def test_a_file_of_a_checkpoint_elsewhere_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither without a checkpoint, nor on another file system: nothing appears in the folder of the process."""
    monkeypatch.chdir(tmp_path)
    for checkpoint in ("", "hdfs://host/checkpoint"):
        file = CheckpointFile.of(checkpoint, "any.json")
        file.write({"a": 1})
        assert file.read(dict) is None
    assert [] == list(tmp_path.iterdir())


def test_a_file_of_a_checkpoint_is_read_back(tmp_path: Path) -> None:
    """As it was written, also through a URL; as JSON, which operators can read."""
    CheckpointFile.of(str(tmp_path), "any.json").write({"a": 1})
    assert {"a": 1} == CheckpointFile.of(tmp_path.as_uri(), "any.json").read(dict)
    assert {"a": 1} == json.loads((tmp_path / OWN_FOLDER / "any.json").read_text())
