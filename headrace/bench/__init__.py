"""Benchmarks against peers and limits."""
