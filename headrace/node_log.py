"""What the log of a node's process shows of its end, for whoever starts nodes on one machine."""

from __future__ import annotations

from pathlib import Path

from headrace.connectors.kafka.broker_process import port_is_free
from headrace.node_process import NodeProcess, port_of

LOG_LINES = 200
"""Lines of a log that a node may write behind the reason of its end."""


def start_line(name: str) -> bytes:
    """The line in a node's log behind which its next process writes."""
    return f"node {name} starts\n".encode()


def reports_removal(directory: Path, name: str) -> bool:
    """Whether a node's newest process ended with the line that reports its removal; see `consumers/node/exile.py`."""
    try:
        lines = (directory / f"{name}.log").read_text(errors="replace").splitlines()[-LOG_LINES:]
    except FileNotFoundError:
        return False
    # The last of these decides: with an empty directory a node that was removed joins again. Logs of earlier builds
    # have no line for a start.
    ends = (f"node {name} starts", f"node {name} serves on ", f"node {name} was removed from cluster ")
    found = [line for line in lines if line.startswith(ends)]
    return bool(found) and found[-1].startswith(ends[-1])


def has_left(directory: Path, node: NodeProcess) -> bool:
    """Whether a node that does not run was removed and has its data. With an empty directory it can join again."""
    data = directory / node.name
    return (node.removed or reports_removal(directory, node.name)) and data.is_dir() and any(data.iterdir())


def log_tail(directory: Path, name: str, lines: int = 3) -> str:
    """The end of a node's log."""
    path = directory / f"{name}.log"
    return " / ".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""


def lost_address(directory: Path, node: NodeProcess) -> bool:
    """Whether a node has ended because another program took its port before it did."""
    # A free port is nobody's until a node listens on it, half a second after it was chosen.
    tail = log_tail(directory, node.name)
    taken = [each for each in (node.http, node.flight) if not port_is_free(port_of(each))]
    return "cannot listen on" in tail and any(each in tail for each in taken)
