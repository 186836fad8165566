"""Whether replicas hold equal data, and whether the bytes on disk are those that were sealed."""
