"""What a node does in the metadata group: each situation, and the record that belongs to it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.connectors.http import NodeUnreachable
from headrace.consumers.membership.changes import MembershipState, Verdict
from headrace.consumers.membership.metadata_leader import (
    MetadataView,
    Situation,
    WantedChange,
    decide_metadata,
)
from headrace.consumers.membership.requests import (
    ChangeRequest,
    ChangeRunning,
    ChangesUnsupported,
    NodesView,
    nodes_view,
)
from headrace.consumers.replication.failure_detector import OFFLINE_MS, FailureDetector
from headrace.schemas.errors import HeadraceError
from headrace.schemas.membership_records import (
    Cancel,
    ChangeKind,
    Exile,
    Formal,
    MembershipChange,
    MetadataClaim,
    PreDone,
    SlotDone,
)
from headrace.schemas.messages import Leadership
from headrace.schemas.presence import Presence
from headrace.schemas.records import Create

DOCUMENT = Path(__file__).parents[3] / "docs" / "internals" / "membership.md"
# In ring order: n2 n1 n3.
NODES = ("n1", "n2", "n3")
ADD = WantedChange(ChangeRequest("r1", ChangeKind.ADD, "n4"))
REMOVE = WantedChange(ChangeRequest("r1", ChangeKind.REMOVE, "n3"))
BY_N2 = Leadership(1, "n2", "run-n2")


def presence(node: str, *, eligible: bool = True, format_: int = 3, changes: bool = True, epoch: int = 0) -> Presence:
    """A node that reports itself."""
    store, run = f"store-{node}", f"run-{node}"
    return Presence(node, run, store, "", 2, 12, eligible, epoch, 1, changes, format=format_)


def begun(*records: MembershipChange) -> MembershipState:
    """Two copies on three nodes, and more records, which all count."""
    state, _ = MembershipState().apply(Create(NODES, 2, 12))
    for record in records:
        state, verdict = state.apply(record)
        assert verdict is Verdict.ACCEPTED, record
    return state


def view(state: MembershipState, node: str = "n2", present: tuple[Presence, ...] = (), **rest: Any) -> MetadataView:
    """What a node knows; all nodes are online unless `present` names others."""
    found = present or tuple(presence(each) for each in NODES)
    detector = FailureDetector()
    for each in found:
        detector.observe_presence(1_000, each)
    assert state.table is not None
    made = MetadataView(
        state=state,
        node=node,
        incarnation=f"run-{node}",
        nodes=nodes_view(state.table, detector),
        present=found,
        eligible=True,
        fenced=False,
        log_answers=True,
        claim_age_ms=10_000,
    )
    return replace(made, **rest)


def led(wanted: WantedChange | None = None) -> MembershipState:
    """The cluster led by n2, with a change that runs where one is wanted."""
    state = begun(MetadataClaim(BY_N2))
    if wanted is None:
        return state
    present = (*(presence(each) for each in NODES), presence("n4"))
    record = decide_metadata(view(state, present=present, wanted=wanted)).record
    assert record is not None
    return state.apply(record)[0]


def reported(state: MembershipState) -> MembershipState:
    """Every group has its members of the first phase."""
    assert state.change is not None
    for group in state.change.groups_waiting:
        state, verdict = state.apply(PreDone(state.change.number, group, group, 1, 1))
        assert verdict is Verdict.ACCEPTED
        assert state.change is not None
    return state


def removed() -> MembershipState:
    """n3 was removed, and all its slots have arrived."""
    state = reported(led(REMOVE)).apply(Formal(BY_N2, 1))[0]
    assert state.table is not None
    moved = tuple(slot for slot, _ in state.table.moved)
    for node in ("n1", "n2"):
        state, verdict = state.apply(SlotDone(1, node, moved))
        assert verdict is Verdict.ACCEPTED
    assert state.change is None
    return state


ONE = (presence("n2"),)
CASES = [
    ("not in the table", view(begun(), "n4"), Situation.OUTSIDE, None),
    ("fenced", view(led(), fenced=True), Situation.UNABLE, None),
    ("one of three", view(led(), present=ONE), Situation.UNABLE, None),
    ("behind in the log", view(led(), eligible=False), Situation.UNABLE, None),
    (
        "an old build is online",
        view(begun(), present=(presence("n1"), presence("n2"), presence("n3", format_=2))),
        Situation.OLD_BUILDS,
        None,
    ),
    ("first start, first on the ring", view(begun()), Situation.CLAIMING, MetadataClaim(BY_N2)),
    ("first start, another", view(begun(), "n1"), Situation.FOLLOWING, None),
    ("its claim is not read back", view(begun(), pending=True), Situation.PENDING, None),
    ("another leads", view(led(), "n1"), Situation.FOLLOWING, None),
    (
        "the leader is gone",
        view(led(), "n1", (presence("n1"), presence("n3"))),
        Situation.CLAIMING,
        MetadataClaim(Leadership(2, "n1", "run-n1")),
    ),
    (
        "the leader was started again",
        view(led(), incarnation="later"),
        Situation.CLAIMING,
        MetadataClaim(Leadership(2, "n2", "later")),
    ),
    (
        "another node has read a later claim",
        view(led(), present=(presence("n1", epoch=2), presence("n2"), presence("n3"))),
        Situation.FOLLOWING,
        None,
    ),
    ("leads, nothing to do", view(led()), Situation.IDLE, None),
    ("its record is not read back", view(led(), pending=True, wanted=REMOVE), Situation.PENDING, None),
    ("groups are due", view(led(REMOVE)), Situation.GATHERING, None),
    ("every group has reported", view(reported(led(REMOVE))), Situation.COMPLETING, Formal(BY_N2, 1)),
    ("an operator cancels", view(reported(led(REMOVE)), cancel=1), Situation.CANCELLING, Cancel(BY_N2, 1)),
    ("an earlier change was to be cancelled", view(led(REMOVE), cancel=7), Situation.GATHERING, None),
    (
        "the table counts",
        view(reported(led(REMOVE)).apply(Formal(BY_N2, 1))[0], cancel=1),
        Situation.MIGRATING,
        None,
    ),
    ("a removed node has nothing left", view(removed()), Situation.EXILING, Exile(BY_N2, "n3")),
    ("it was exiled", view(removed().apply(Exile(BY_N2, "n3"))[0]), Situation.IDLE, None),
]


@pytest.mark.parametrize(
    ("found", "situation", "record"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_each_situation(found: MetadataView, situation: Situation, record: MembershipChange | None) -> None:
    """The first that holds, and nothing is appended but its record."""
    decision = decide_metadata(found)
    assert (situation, record) == (decision.situation, decision.record)
    assert decision.leads is (situation.value in LEADING or (situation is Situation.PENDING and found.wanted is REMOVE))


LEADING = ("cancelling", "exiling", "completing", "beginning", "refusing", "gathering", "migrating", "idle")


def test_a_request_begins_a_change() -> None:
    """Its record carries the table and the joiner's store, and counts."""
    present = (*(presence(each) for each in NODES), presence("n4"))
    decision = decide_metadata(view(led(), present=present, wanted=ADD))
    assert Situation.BEGINNING is decision.situation
    assert decision.record is not None
    state, verdict = led().apply(decision.record)
    assert (Verdict.ACCEPTED, "store-n4") == (verdict, state.change and state.change.store)
    assert Situation.GATHERING is decide_metadata(view(state, present=present, wanted=ADD)).situation


@pytest.mark.parametrize(
    ("state", "wanted", "present", "expected"),
    [
        (led(), ADD, (), NodeUnreachable),
        (led(REMOVE), ADD, (), ChangeRunning),
        (led(), REMOVE, (presence("n1"), presence("n2"), presence("n3", changes=False)), ChangesUnsupported),
    ],
)
def test_a_refusal_appends_nothing(
    state: MembershipState, wanted: WantedChange, present: tuple[Presence, ...], expected: type[HeadraceError]
) -> None:
    """The leader answers it, and stays the leader."""
    request = replace(wanted.request, id="r2")
    decision = decide_metadata(view(state, present=present, wanted=WantedChange(request)))
    assert (Situation.REFUSING, None, expected, True) == (
        decision.situation,
        decision.record,
        type(decision.refusal),
        decision.leads,
    )


def test_two_stores_under_one_name_are_seen() -> None:
    """Each of them reports itself, so the newer one does not hide the older."""
    detector, state = FailureDetector(), led()
    assert state.table is not None
    for each in (presence("n4"), replace(presence("n4"), store="clone")):
        detector.observe_presence(1_000, each)
    assert {"store-n4", "clone"} == {each.store for each in nodes_view(state.table, detector).joiners}
    detector.observe_presence(1_000 + OFFLINE_MS, presence("n1"))
    silent_ms = {"n4": OFFLINE_MS}
    assert NodesView(frozenset({"n1"}), {"n1": 3}, [], frozenset({"n1"}), silent_ms) == nodes_view(
        state.table, detector
    )


def test_the_situations_are_documented() -> None:
    """docs/internals/membership.md has them in their order, and no other."""
    table = DOCUMENT.read_text("utf-8").split("| situation | holds if | appends |\n|---|---|---|\n")[1].split("\n\n")[0]
    assert [str(each) for each in Situation] == re.findall(r"^\| (\w[\w ]*) \|", table, re.MULTILINE)
