"""Deterministic data sets in the manner of TSBS."""
