"""Keeps the log's warnings about simulated crashes out of the output."""

from __future__ import annotations

from tests.quiet_log import quiet as quiet
