"""Addresses of nodes and of Kafka: what none of them has."""

from __future__ import annotations

USER_IN_ADDRESS = "has a user or a password in it"
"""Behind the name of what was given. The address is left out of the message, which ends up in logs."""


def has_user(address: str) -> bool:
    """Whether an address is like `http://user:password@host`. No host and no port has that sign."""
    return "@" in address
