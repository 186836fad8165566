"""Running nodes in the metadata group: one leads, requests over HTTP are answered, and a later build is named."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.connectors.log.port import read_to_end
from headrace.consumers.membership.metadata_group import StartSettings
from headrace.consumers.node import metadata
from headrace.consumers.node.node import Node
from headrace.schemas.framing import FORMAT, format_headers
from headrace.schemas.membership_records import MetadataClaim
from headrace.schemas.records import decode_membership
from tests.unit.nodes import Nodes, running_nodes
from tests.waiting import eventually


def led(nodes: Nodes) -> Node:
    """The node that leads the metadata group, once all nodes see it."""
    running = list(nodes.running.values())
    eventually(
        lambda: len({node.metadata.leader()[0] for node in running}) == 1 and any(n.metadata.leads for n in running),
        "a metadata leader that all know",
    )
    return next(node for node in running if node.metadata.leads)


def sent(node: Node, /, **document: Any) -> tuple[int, dict[str, Any]]:
    """Status and error of a request."""
    answer = httpx.post(f"{node.http_address}/api/v1/cluster/change", json=document, timeout=60)
    return answer.status_code, answer.json()["error"]


def test_one_node_leads_and_refuses_what_nobody_carries_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every refusal has its type; the membership log has claims alone. So it is with nodes of a build that only plans."""
    monkeypatch.setattr(metadata, "StartSettings", partial(StartSettings, changes=False))
    with running_nodes(tmp_path, monkeypatch, ("n1", "n2"), replication=1) as nodes:
        leader = led(nodes)
        other = next(node for node in nodes.running.values() if node is not leader)
        for document, status, kind in (
            ({"id": "a", "kind": "add", "node": "n2"}, 409, "NodeExists"),
            ({"id": "a", "kind": "add", "node": "n9"}, 409, "ChangesUnsupported"),
            ({"id": "a", "kind": "remove", "node": "n9"}, 409, "UnknownNode"),
            ({"id": "a", "kind": "remove", "node": "n2"}, 409, "ChangesUnsupported"),
            ({"id": "a", "kind": "balance", "by": "bytes"}, 409, "ChangesUnsupported"),
            ({"id": "a", "kind": "cancel", "change": 1}, 409, "NoChange"),
            ({"id": "a", "kind": "cancel"}, 400, "RequestInvalid"),
            ({"id": "a", "kind": "cancel", "change": True}, 400, "RequestInvalid"),
            ({"id": "", "kind": "balance"}, 400, "RequestInvalid"),
            ({"id": "a", "kind": "grow"}, 400, "RequestInvalid"),
            ({"id": "a", "kind": "add"}, 400, "RequestInvalid"),
            ({"id": "a", "kind": "balance", "node": "n1"}, 400, "RequestInvalid"),
            ({"id": "a", "kind": "add", "node": "n9", "position": 1 << 64}, 400, "RequestInvalid"),
            ({"id": "a", "kind": "balance", "by": "rows"}, 400, "RequestInvalid"),
            ({"id": "a", "kind": "balance", "force": True}, 400, "RequestInvalid"),
        ):
            assert (status, kind) == (sent(leader, **document)[0], sent(leader, **document)[1]["kind"]), document
        status, error = sent(other, id="a", kind="balance")
        assert (409, "NotMetadataLeader") == (status, error["kind"])
        assert {"node": leader.name, "http": leader.http_address} == error["leader"]
        path = f"{other.http_address}/api/v1/cluster/change"
        found = httpx.get(path).json()
        assert {"leader": error["leader"], "running": None} == {name: found[name] for name in ("leader", "running")}
        assert "RequestUnknown" == httpx.get(path, params={"id": "a"}).json()["error"]["kind"]
        assert (True, 1 <= leader.figures().metadata_epoch) == (leader.figures().metadata_leads, True)
        records = [decode_membership(each.value)[1] for each in read_to_end(nodes.log, "c.membership", timeout_s=10)]
        assert {MetadataClaim} == {type(each) for each in records[1:]}


def test_a_membership_record_of_a_later_build_keeps_a_node_from_being_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It no longer knows who holds what. The reason names the record; a start refuses as well."""
    with running_nodes(tmp_path, monkeypatch, ("n1",)) as nodes:
        node = led(nodes)
        nodes.log.store("c.membership", b"of a later build", None, format_headers(FORMAT + 1))
        eventually(lambda: any("the record at offset" in reason for reason in node.ready()[1]), "the reason")
        # The reason is there a moment before its thread has given the lead up.
        eventually(lambda: not node.metadata.leads, "the end of its lead")
