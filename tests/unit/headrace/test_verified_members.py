"""Which members `headrace verify` compares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace import admin_client
from headrace.admin_client import AdminClient
from headrace.connectors.log.port import TopicState
from headrace.schemas.records import Status
from tests.unit.statuses import STATUS

END = 42
PASSED = replace(STATUS, node="n1", http="http://n1", offset=41, position=42, durable_offset=41)


class FakeView:
    """Groups `a` and `b` of three members each, of which n3 is down."""

    groups = ("a", "b")

    def __init__(self, *live: Status) -> None:
        self._live = list(live)

    def members(self, _group: str) -> tuple[str, ...]:
        """See LiveMembers."""
        return ("n1", "n2", "n3")

    def live(self, _group: str) -> list[Status]:
        """See LiveMembers."""
        return self._live

    def log_state(self, _group: str) -> TopicState:
        """See LiveMembers."""
        return TopicState("t", 0, END)

    def follow(self, _timeout_s: float) -> None:
        """See LiveMembers."""

    def unread_fault(self) -> str:
        """See LiveMembers."""
        return ""


@pytest.mark.parametrize(
    ("changed", "missing"),
    [
        ({"offset": 50, "position": 61, "durable_offset": 60}, ("n3",)),
        ({"offset": 39, "position": 42, "durable_offset": 39}, ("n3",)),
        ({"offset": 9, "position": 61, "durable_offset": 60}, ("n2", "n3")),
    ],
    ids=["busy", "markers", "late"],
)
def test_a_member_that_is_down_takes_no_other_one_out(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], missing: tuple[str, ...]
) -> None:
    """It uses up the time of all groups. One look at the others is enough, also where a writer keeps them busy.

    The last offsets may be markers of transactions. Who has not applied all of it is late.
    """
    evidence: dict[str, Any] = {"chain": "c", "digests": {}, "stored_version": 1}
    monkeypatch.setattr(admin_client, "call_node", lambda *_, **__: evidence)
    view: Any = FakeView(PASSED, replace(PASSED, node="n2", http="http://n2", **changed))
    verdicts = AdminClient(view).verify(0.0, lambda _line: None)
    assert [missing] * 2 == [verdict.missing for verdict in verdicts]
