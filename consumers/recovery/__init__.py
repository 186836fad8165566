"""Recovery of a replica: what is missing, where it comes from, and the copy of another member's files."""
