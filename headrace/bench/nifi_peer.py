"""NiFi's two write-ahead logs as peers of `headrace bench wal`, in a process of Java for each leg."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from headrace.connectors.kafka.jars import resolve_jars
from headrace.connectors.kafka.java import find_java
from headrace.schemas.errors import HeadraceError

SOURCE = Path(__file__).parent / "peers" / "NifiWal.java"
SHOWN = 500
"""How much of Java's complaint is shown."""


@dataclass(frozen=True, slots=True)
class NifiPeer:
    """The program of `SOURCE`, on NiFi's library."""

    java: str
    class_path: str

    @classmethod
    def found(cls) -> NifiPeer:
        """Java and NiFi's archives on this machine. Raises HeadraceError."""
        return cls(str(find_java()), os.pathsep.join(str(jar) for jar in resolve_jars("bench").nifi))

    def compiled(self, classes: Path) -> NifiPeer:
        """The program compiled into a directory.

        Without a JDK, `java` compiles the source at every start: slower to start, and the same figures.
        """
        compiler = Path(self.java).with_name("javac")
        if not compiler.exists():
            return self
        self._run([str(compiler), "-nowarn", "-cp", self.class_path, "-d", str(classes), str(SOURCE)])
        return NifiPeer(self.java, os.pathsep.join([str(classes), self.class_path]))

    def measured(self, kind: str, directory: Path, *arguments: str) -> dict[str, float]:
        """What a leg of the log `sequential` or `partitioned` in a directory prints."""
        program = "NifiWal" if (Path(self.class_path.partition(os.pathsep)[0]) / "NifiWal.class").exists() else SOURCE
        words = [self.java, "-Xmx2g", "-cp", self.class_path, str(program), kind, str(directory), *arguments]
        result: dict[str, float] = json.loads(self._run(words))
        return result

    def _run(self, words: list[str]) -> str:
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise HeadraceError(f"the NiFi peer failed: {done.stderr.strip()[-SHOWN:]}")
        return done.stdout
