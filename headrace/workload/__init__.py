"""Deterministic data sets in the manner of TSBS."""

from headrace.workload.workload import DEFAULT_START_NS, Workload, WorkloadInvalid, cpu, iot

__all__ = ["DEFAULT_START_NS", "Workload", "WorkloadInvalid", "cpu", "iot"]
