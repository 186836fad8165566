"""What nodes agree on when a cluster is born."""

from __future__ import annotations

from pydantic import Field

from headrace.consumers.membership import SLOTS_DEFAULT, SLOTS_MAX
from headrace.schemas.durations import DURATION_S_MAX
from headrace.schemas.settings import SettingsModel

COPIES_MAX = 32_767
"""Kafka counts the copies of a topic in 16 bits."""


class ClusterSettings(SettingsModel):
    """Which cluster, and where its Kafka is."""

    name: str = Field(default="headrace", description="name of the cluster, the prefix of its topics")
    bootstrap: str = Field(
        default="127.0.0.1:9092", description="Kafka's bootstrap servers, host:port separated by commas"
    )
    slots: int = Field(
        default=SLOTS_DEFAULT, ge=1, le=SLOTS_MAX, description="slots of a new cluster; they cannot be changed later"
    )
    topic_replication_factor: int = Field(
        default=0,
        ge=0,
        le=COPIES_MAX,
        description="copies that Kafka keeps of each new topic; 0 = the broker's default",
    )
    topic_min_insync_replicas: int = Field(
        default=0,
        ge=0,
        le=COPIES_MAX,
        description="copies that must have a record before it is confirmed; 0 = the broker's default",
    )
    ended_log_kept_s: float = Field(
        default=10.0,
        ge=0,
        le=DURATION_S_MAX,
        description="how long the log of a removed group is kept, closed, for streams that read it",
    )
