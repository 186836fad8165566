"""The command `headrace`, also as `python -m headrace`. Nothing is loaded above what Ctrl-C must not find unprepared."""

from __future__ import annotations

import os
import signal

EXIT_INTERRUPTED = 130


def main() -> None:
    """Entry point of the console script."""
    # To load the command line takes a tenth of a second and more: long enough for a Ctrl-C, which is no fault of it.
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_INTERRUPTED))
    from headrace.cli.main import main as run

    try:
        signal.signal(signal.SIGINT, handler)
        run()
    except KeyboardInterrupt:
        # Between these two lines.
        os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
