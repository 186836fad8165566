"""Sync from an edge store to a centre; docs/internals/sync.md has the rules."""
