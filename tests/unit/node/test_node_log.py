"""Which log a node has, and directories whose rows came from another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.connectors.log.kafka import KafkaLog
from headrace.consumers.local_log import LocalLog
from headrace.consumers.membership.ring import ClusterInvalid
from headrace.consumers.node.data_directory import (
    LOG_DIRECTORY,
    DataDirectoryDamaged,
    DataDirectoryForeign,
    Identity,
)
from headrace.consumers.node.node_log import check_log_kind, node_log
from headrace.consumers.node.settings import IDENTITY_FILE, NodeSettings, ServerSettings


def settings(directory: Path, **given: object) -> ServerSettings:
    """The settings of node n1."""
    return ServerSettings(node=NodeSettings.model_validate({"id": "n1", "data_dir": str(directory), **given}))


def identity(**topics: str) -> Identity:
    """The identity of a directory with rows of these topics."""
    return Identity("c", "n1", "store", topics)


def test_the_log_is_that_of_the_settings(tmp_path: Path) -> None:
    """A local log is opened by its first use, so that nothing is made for a node that cannot start."""
    local = node_log(settings(tmp_path, log="LOCAL"))
    assert (LocalLog, []) == (type(local), list(tmp_path.iterdir()))
    local.close()
    kafka = node_log(settings(tmp_path))
    assert isinstance(kafka, KafkaLog)
    kafka.close()


@pytest.mark.parametrize("given", [{"nodes": ("n1", "n2")}, {"replication": 3}, {"nodes": ("n2",)}])
def test_a_node_with_a_local_log_is_alone(tmp_path: Path, given: dict[str, object]) -> None:
    """Others could not follow its log."""
    with pytest.raises(ClusterInvalid, match="is alone"):
        node_log(settings(tmp_path, log="local", **given))


@pytest.mark.parametrize("content", ["", '{"a": 1}', "[]", '{"format": 1}'])
@pytest.mark.parametrize(("has_log", "way_out"), [(False, "move the data directory away"), (True, "delete it alone")])
def test_a_damaged_identity_is_an_error_whose_way_out_keeps_the_rows(
    tmp_path: Path, content: str, has_log: bool, way_out: str
) -> None:
    """The rows of a node with a log of its own are in its directory alone: it must not be moved away."""
    (tmp_path / IDENTITY_FILE).write_text(content)
    if has_log:
        (tmp_path / LOG_DIRECTORY).mkdir()
    with pytest.raises(DataDirectoryDamaged, match=r"node.json is damaged and cannot be read") as raised:
        Identity.load(tmp_path, "c", "n1")
    assert way_out in raised.value.action


def test_a_directory_keeps_its_kind_of_log(tmp_path: Path) -> None:
    """Rows of another log would be replaced by what this one has, and they may be the only copy."""
    kafka, local = settings(tmp_path).node, settings(tmp_path, log="local").node
    for each in (kafka, local):
        check_log_kind(each, identity())
    check_log_kind(kafka, identity(t="id"))
    with pytest.raises(DataDirectoryDamaged, match="no local log"):
        check_log_kind(local, identity(t="id"))
    (tmp_path / LOG_DIRECTORY).mkdir()
    check_log_kind(local, identity(t="id"))
    with pytest.raises(DataDirectoryForeign, match="has a local log"):
        check_log_kind(kafka, identity(t="id"))
