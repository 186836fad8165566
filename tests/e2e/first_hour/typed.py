"""`typed.py COLUMNS DIALOG COMMAND…`: a command in a pseudo-terminal, with what a person types into it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.terminal import terminal


def main(columns: str, dialog: str, *command: str) -> int:
    """Type the `> KEYS` of a dialog, wait for its `< PATTERN`, and print everything that was shown."""
    with terminal(*command, columns=int(columns)) as running:
        try:
            for line in filter(None, dialog.splitlines()):
                if line.startswith("> "):
                    running.type(line[2:].encode().decode("unicode_escape"))
                else:
                    running.expect(line.removeprefix("< "))
        except AssertionError as error:
            print(f"{running.text}\n{error}")
            return 99
        code, text = running.wait()
    print(*filter(str.strip, text.splitlines()), sep="\n")
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
