"""Which member is wrong when published samples differ: the pure decision."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.integrity.divergence import ChainSamples, Dispute, Finding, Kind
from headrace.schemas.records import Status
from tests.unit.statuses import STATUS

A, B, C = (bytes([number]) * 16 for number in (1, 2, 3))


def status_of(node: str, chain: bytes = A, version: int = 256, **others: object) -> Status:
    """The status of a member with its chain at a version, and no files."""
    return replace(STATUS, node=node, chain_version=version, chain=chain, stored_version=-1, **others)  # type: ignore[arg-type]


def dispute_of(*statuses: Status, mine: bytes | None = A, node: str = "n1") -> Dispute | None:
    """The dispute that n1 finds after these statuses, with its own chain at every version."""
    samples = ChainSamples(node)
    for status in statuses:
        samples.observe(status)
    return samples.dispute(lambda _version: mine)


def test_equal_samples_are_no_dispute() -> None:
    """Equal samples, samples of different versions and samples without a local chain are no dispute."""
    assert dispute_of(status_of("n1"), status_of("n2"), status_of("n3", version=0)) is None
    assert dispute_of(status_of("n2", B), mine=None) is None


def test_a_majority_decides_who_is_wrong() -> None:
    """Two of three are right about the third.

    One against one is not decided; a node outside the majority is wrong.
    """
    two_to_one = dispute_of(status_of("n2", B), status_of("n3", B))
    assert two_to_one is not None
    assert Finding.WRONG is two_to_one.judge(3, None)
    assert frozenset({"n2", "n3"}) == two_to_one.right(3, None)
    assert "n1 against n2 n3" in str(two_to_one)
    own_majority = dispute_of(status_of("n2", A), status_of("n3", B))
    assert own_majority is not None
    assert Finding.RIGHT is own_majority.judge(3, None)
    alone = dispute_of(status_of("n2", B))
    assert alone is not None
    assert [Finding.UNDECIDED, Finding.UNDECIDED] == [alone.judge(members, None) for members in (2, 3)]


def test_the_log_outranks_a_majority() -> None:
    """One member with the chain of the log is right against any number of others."""
    dispute = dispute_of(status_of("n2", B), status_of("n3", B))
    assert dispute is not None
    assert Finding.RIGHT is dispute.judge(3, A)
    assert frozenset({"n1"}) == dispute.right(3, A)
    assert [Finding.WRONG, Finding.WRONG] == [dispute.judge(3, truth) for truth in (B, C)]
    assert frozenset() == dispute.right(3, C)


def test_files_are_compared_at_the_same_version_only() -> None:
    """Equal records and other files are a dispute of their own kind; files at different versions are not compared."""
    samples = ChainSamples("n1")
    samples.observe(replace(STATUS, node="n1", stored_version=9, content=A))
    samples.observe(replace(STATUS, node="n2", stored_version=8, content=B))
    assert samples.dispute(lambda _version: None) is None
    samples.observe(replace(STATUS, node="n2", stored_version=9, content=B))
    dispute = samples.dispute(lambda _version: None)
    assert dispute is not None
    assert (Kind.FILES, 9) == (dispute.kind, dispute.version)


def test_other_data_voids_earlier_samples() -> None:
    """A restart, a lower version or another sample of the same version means that the member has other data."""
    samples = ChainSamples("n1")
    samples.observe(status_of("n2", B, 512))
    assert samples.dispute(lambda _version: A) is not None
    for other in (status_of("n2", A, 768, incarnation="later"), status_of("n2", A, 256), status_of("n2", A, 512)):
        after = ChainSamples("n1")
        after.observe(status_of("n2", B, 512))
        after.observe(other)
        assert after.dispute(lambda _version: A) is None


def test_a_decided_dispute_is_not_raised_again() -> None:
    """A member that is right continues; another wrong sample of the same member is a new dispute."""
    samples = ChainSamples("n1")
    samples.observe(status_of("n2", B))
    dispute = samples.dispute(lambda _version: A)
    assert dispute is not None
    samples.dismiss(dispute)
    assert samples.dispute(lambda _version: A) is None
    samples.observe(status_of("n2", C, 512))
    assert samples.dispute(lambda _version: A) is not None


@given(st.lists(st.sampled_from([A, B, C]), min_size=2, max_size=5), st.sampled_from([None, A, B]))
def test_the_findings_of_all_members_are_consistent(published: list[bytes], truth: bytes | None) -> None:
    """For any samples no two members with different data find themselves right, and every trusted member is right."""
    nodes = [f"n{number}" for number in range(len(published))]
    if len(set(published)) == 1:
        return
    disputes = {node: Dispute(Kind.RECORDS, 256, node, dict(zip(nodes, published, strict=True))) for node in nodes}
    right = {node for node, dispute in disputes.items() if dispute.judge(len(nodes), truth) is Finding.RIGHT}
    assert len({published[nodes.index(node)] for node in right}) <= 1
    assert all(dispute.right(len(nodes), truth) == right for dispute in disputes.values())


def test_data_that_is_known_to_be_wrong_disputes_nothing() -> None:
    """The schedule: of two members one waits for files, and its samples would keep the other from being a source."""
    samples = ChainSamples("n1")
    for name, chain in (("n1", b"a"), ("n2", b"b")):
        samples.observe(replace(STATUS, node=name, incarnation=name, durable_offset=9, chain_version=8, chain=chain))
    assert samples.dispute(lambda _version: b"a") is not None
    samples.observe(replace(STATUS, node="n2", incarnation="n2", durable_offset=-1, chain_version=8, chain=b"b"))
    assert samples.dispute(lambda _version: b"a") is None
