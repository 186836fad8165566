"""Errors of the embedded broker, and the error behind the output of a broker that exited while starting."""

from __future__ import annotations

from pathlib import Path

from headrace.connectors.kafka.broker_settings import HEAP_MB, LOG_FILE
from headrace.connectors.kafka.java import OPTIONS_VARIABLE
from headrace.schemas.errors import HeadraceError


class BrokerAlreadyRunning(HeadraceError):
    """A broker runs on this directory, or another process is starting one there."""


class BrokerPortInUse(HeadraceError):
    """Another process listens on a port of this broker."""


class BrokerDirectoryUnusable(HeadraceError):
    """The data directory cannot be created or written."""


class BrokerLost(HeadraceError):
    """The directory of a cluster's broker is gone, and with it every log."""

    @classmethod
    def at(cls, directory: Path, cluster: str) -> BrokerLost:
        """With what can be done."""
        return cls(
            f"Kafka's directory {directory} is gone, and with it the logs of cluster {cluster}",
            action="restore it; or begin another cluster with --dir, the data of the nodes is kept",
        )


class BrokerStartFailed(HeadraceError):
    """The broker's process ended, or did not answer in time."""


def explain_exit(output: str, directory: Path) -> HeadraceError:
    """Why the broker of `directory` exited while starting, from its output and its log."""
    if "Address already in use" in output or "java.net.BindException" in output:
        return BrokerPortInUse(
            "a port of the broker is in use by another process", action="name a free one with --port"
        )
    if "No space left on device" in output:
        return BrokerDirectoryUnusable(
            f"the disk of {directory} is full", action="free space, or name another directory"
        )
    if "Could not reserve enough space" in output or "Cannot allocate memory" in output:
        return BrokerStartFailed(f"not enough memory for a broker with {HEAP_MB} MB heap", action="free memory")
    before, refused, _ = output.partition("Error: Could not create the Java Virtual Machine")
    if refused:
        # Java prints its reason in the line above this one.
        reason = before.strip().rpartition("\n")[2]
        return BrokerStartFailed(f"Java does not start: {reason}", action=f"look at {OPTIONS_VARIABLE}")
    lines = [line.strip() for line in output.splitlines()]
    # Kafka logs the cause first; what follows are the services that it stops because of it.
    cause = [line for line in lines if " ERROR " in line or " FATAL " in line or "Exception" in line] or lines[-1:]
    return BrokerStartFailed(
        f"the broker ended while starting: {cause[0][:300] if cause else 'no output'}",
        action=f"look into {directory / LOG_FILE}",
    )
