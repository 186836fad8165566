"""One node: its parts put together, its readiness, and the rebuild of one that is stopped."""
