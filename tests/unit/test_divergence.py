"""Who is wrong when members show different things: the pure part."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from consumers.replication.divergence import Dispute, Finding, Kind, Marks
from schemas.records import Status
from tests.unit.test_replication_parts import STATUS

A, B, C = (bytes([number]) * 16 for number in (1, 2, 3))


def shows(node: str, chain: bytes = A, version: int = 256, **others: object) -> Status:
    """What a member says: its chain at a version, and no files."""
    return replace(STATUS, node=node, chain_version=version, chain=chain, stored_version=-1, **others)  # type: ignore[arg-type]


def dispute_of(*statuses: Status, mine: bytes | None = A, node: str = "n1") -> Dispute | None:
    """What n1 finds after hearing these, with its own chain wherever it is asked."""
    marks = Marks(node)
    for status in statuses:
        marks.hear(status)
    return marks.dispute(lambda _version: mine)


def test_equal_marks_are_no_dispute() -> None:
    """Members that show the same, or nothing comparable, or what this node cannot compare, agree."""
    assert dispute_of(shows("n1"), shows("n2"), shows("n3", version=0)) is None
    assert dispute_of(shows("n2", B), mine=None) is None


def test_a_majority_says_who_is_wrong() -> None:
    """Two of three are right about the third; one against one is not decided; a node in no camp of the majority is wrong."""
    two_to_one = dispute_of(shows("n2", B), shows("n3", B))
    assert two_to_one is not None
    assert Finding.WRONG is two_to_one.judge(3, None)
    assert frozenset({"n2", "n3"}) == two_to_one.right(3, None)
    assert "n1 against n2 n3" in str(two_to_one)
    with_me = dispute_of(shows("n2", A), shows("n3", B))
    assert with_me is not None
    assert Finding.RIGHT is with_me.judge(3, None)
    alone = dispute_of(shows("n2", B))
    assert alone is not None
    assert [Finding.UNDECIDED, Finding.UNDECIDED] == [alone.judge(members, None) for members in (2, 3)]


def test_the_log_stands_above_a_majority() -> None:
    """One member that has what the log says is right against any number of others."""
    dispute = dispute_of(shows("n2", B), shows("n3", B))
    assert dispute is not None
    assert Finding.RIGHT is dispute.judge(3, A)
    assert frozenset({"n1"}) == dispute.right(3, A)
    assert [Finding.WRONG, Finding.WRONG] == [dispute.judge(3, truth) for truth in (B, C)]
    assert frozenset() == dispute.right(3, C)


def test_files_are_compared_at_the_same_version_only() -> None:
    """Equal records and other files are a dispute of their own kind; files at different versions say nothing."""
    marks = Marks("n1")
    marks.hear(replace(STATUS, node="n1", stored_version=9, content=A))
    marks.hear(replace(STATUS, node="n2", stored_version=8, content=B))
    assert marks.dispute(lambda _version: None) is None
    marks.hear(replace(STATUS, node="n2", stored_version=9, content=B))
    dispute = marks.dispute(lambda _version: None)
    assert dispute is not None
    assert (Kind.FILES, 9) == (dispute.kind, dispute.version)


def test_other_data_voids_what_was_shown_before() -> None:
    """A member that restarts, goes back, or shows something else for the same version has got other data."""
    marks = Marks("n1")
    marks.hear(shows("n2", B, 512))
    assert marks.dispute(lambda _version: A) is not None
    for other in (shows("n2", A, 768, incarnation="later"), shows("n2", A, 256), shows("n2", A, 512)):
        after = Marks("n1")
        after.hear(shows("n2", B, 512))
        after.hear(other)
        assert after.dispute(lambda _version: A) is None


def test_a_settled_dispute_is_not_asked_about_again() -> None:
    """Who is right goes on; another wrong mark of the same member is a new dispute."""
    marks = Marks("n1")
    marks.hear(shows("n2", B))
    dispute = marks.dispute(lambda _version: A)
    assert dispute is not None
    marks.settle(dispute)
    assert marks.dispute(lambda _version: A) is None
    marks.hear(shows("n2", C, 512))
    assert marks.dispute(lambda _version: A) is not None


@given(st.lists(st.sampled_from([A, B, C]), min_size=2, max_size=5), st.sampled_from([None, A, B]))
def test_all_members_come_to_findings_that_fit(shown: list[bytes], truth: bytes | None) -> None:
    """Whatever they show: no two members with different data both find themselves right, and whoever is trusted is right."""
    nodes = [f"n{number}" for number in range(len(shown))]
    if len(set(shown)) == 1:
        return
    disputes = {node: Dispute(Kind.RECORDS, 256, node, dict(zip(nodes, shown, strict=True))) for node in nodes}
    right = {node for node, dispute in disputes.items() if dispute.judge(len(nodes), truth) is Finding.RIGHT}
    assert len({shown[nodes.index(node)] for node in right}) <= 1
    assert all(dispute.right(len(nodes), truth) == right for dispute in disputes.values())
