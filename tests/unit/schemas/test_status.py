"""The status of a group at a node, encoded for the status topic."""

from __future__ import annotations

from headrace.schemas.records import decode_status, encode_status
from tests.unit.statuses import STATUS


def test_a_status_survives_a_round_trip() -> None:
    """Every field survives the status topic."""
    assert STATUS == decode_status(encode_status(STATUS))
