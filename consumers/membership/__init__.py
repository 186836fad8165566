"""Who belongs to a cluster, which slots its groups own, and the schemas of its tables."""

SLOTS_DEFAULT = 10_000
"""Slots of a new cluster that sets no number. Here, since settings load no engine and Spark workers no settings."""
SLOTS_MAX = 1 << 20
"""Slots that a cluster may have: as many as one record names."""
