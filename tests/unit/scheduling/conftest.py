"""Keeps the log's errors of drivers that fail on purpose out of the output."""

from __future__ import annotations

from tests.quiet_log import quiet as quiet
