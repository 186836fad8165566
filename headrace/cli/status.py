"""`headrace status`: the state of a node and of the groups it is a member of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from headrace.cli.option_groups import grouped
from headrace.cli.options import ClusterOptions, JsonOption, NodeUrlOption
from headrace.cli.session import found_node
from headrace.terminal.command import EXIT_FAILED, run_command
from headrace.terminal.output import Output
from headrace.terminal.sizes import short_bytes

RECOVERY_COLUMNS = ("recovering", "by", "files", "bytes", "offsets", "done", "left s", "still s")
GROUP_COLUMNS = (
    *("group", "role", "leader", "version", "lag", "lag s"),
    *("segments", "sealed rows", "sealed", "live rows", "live"),
)
REMOTE_COLUMNS = ("group elsewhere", "members", "in sync")
MEMBER_COLUMNS = ("member", "group", "role", "version", "silent s", "address")


def register(app: typer.Typer) -> None:
    """Add the command `status`."""
    app.command()(status)


@grouped
def status(node: NodeUrlOption = None, *, cluster: ClusterOptions, json_output: JsonOption = False) -> None:
    """Groups, roles, versions, lag, segments and live rows of a node; exit code 1 when it is not ready."""
    with run_command(json_output) as output:
        from headrace.node_client import NodeClient

        # Where none is ready, the reasons of each are looked for: one may have lost what all others wait for.
        asked = found_node(node, cluster, unready=True)
        found = NodeClient(asked.url).status()
        output.result(found, lambda: _show(output, found, asked.unready))
        # `until headrace status; do sleep 1; done` waits for a node.
        if not found.get("ready", False):
            raise typer.Exit(EXIT_FAILED)


def _show(output: Output, found: Mapping[str, Any], unready: Mapping[str, str]) -> None:
    ready = "ready" if found.get("ready") else "joining" if found.get("joining") else "not ready"
    output.line(f"{found.get('cluster', '?')} / {found.get('node', '?')}: {ready}")
    for reason in found.get("reasons", ()):
        output.line(f"  {reason}")
    for address, reason in unready.items():
        output.line(f"  {address}: not ready: {reason}")
    for warning in found.get("warnings", ()):
        output.line(f"  warning: {warning}")
    if flight := found.get("flight"):
        output.line(f"  Arrow Flight on {flight}")
    groups, members = found.get("groups", ()), found.get("members", ())
    recoveries = [_recovery(group["group"], group["recovery"]) for group in groups if group.get("recovery")]
    if recoveries:
        output.table(RECOVERY_COLUMNS, recoveries)
    output.table(GROUP_COLUMNS, map(_group, groups))
    if members:
        output.table(MEMBER_COLUMNS, map(_member, members))
    # Groups that this node reads from others: a node shows only part of a cluster with fewer copies than nodes.
    if remote := found.get("remote_groups", ()):
        output.table(REMOTE_COLUMNS, map(_remote, remote))


def _lag_s(group: Mapping[str, Any]) -> Any:
    return _known(round(float(_number(group, "lag_seconds")), 1))


def _known(number: float) -> Any:
    return "unknown" if number < 0 else number


def _group(group: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        group.get("group"),
        group.get("role"),
        group.get("leader"),
        _number(group, "version"),
        _known(_number(group, "lag_records")),
        _lag_s(group),
        _number(group, "segments"),
        _number(group, "segment_rows"),
        _size(_number(group, "segment_bytes")),
        _number(group, "live_rows"),
        _size(_number(group, "live_bytes")),
    )


def _member(member: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        member.get("node"),
        member.get("group"),
        member.get("role"),
        _number(member, "version"),
        _seconds(_number(member, "silent_ms")),
        member.get("http"),
    )


def _remote(group: Mapping[str, Any]) -> tuple[Any, ...]:
    in_sync = group.get("in_sync", ())
    return group.get("group"), ", ".join(group.get("members", ())), ", ".join(in_sync) or "none"


def _recovery(name: str, recovery: Mapping[str, Any]) -> tuple[Any, ...]:
    kind = "bytes" if recovery["bytes_total"] else "offsets"
    done, total = recovery[f"{kind}_done"], recovery[f"{kind}_total"]
    return (
        name,
        f"{recovery['way']} of {recovery['source']}" if recovery["source"] else recovery["way"],
        f"{recovery['files_done']} of {recovery['files_total']}" if recovery["files_total"] else "-",
        f"{_size(recovery['bytes_done'])} of {_size(recovery['bytes_total'])}" if recovery["bytes_total"] else "-",
        f"{recovery['offsets_done']} of {recovery['offsets_total']}" if recovery["offsets_total"] else "-",
        f"{100 * done / total:.0f} %" if total else "-",
        "unknown" if recovery["seconds_left"] < 0 else round(recovery["seconds_left"], 1),
        round(recovery["still_s"], 1),
    )


def _number(values: Mapping[str, Any], name: str) -> Any:
    """A number of a status; -1 where the node does not know it or does not report it."""
    # Never 0 for unknown: people would take an unknown lag for none.
    value = values.get(name)
    return -1 if value is None else value


def _seconds(milliseconds: float) -> float:
    return -1 if milliseconds < 0 else round(milliseconds / 1_000, 1)


def _size(size_bytes: float) -> str:
    return "-1" if size_bytes < 0 else short_bytes(size_bytes)
