"""Everything one node is started with; the sections `cluster`, `node`, `store`, `query`, `write` and `kafka` of a
user's settings are these objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from headrace.consumers.membership.settings import ClusterSettings
from headrace.consumers.query.settings import QuerySettings
from headrace.consumers.replication.settings import ReplicationLimits, SealPolicy
from headrace.consumers.store.settings import StoreSettings
from headrace.consumers.sync.settings import SyncSettings
from headrace.producers.settings import WriteSettings
from headrace.schemas.settings import MEMBERS_MAX, WAIT_S_MAX, SettingsModel

IDENTITY_FILE = "node.json"
"""In a data directory: whose it is."""


def _lower_case(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


LogKind = Annotated[Literal["kafka", "local"], BeforeValidator(_lower_case)]


class NodeSettings(SettingsModel):
    """One node, and how to reach one."""

    id: str = Field(default="", description="name of this node")
    nodes: tuple[str, ...] = Field(
        default=(),
        description="names of all nodes of a new cluster, this one among them; ignored once it exists",
    )
    replication: int = Field(
        default=0, ge=0, le=MEMBERS_MAX, description="nodes that hold each row of a new cluster; 0 = all of them"
    )
    http: str = Field(default="127.0.0.1:0", description="address of this node's HTTP surface; port 0 takes a free one")
    advertise: str = Field(
        default="", description="HOST:PORT at which others reach this node's HTTP surface; empty = as in node.http"
    )
    flight: str = Field(
        default="", description="address of this node's Arrow Flight surface; port 0 takes a free one; empty = none"
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(), description="further names of this node in requests, such as that of a proxy"
    )
    data_dir: str = Field(default="", description="directory of this node's data")
    log: LogKind = Field(
        default="kafka", description="kafka, or local: a cluster of this node alone, whose log is in its data_dir"
    )
    startup_timeout_s: float = Field(
        default=60.0, ge=0, le=WAIT_S_MAX, description="how long a starting node waits for Kafka"
    )
    url: str = Field(
        default="", description="node to ask, HOST:PORT or a URL such as http://127.0.0.1:8080; empty = any live one"
    )

    @property
    def members(self) -> tuple[str, ...]:
        """Names of all nodes of the cluster; a node that names none is alone."""
        return self.nodes or (self.id,)

    @property
    def replication_factor(self) -> int:
        """How many nodes hold each row."""
        return self.replication or len(self.members)

    @property
    def data_directory(self) -> Path:
        """Where the data of this node is."""
        return Path(self.data_dir)

    @property
    def has_data(self) -> bool:
        """Whether a node was born in this directory."""
        return (self.data_directory / IDENTITY_FILE).exists()

    @property
    def has_local_log(self) -> bool:
        """Whether it needs no Kafka."""
        return self.log == "local"


# Fields come in the order of the bases from right to left, which is the order of `headrace config show`.
class StoreSection(StoreSettings, ReplicationLimits, SealPolicy):
    """The section `store`: when a node seals, and what it may use from the log to its files.

    Each room sees it as its own class.
    """


class ServerSettings(SettingsModel):
    """Everything one node is started with. `kafka` maps librdkafka's names to texts, verbatim."""

    cluster: ClusterSettings = ClusterSettings()
    node: NodeSettings = NodeSettings()
    store: StoreSection = StoreSection()
    query: QuerySettings = QuerySettings()
    write: WriteSettings = WriteSettings()
    sync: SyncSettings = SyncSettings()
    kafka: Mapping[str, str] = {}
