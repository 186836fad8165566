"""The topic that a checkpoint's offsets belong to.

Spark compares offsets only. A raw topic that was deleted and created again, and has more messages than were read,
would be continued behind its first ones.
"""

from __future__ import annotations

import json
from pathlib import Path

from headrace.connectors.files import write_atomically
from headrace.pipeline.checkpoint import OWN_FOLDER, local_folder
from headrace.pipeline.failures import raw_data_lost

TOPIC_FILE = "topic.json"


class RawTopic:
    """The raw topic of one run; a local checkpoint remembers its id over restarts."""

    def __init__(self, topic: str, checkpoint: str) -> None:
        folder = local_folder(checkpoint)
        self._path: Path | None = folder / OWN_FOLDER / TOPIC_FILE if folder is not None else None
        self.topic = topic
        self._topic_id = ""
        if self._path is not None and self._path.exists():
            self._topic_id = str(json.loads(self._path.read_text())["topic_id"])

    @property
    def is_known(self) -> bool:
        """Whether a run with this checkpoint has read the topic."""
        return bool(self._topic_id)

    def check(self, topic_id: str) -> None:
        """Compare with the id that the topic has now. Raises RawDataLost."""
        if self._topic_id and topic_id != self._topic_id:
            raise raw_data_lost(self.topic)
        if not self._topic_id and self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps({"topic": self.topic, "topic_id": topic_id}) + "\n")
        self._topic_id = topic_id
