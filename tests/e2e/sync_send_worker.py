"""A sender that kills itself the first time it reaches a step, run as a process by `test_sync_send.py`."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from headrace.consumers.sync.send_loop import SendLoop, SendOptions
from headrace.consumers.sync.send_settings import SendSettings


class Watcher:
    """See Watcher."""

    def stopping(self) -> bool:
        """Never."""
        return False

    def note(self, line: str) -> None:
        """For a test that fails."""
        sys.stderr.write(f"{line}\n")

    def progress(self, sent_bytes: int, total_bytes: int) -> None:
        """Nobody looks."""


def main(node: str, bootstrap: str, cluster: str, directory: str, step: str) -> None:
    """One round."""

    def on_step(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    settings = SendSettings(seal_age_s=0.0)
    options = SendOptions(node, bootstrap, cluster, Path(directory), settings, once=True)
    print(json.dumps(SendLoop(options, Watcher(), on_step).run()))


if __name__ == "__main__":
    main(*sys.argv[1:])
