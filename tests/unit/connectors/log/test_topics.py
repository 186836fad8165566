"""Names of clusters, which are the prefixes of their topics."""

from __future__ import annotations

import pytest

from headrace.connectors.log.topics import ClusterNameInvalid, Topics


@pytest.mark.parametrize("name", ["dlq", "", "A", "a.b", "-a", "ä", "a" * 81])
def test_a_name_that_is_no_prefix_is_refused(name: str) -> None:
    """Among them `dlq`: a replay of dead letters took the forward logs of that cluster for its queue."""
    with pytest.raises(ClusterNameInvalid):
        Topics(name)


@pytest.mark.parametrize("name", ["dlq1", "my-dlq", "0", "a" * 80])
def test_other_names_are_taken(name: str) -> None:
    """Letters, digits, '-' and '_'."""
    assert f"{name}.membership" == Topics(name).membership
