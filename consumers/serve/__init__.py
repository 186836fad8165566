"""HTTP surfaces of a node."""
