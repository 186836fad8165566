"""Directories in memory."""

from __future__ import annotations

from tests.memory_directory import tmp_path as tmp_path
