"""What `headrace verify` compares, and its exit code."""

from __future__ import annotations

from headrace.consumers.integrity.verify import MemberEvidence, compare, exit_code


def test_verify_names_every_difference_and_who_is_missing() -> None:
    """Chains and segments are compared with the first member; differences exit with 1, missing members with 2."""
    equal = [MemberEvidence(node, "aa", {"s1": "d1"}) for node in ("n1", "n2")]
    assert exit_code([compare("g", 5, 3, equal, [])], 0) == 0
    missing = compare("g", 5, 3, equal, ["n3"])
    assert [2, 0] == [exit_code([missing], allowed) for allowed in (0, 1)]
    different = compare("g", 5, 3, [*equal, MemberEvidence("n3", "bb", {"s2": "d1"})], [])
    assert len(different.differences) == 3
    assert exit_code([different, missing], 1) == 1
    assert exit_code([compare("g", 0, 0, [], ["n1", "n2", "n3"])], 3) == 2
