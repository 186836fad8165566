"""What operators see of a change that runs."""

from __future__ import annotations

from dataclasses import replace

from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.cluster_report import ClusterReport
from headrace.consumers.membership.running_change import RunningChange
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.replication.failure_detector import FailureDetector
from headrace.schemas.membership_records import ChangeKind, PreDone
from headrace.schemas.presence import Presence
from tests.unit.statuses import STATUS


def test_a_member_that_waits_names_its_cause() -> None:
    """By its status: an operator reads in one place who is waited for, and why. What nobody starts again is first."""
    base = SlotTable.create(("n1", "n2", "n3"), 2, 12)
    done = tuple(PreDone(1, header, header, 1, 1) for header in base.headers)
    change = RunningChange(1, "r", ChangeKind.ADD, "n4", "s", base, base.add_node("n4"), formal=True, pre_done=done)
    first, second = change.table.group("n4")
    detector = FailureDetector()
    detector.observe(1_000, replace(STATUS, group="n4", node=first, reason="the disk is full"))
    state = MembershipState(records=1, table=change.table, changes=1, change=change)

    def waiting_for() -> list[str]:
        found: list[str] = ClusterReport(state, detector).cluster()["change"]["waiting_for"]
        return found

    slots = len(change.table.moved)
    full = f"node {first}: {slots} slots of group n4, the disk is full"
    assert [f"node {second}: {slots} slots of group n4, it is offline", full] == waiting_for()
    detector.observe_presence(1_000, Presence(second, "run", "s", "", 2, 12, False, 0, 0, True))
    assert [full, f"node {second}: {slots} slots of group n4"] == waiting_for()


def test_a_group_names_the_member_that_keeps_it_from_the_new_ones() -> None:
    """Before the new table there are no slots to name, and a joining node with a full disk is in no other list."""
    base = SlotTable.create(("n1", "n2", "n3"), 2, 12)
    done = tuple(PreDone(1, header, header, 1, 1) for header in base.headers if header != "n1")
    change = RunningChange(1, "r", ChangeKind.ADD, "n4", "s", base, base.add_node("n4"), pre_done=done)
    detector, state = FailureDetector(), MembershipState(records=1, table=base, changes=1, change=change)

    def waiting_for() -> list[str]:
        found: list[str] = ClusterReport(state, detector).cluster()["change"]["waiting_for"]
        return found

    detector.observe(1_000, replace(STATUS, group="n1", node="n1", eligible=True, reason="it leads"))
    assert ["group n1: node n4 is offline"] == waiting_for()
    detector.observe_presence(1_000, Presence("n4", "run", "s", "", 2, 12, False, 0, 0, True))
    assert ["group n1"] == waiting_for()
    detector.observe(1_000, replace(STATUS, group="n1", node="n4", eligible=False, reason="journal: no space"))
    assert ["group n1: node n4, journal: no space"] == waiting_for()


def test_a_status_of_a_new_member_that_comes_while_nodes_are_listed_ends_no_report() -> None:
    """Another thread receives it. The answer was an error of the node, and so were its metrics."""
    table, detector, comes = SlotTable.create(("n1", "n2"), 2, 12), FailureDetector(), list[str]()

    class Received(str):
        """A name at whose comparison another status comes."""

        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            if comes:
                detector.observe(1_000, replace(STATUS, node="n3", group=comes.pop()))
            return str.__eq__(self, other)

    detector.observe(1_000, replace(STATUS, node=Received("n1"), http="http://h"))
    detector.observe(1_000, replace(STATUS, node=Received("n3")))
    report = ClusterReport(MembershipState(records=1, table=table), detector)
    comes.append("another")
    assert ["http://h", ""] == [report._node(node, 0)["http"] for node in ("n1", "n2")]
    assert [] == comes


def test_what_an_operator_can_end_is_named_first() -> None:
    """Of groups, and of the members of one. Behind it come causes that end by themselves, and groups without any."""
    base = SlotTable.create(("n1", "n2", "n3"), 2, 12)
    change = RunningChange(1, "r", ChangeKind.ADD, "n4", "s", base, base.add_node("n4"))
    detector, state = FailureDetector(), MembershipState(records=1, table=base, changes=1, change=change)
    group = next(each for each in base.headers if "n4" in change.pre_members(each))
    first, second = (each for each in base.headers if each != group)

    def waiting_for() -> list[str]:
        found: list[str] = ClusterReport(state, detector).cluster()["change"]["waiting_for"]
        return found

    def observe(header: str, node: str, reason: str) -> None:
        detector.observe(1_000, replace(STATUS, group=header, node=node, eligible=False, reason=reason))

    observe(second, second, "compaction at version 365 waits for 12ab")
    offline = f"group {group}: node n4 is offline"
    assert offline == waiting_for()[0]
    detector.observe_presence(1_000, Presence("n4", "run", "s", "", 2, 12, False, 0, 0, True))
    slow = f"group {second}: node {second}, compaction at version 365 waits for 12ab"
    assert slow == waiting_for()[0]
    members = base.group(first)
    observe(first, members[0], "recovering: 3 of 9 MB")
    observe(first, members[1], "the disk is full: no space left")
    assert f"group {first}: node {members[1]}, the disk is full: no space left" == waiting_for()[0]
    assert slow == waiting_for()[1]


def test_the_time_left_follows_from_the_bytes_that_members_have() -> None:
    """Unknown before the first of them, then from the time since the table counts. It is of bytes, and not of slots."""
    base = SlotTable.create(("n1", "n2", "n3"), 2, 12)
    done = tuple(PreDone(1, header, header, 1, 1) for header in base.headers)
    change = RunningChange(1, "r", ChangeKind.ADD, "n4", "s", base, base.add_node("n4"), pre_done=done)
    detector = FailureDetector()
    for header, size in (("n1", 4_000), ("n2", 12), ("n3", 0)):
        detector.observe(11_000, replace(STATUS, group=header, node=header, segment_bytes=size))

    def eta_s(received: dict[str, tuple[int, ...]], formal_ms: int = 1_000, *, formal: bool = True) -> int:
        bits = tuple((node, sum(1 << slot for slot in slots)) for node, slots in sorted(received.items()))
        now = replace(change, formal=formal, received=bits)
        table = change.table if formal else base
        state = MembershipState(records=1, table=table, changes=1, change=now)
        found: int = ClusterReport(state, detector, formal_ms).cluster()["change"]["eta_s"]
        return found

    [large], [small], [empty] = (
        [slot for slot, former in change.table.moved if former == header] for header in ("n1", "n2", "n3")
    )
    first, second = change.table.group("n4")
    assert -1 == eta_s({}, formal=False) == eta_s({})
    assert -1 == eta_s({first: (large,)}, formal_ms=0)
    # 1,000 of 2,008 bytes after 10 s: the slots are of 1,000, 3 and 1 byte, and two members need each.
    assert 11 == eta_s({first: (large,)})
    assert 1 == eta_s({first: (large, small, empty), second: (large,)})
    assert 0 == eta_s({first: (large, small, empty), second: (large, small, empty)})
