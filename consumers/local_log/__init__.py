"""The log of a node without Kafka: topics in a directory, on the write-ahead log."""

from headrace.consumers.local_log.local_log import LocalLog

__all__ = ["LocalLog"]
