"""Which member of a group that has lost its log decides where it continues."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.admin_client import most_advanced, unaware_of_loss
from headrace.connectors.log.port import TopicState
from headrace.consumers.replication.election import FENCED
from tests.unit.statuses import STATUS

LOG = TopicState("t", 0, 40)
BEST = replace(STATUS, node="n1", http="http://n1", log_lost=True, eligible=False, version=20)
OTHER = replace(BEST, node="n2", log_lost=False, version=30, durable_offset=35, reason="")


def test_the_member_that_noticed_the_loss_and_has_most_decides() -> None:
    """One that reads the rest of a log that was cut may count more, and holds nothing that was lost."""
    second = replace(BEST, node="n3", version=19)
    assert BEST == most_advanced([OTHER, second, BEST])
    assert OTHER == most_advanced([OTHER]), "a log that nobody has lost and nobody can continue"
    assert [] == unaware_of_loss([OTHER, second, BEST], BEST, LOG)


@pytest.mark.parametrize(
    "changed", [{"topic_id": "before"}, {"durable_offset": 40}, {"reason": FENCED}], ids=["topic", "end", "fenced"]
)
def test_a_member_that_cannot_have_noticed_the_loss_may_hold_more(changed: dict[str, object]) -> None:
    """It follows another topic, has read more than there is, or reads nothing; one that holds less does not matter."""
    unaware = replace(OTHER, **changed)
    assert [unaware] == unaware_of_loss([BEST, unaware], BEST, LOG)
    assert [] == unaware_of_loss([BEST, replace(unaware, version=20)], BEST, LOG)
    assert [] == unaware_of_loss([replace(BEST, log_lost=False), unaware], replace(BEST, log_lost=False), LOG)
