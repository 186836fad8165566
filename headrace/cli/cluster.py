"""`headrace cluster`: members, slots, and their changes."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.change_display import ProgressView, remark
from headrace.cli.generate import parse_start
from headrace.cli.option_groups import grouped
from headrace.cli.options import ClusterOptions, JsonOption
from headrace.cli.session import ClusterSession, cluster_session
from headrace.schemas.errors import HeadraceError
from headrace.terminal.command import UsageInvalid, run_command
from headrace.terminal.output import Output
from headrace.terminal.sizes import short_bytes

if TYPE_CHECKING:
    from headrace.consumers.membership.cluster_report import ClusterReport

cluster = typer.Typer(help="Members and slots of a cluster, and their changes.", no_args_is_help=True)


class Measure(StrEnum):
    """What groups shall have the same amount of."""

    SLOTS = "slots"
    BYTES = "bytes"


class UnknownDatabase(HeadraceError):
    """A database that the cluster does not have."""


class UnknownBucket(HeadraceError):
    """A bucket that the database does not have."""


NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="Id of the node.")]
MeasureOption = Annotated[
    Measure, typer.Option("--by", help="Give each group the same number of slots, or about the same bytes.")
]
PlanOption = Annotated[bool, typer.Option("--dry-run", help="Show what would move and change nothing.")]
WaitOption = Annotated[bool, typer.Option("--no-wait", help="End once the change has begun.")]
RateOption = Annotated[
    int,
    typer.Option("--rate", metavar="BYTES_PER_S", min=0, help="Most that each node fetches a second; 0 = no limit."),
]
TimeoutOption = Annotated[
    float | None, typer.Option("--timeout", metavar="SECONDS", help="How long to wait for its end; it continues.")
]


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """How data moves, and how long the command waits."""

    by: MeasureOption = Measure.SLOTS
    dry_run: PlanOption = False
    no_wait: WaitOption = False
    timeout_s: TimeoutOption = None
    rate: RateOption = 0


@dataclass(frozen=True, slots=True)
class AskedChange:
    """What a command line asks for; `node` is empty where nobody joins or leaves."""

    kind: str
    node: str
    options: ChangeOptions


def register(app: typer.Typer) -> None:
    """Add the noun `cluster`."""
    app.add_typer(cluster, name="cluster")


@cluster.command()
@grouped
def show(*, cluster: ClusterOptions, json_output: JsonOption = False) -> None:
    """Nodes on the ring, groups with their members, and the change that is running."""
    with run_command(json_output) as output, _report(cluster) as (_, report):
        found = report.cluster()
        output.result(found, lambda: _show_cluster(output, found))


@cluster.command()
@grouped
def slots(
    slot: Annotated[int | None, typer.Option("--slot", metavar="N", help="Only this slot.")] = None,
    database: Annotated[
        str | None, typer.Option("--database", metavar="DB", help="Only the slots of this database at --time.")
    ] = None,
    time: Annotated[
        str | None, typer.Option("--time", metavar="TIME", help="ISO 8601 (UTC), or nanoseconds; with --database.")
    ] = None,
    bucket: Annotated[
        int | None, typer.Option("--bucket", metavar="N", help="Only this bucket; with --database.")
    ] = None,
    *,
    cluster: ClusterOptions,
    json_output: JsonOption = False,
) -> None:
    """Which group owns each slot, where it was before, and whether its data has arrived.

    Bytes are an estimate: those of the group, divided by its slots.
    """
    with run_command(json_output) as output:
        time_ns = _checked_time(slot, database, time, bucket)
        with _report(cluster) as (session, report):
            if database is not None and time_ns is not None:
                numbers: Sequence[int] = _slots_of(session, database, time_ns, bucket)
            else:
                numbers = range(session.slot_table.slots) if slot is None else [slot]
            found = report.slots(numbers)
        if json_output:
            output.json(found)
        else:
            _show_slots(output, found)


@cluster.command()
@grouped
def add(
    node: NodeArgument, *, options: ChangeOptions, cluster: ClusterOptions, json_output: JsonOption = False
) -> None:
    """Add a node that runs and waits to join, and wait until it has its share of the data.

    With --dry-run the node need not run.
    """
    with run_command(json_output) as output:
        _change(output, AskedChange("add", node, options), cluster)


@cluster.command()
@grouped
def remove(
    node: NodeArgument, *, options: ChangeOptions, cluster: ClusterOptions, json_output: JsonOption = False
) -> None:
    """Give the data of a node to the others, and wait until they have it. A dead node can be removed too."""
    with run_command(json_output) as output:
        _change(output, AskedChange("remove", node, options), cluster)


@cluster.command()
@grouped
def balance(*, options: ChangeOptions, cluster: ClusterOptions, json_output: JsonOption = False) -> None:
    """Move slots until every group has the same share, while nobody joins or leaves."""
    with run_command(json_output) as output:
        _change(output, AskedChange("balance", "", options), cluster)


@contextmanager
def _report(cluster: ClusterOptions) -> Iterator[tuple[ClusterSession, ClusterReport]]:
    from headrace.consumers.membership.cluster_report import ClusterReport
    from headrace.consumers.membership.membership_follower import MembershipFollower

    with cluster_session(cluster) as session, session.member_view() as view:
        # Unlike the state alone, it knows since when data moves.
        with closing(MembershipFollower(session.log, session.topics.membership)) as follower:
            state = follower.read_all()
        yield session, ClusterReport(state, view.statuses, follower.formal_ms)


@cluster.command()
@grouped
def cancel(*, cluster: ClusterOptions, json_output: JsonOption = False) -> None:
    """End the running change, as long as its table does not count yet."""
    from headrace.cluster_change import ClusterChanges

    with run_command(json_output) as output, cluster_session(cluster) as session:
        with closing(ClusterChanges(session.log, session.topics)) as changes:
            outcome = changes.cancel()
        output.result({"phase": str(outcome.phase)}, f"change to table {outcome.version} is {outcome.phase}")


def _change(output: Output, asked: AskedChange, cluster: ClusterOptions) -> None:
    timeout_s = asked.options.timeout_s
    # Neither is true of `nan`.
    if timeout_s is not None and not 0 < timeout_s < math.inf:
        raise UsageInvalid(f"--timeout {timeout_s:g} is no time to wait", action="give seconds above 0")
    if asked.kind != "balance" and not asked.node:
        raise UsageInvalid("the name of the node is empty", action=f"name it: headrace cluster {asked.kind} NODE")
    with _report(cluster) as (session, report):
        if not asked.options.dry_run:
            _carry_out(output, session, asked)
            return
        found = _planned(session, report, asked)
    output.result(found, lambda: _show_plan(output, found))


def _planned(session: ClusterSession, report: ClusterReport, asked: AskedChange) -> dict[str, Any]:
    """What would move. Raises the refusals of a request that can be checked without the leader."""
    from headrace.consumers.membership.balancer import Balancer, ByteBalancer, SlotCountBalancer
    from headrace.consumers.membership.requests import ChangeRequest, plan_change
    from headrace.schemas.membership_records import ChangeKind

    balancer: Balancer = ByteBalancer(report.slot_bytes()) if asked.options.by is Measure.BYTES else SlotCountBalancer()
    request = ChangeRequest(uuid.uuid4().hex, ChangeKind(asked.kind), asked.node)
    return report.plan(plan_change(session.membership, request, report.nodes_view(), balancer))


def _carry_out(output: Output, session: ClusterSession, asked: AskedChange) -> None:
    """Send the request, and follow the change with a line a phase, or a bar on a terminal."""
    from headrace.cluster_change import ANSWER_TIMEOUT_S, NEXT_STEPS, ChangeResult, ClusterChanges
    from headrace.consumers.membership.requests import NothingToMove
    from headrace.consumers.membership.running_change import Phase

    request: dict[str, Any] = {"id": uuid.uuid4().hex, "kind": asked.kind, "by": str(asked.options.by)}
    if asked.node:
        request["node"] = asked.node
    if asked.options.rate:
        request["rate"] = asked.options.rate
    with closing(ClusterChanges(session.log, session.topics)) as changes:
        output.left_running = f"the change may have begun: {NEXT_STEPS}"
        try:
            answer_s = min(ANSWER_TIMEOUT_S, asked.options.timeout_s or ANSWER_TIMEOUT_S)
            outcome = changes.begin(request, answer_s, on_wait=remark(output))
        except NothingToMove:
            done = ChangeResult(session.slot_table.version, Phase.DONE, 0, 0, 0.0)
            output.result(done.document(), f"{asked.kind}: the groups have equal shares, and no slot moves")
            return
        begun = {"id": request["id"], "change": outcome.number, "version": outcome.version, "phase": str(outcome.phase)}
        if asked.options.no_wait:
            output.result(begun, f"change {outcome.number} to table {outcome.version} has begun")
            return
        output.left_running = f"the change continues: {NEXT_STEPS}"
        with output.progress("moving", None, "slots") as advance:
            view = ProgressView(output, advance)
            result = changes.follow(request["id"], view.show, asked.options.timeout_s)
            view.end(result.slots_moved)
        output.left_running = ""
    document = result.document()
    named = f"{asked.kind} {asked.node}".strip()
    moved = f"{result.slots_moved:,} slots moved, about {_size(result.bytes_moved)}, in {result.seconds:.1f} s"
    output.result(document, f"{named}: table {result.version} counts, {moved}")


def _checked_time(slot: int | None, database: str | None, time: str | None, bucket: int | None) -> int | None:
    """`--time` in nanoseconds. Raises UsageInvalid for options that do not belong together."""
    if slot is not None and (database is not None or time is not None or bucket is not None):
        raise UsageInvalid("--slot and --database are two ways to choose slots", action="give one of them")
    if (database is None) != (time is None):
        raise UsageInvalid("--database and --time belong together: they give the time slice", action="give both")
    if bucket is not None and database is None:
        raise UsageInvalid("--bucket is of a database", action="give --database and --time too")
    return None if time is None else parse_start(time, "--time")


def _slots_of(session: ClusterSession, name: str, time_ns: int, bucket: int | None) -> list[int]:
    """The slots of a database at a time. Raises UnknownDatabase, UnknownBucket."""
    from headrace.consumers.membership.schema_log import SchemaLog
    from headrace.schemas.series import slot_of

    tables = SchemaLog(session.log, session.topics)
    try:
        tables.refresh()
        databases = tables.catalogue.databases
    finally:
        tables.close()
    if name not in databases:
        known = ", ".join(sorted(databases)) or "none yet"
        raise UnknownDatabase(f"there is no database {name!r}", action=f"the databases are: {known}")
    schema = databases[name]
    if bucket is not None and not 0 <= bucket < schema.buckets:
        raise UnknownBucket(f"database {name} has no bucket {bucket}", action=f"use 0 up to {schema.buckets - 1}")
    buckets = range(schema.buckets) if bucket is None else [bucket]
    return sorted({slot_of(name, each, time_ns // schema.slice_ns, session.slot_table.slots) for each in buckets})


def _show_cluster(output: Output, found: Mapping[str, Any]) -> None:
    copies = "one copy" if found["replication"] == 1 else f"{found['replication']} copies"
    output.line(f"table {found['version']}: {found['slots']} slots, {copies} of each row")
    nodes = [(node["id"], node["position"], node["http"], node["online"]) for node in found["nodes"]]
    output.table(("node", "position", "http", "online"), nodes)
    groups = [
        (each["group"], each["birth"], each["members"], each["leader"], each["slots"], _size(each["bytes"]))
        for each in found["groups"]
    ]
    output.table(("group", "birth", "members", "leader", "slots", "sealed"), groups)
    metadata = found["metadata"]
    output.line(f"metadata leader: {metadata['leader'] or 'none'}, epoch {metadata['epoch']}")
    if change := found["change"]:
        named = f"{change['kind']} {change['node']}".strip()
        output.line(f"change to table {change['version']}: {named}, phase {change['phase']}")
        rows = [
            ("groups", f"{change['groups_done']} of {change['groups_total']}"),
            ("slots", f"{change['slots_done']} of {change['slots_total']}"),
            ("bytes, estimated", f"{_size(change['bytes_done'])} of {_size(change['bytes_total'])}"),
            ("left s", "unknown" if change["eta_s"] < 0 else change["eta_s"]),
        ]
        output.table(("progress", ""), rows)
        # Not in a cell: a terminal would cut it before the reason.
        for each in change["waiting_for"]:
            output.line(f"waiting for {each}")


def _show_slots(output: Output, found: Sequence[Mapping[str, Any]]) -> None:
    """One row for neighbouring slots that differ in nothing but their number."""
    runs: list[list[Any]] = []
    for each in found:
        place = (each["group"], each["previous"], each["state"])
        if runs and runs[-1][1] == each["slot"] - 1 and runs[-1][2] == place:
            runs[-1][1] = each["slot"]
            runs[-1][3].append(each["bytes"])
        else:
            runs.append([each["slot"], each["slot"], place, [each["bytes"]]])
    rows = [
        (str(first) if first == last else f"{first}-{last}", *place, _size(-1 if -1 in sizes else sum(sizes)))
        for first, last, place, sizes in runs
    ]
    output.table(("slots", "group", "previous", "state", "bytes, estimated"), rows)


def _show_plan(output: Output, found: Mapping[str, Any]) -> None:
    if not found["moves"]:
        output.line("no slot moves")
    else:
        moves = [(move["from"], move["to"], move["slots"], _size(move["bytes"])) for move in found["moves"]]
        output.table(("from", "to", "slots", "bytes, estimated"), moves)
    changed = [each for each in found["groups"] if each["before"] != each["after"]]
    if changed:
        groups = [(each["group"], each["before"], each["pre"], each["after"]) for each in changed]
        output.table(("group", "before", "phase one", "after"), groups)
    if kept := len(found["groups"]) - len(changed):
        output.line(f"{kept} {'group keeps its' if kept == 1 else 'groups keep their'} members")


def _size(size_bytes: int) -> str:
    return "unknown" if size_bytes < 0 else short_bytes(size_bytes)
