"""Directories in memory, and no warnings of simulated crashes."""

from __future__ import annotations

from tests.memory_directory import tmp_path as tmp_path
from tests.quiet_log import quiet as quiet
