"""The topic that a checkpoint's offsets belong to.

Spark compares offsets only. A raw topic that was deleted and created again, and has more messages than were read,
would be continued behind its first ones.
"""

from __future__ import annotations

from headrace.pipeline.checkpoint_file import CheckpointFile
from headrace.pipeline.failures import raw_data_lost

TOPIC_FILE = "topic.json"


class RawTopic:
    """The raw topic of one run; a local checkpoint remembers its id over restarts."""

    def __init__(self, topic: str, checkpoint: str) -> None:
        """Raises CheckpointDamaged."""
        self._file = CheckpointFile.of(checkpoint, TOPIC_FILE)
        self.topic = topic
        self._topic_id = self._file.read(lambda found: str(found["topic_id"])) or ""

    @property
    def is_known(self) -> bool:
        """Whether a run with this checkpoint has read the topic."""
        return bool(self._topic_id)

    def check(self, topic_id: str) -> None:
        """Compare with the id that the topic has now. Raises RawDataLost."""
        if self._topic_id and topic_id != self._topic_id:
            raise raw_data_lost(self.topic)
        if not self._topic_id:
            self._file.write({"topic": self.topic, "topic_id": topic_id})
        self._topic_id = topic_id
