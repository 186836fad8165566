"""The role decision: the table of docs/internals/replication.md, and invariants over all views."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.replication.election import CLAIM_GRACE_MS, GroupView, MemberView, count_online, decide
from headrace.schemas.messages import Leadership
from headrace.schemas.records import Role

DOCUMENT = Path(__file__).parents[3] / "docs" / "internals" / "replication.md"


def cases() -> list[list[str]]:
    """The rows of the table."""
    lines = DOCUMENT.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| case |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def view_of(in_sync: str, behind: str, offline: str, answers: str, claim: str, me: str) -> GroupView:
    """The view that a row of the table describes."""
    states = {node: (True, True) for node in in_sync.split() if node != "-"}
    states |= {node: (True, False) for node in behind.split() if node != "-"}
    states |= {node: (False, True) for node in offline.split() if node != "-"}
    node, _, condition = me.partition(" ")
    leader, _, how = claim.partition(" ")
    _, _, ahead = how.partition("superseded at ")
    idle_ms = {leader: CLAIM_GRACE_MS if how == "idle" else 0}
    members = tuple(
        MemberView(each, "now", *states[each], 5 if each == ahead else 4, idle_ms=idle_ms.get(each, 0))
        for each in sorted(states)
    )
    return GroupView(
        members=members,
        node=node,
        leader=None if leader == "none" else Leadership(4, leader, "before" if how == "former" else "now"),
        claim_age_ms=500 if how == "fresh" else 60_000,
        log_answers=answers == "yes",
        fenced=condition == "fenced",
        steady_ms=int(condition.split()[1]) * 1_000 if condition.startswith("steady") else 0,
    )


@pytest.mark.parametrize("row", cases(), ids=lambda row: row[0])
def test_the_documented_cases(row: list[str]) -> None:
    """Each row of the documented table is what the function decides."""
    decision = decide(view_of(*row[1:7]))
    assert (row[7], row[8]) == (str(decision.role), "yes" if decision.claim else "no")


@pytest.mark.parametrize("row", cases(), ids=lambda row: row[0])
def test_a_decision_has_the_leadership_to_append_under(row: list[str]) -> None:
    """A leader's own accepted claim; for a claim the next epoch under the own name; else none."""
    view = view_of(*row[1:7])
    decision = decide(view)
    own = (view.node, view.me.incarnation)
    if decision.role is Role.LEADER:
        assert decision.leadership == view.leader
    elif decision.claim:
        assert decision.leadership == Leadership(view.me.epoch + 1, *own)
    assert (decision.leadership is not None) == (decision.claim or decision.role is Role.LEADER)
    assert decision.leadership is None or (decision.leadership.node, decision.leadership.incarnation) == own


def test_the_table_is_found() -> None:
    """The document still has its table."""
    assert len(cases()) >= 25


MEMBERS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=5)


def views(states: list[tuple[bool, bool]], leader: int | None, fresh: bool, answers: bool) -> list[GroupView]:
    """The views of all members with the same heartbeats: no member is fenced, and each is alive in its own view."""
    names = [f"n{number}" for number in range(len(states))]
    claim = Leadership(1, names[leader % len(names)], "now") if leader is not None else None
    members = tuple(
        MemberView(name, "now", alive, eligible, 1) for name, (alive, eligible) in zip(names, states, strict=True)
    )
    return [
        GroupView(members, name, claim, 100 if fresh else 60_000, answers, False, 0)
        for name, (alive, _) in zip(names, states, strict=True)
        if alive
    ]


@given(states=MEMBERS, leader=st.one_of(st.none(), st.integers(0, 4)), fresh=st.booleans(), answers=st.booleans())
def test_members_with_equal_views_never_both_lead_or_claim(
    states: list[tuple[bool, bool]], leader: int | None, fresh: bool, answers: bool
) -> None:
    """From equal views at most one node leads and at most one claims, and none claims while another leads."""
    decisions = [decide(view) for view in views(states, leader, fresh, answers)]
    leading = sum(decision.role is Role.LEADER for decision in decisions)
    claiming = sum(decision.claim for decision in decisions)
    assert leading + claiming <= 1


@given(states=MEMBERS, leader=st.one_of(st.none(), st.integers(0, 4)), answers=st.booleans())
def test_a_majority_in_sync_always_finds_a_leader(
    states: list[tuple[bool, bool]], leader: int | None, answers: bool
) -> None:
    """Where a majority is online and one member is in sync, a member leads or claims, or a live leader exists."""
    found = views(states, leader, False, answers)
    if not found or not any(alive and eligible for alive, eligible in states):
        return
    online, members = count_online(found[0])
    decisions = [decide(view) for view in found]
    acting = any(decision.role is Role.LEADER or decision.claim for decision in decisions)
    assert acting == (2 * online > members)


def test_a_leader_of_an_earlier_run_leads_no_more() -> None:
    """A node that restarts within the grace period of its claim: a record under the former run would be void."""
    members = tuple(MemberView(node, "now", True, True, 4) for node in ("n1", "n2", "n3"))
    decision = decide(GroupView(members, "n1", Leadership(4, "n1", "before"), 500, True, False, 0))
    assert (Role.FOLLOWER, None) == (decision.role, decision.leadership)
