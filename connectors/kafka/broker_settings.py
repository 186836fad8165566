"""Files and settings of the embedded broker: the content of its data directory, and the configuration of
Kafka and its JVM.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from headrace.connectors.kafka.storage_format import kafka_identifier
from headrace.schemas.errors import HeadraceError

HOST = "127.0.0.1"
IDENTITY_FORMAT = 1
IDENTITY_FILE = "headrace-broker.json"
LOCK_FILE = "broker.lock"
LOG_FILE = "broker.log"
OUTPUT_FILE = "broker.out"
PID_FILE = "broker.pid"
PROPERTIES_FILE = "server.properties"
LOGGING_FILE = "log4j2.properties"
DATA_FOLDER = "data"

LOGGING_OPTION = f"-Dlog4j2.configurationFile={LOGGING_FILE}"

HEAP_MB = 512
MESSAGE_BYTES_MAX = 96 * 1024 * 1024
LOG_FILE_MB_MAX = 20


class NotABrokerDirectory(HeadraceError):
    """The directory holds foreign files, or those of a broker that this build cannot read."""


@dataclass(frozen=True)
class BrokerIdentity:
    """What survives restarts of one broker directory.

    `proxied` maps an advertised port to the port of the listener behind it. `tls` and `scram`: clients encrypt, and
    log in with a password.
    """

    cluster_id: str
    port: int
    proxied: Mapping[int, int] = field(default_factory=dict)
    format: int = IDENTITY_FORMAT
    tls: bool = False
    scram: bool = False

    @property
    def is_secured(self) -> bool:
        """Whether clients need settings of their own."""
        return self.tls or self.scram

    @property
    def protocol(self) -> str:
        """Kafka's `security.protocol` of clients."""
        transport = "SSL" if self.tls else "PLAINTEXT"
        return f"SASL_{transport}" if self.scram else transport

    @property
    def listeners(self) -> list[str]:
        """The names of the listeners of clients, the main one first."""
        return ["PLAIN", *(f"PROXY{number}" for number in range(1, len(self.proxied) + 1))]

    @classmethod
    def new(cls, port: int) -> BrokerIdentity:
        return cls(cluster_id=kafka_identifier(), port=port)


def load_identity(directory: Path) -> BrokerIdentity | None:
    """Identity of the broker in `directory`, None when there is none yet.

    Raises `NotABrokerDirectory` for a foreign folder.
    """
    path = directory / IDENTITY_FILE
    try:
        document = json.loads(path.read_bytes())
        identity = BrokerIdentity(
            cluster_id=str(document["cluster_id"]),
            port=int(document["port"]),
            proxied={int(advertised): int(bound) for advertised, bound in document.get("proxied", {}).items()},
            format=int(document["format"]),
            tls=bool(document.get("tls", False)),
            scram=bool(document.get("scram", False)),
        )
    except (FileNotFoundError, NotADirectoryError):
        if directory.is_dir() and any(entry.name != LOCK_FILE for entry in directory.iterdir()):
            raise NotABrokerDirectory(
                f"{directory} is not empty and not the data directory of a broker", action="name another directory"
            ) from None
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise NotABrokerDirectory(
            f"{path} is damaged: {error!r}", action="restore it, or start with another directory"
        ) from error
    if identity.format > IDENTITY_FORMAT:
        raise NotABrokerDirectory(
            f"{directory} was written by a newer Headrace (format {identity.format}, this build reads {IDENTITY_FORMAT})",
            action="use that version",
        )
    return identity


def save_identity(directory: Path, identity: BrokerIdentity) -> None:
    """Write the identity so that a crash leaves the old one or the new one."""
    replace_file(directory / IDENTITY_FILE, json.dumps(asdict(identity)) + "\n")


def replace_file(path: Path, content: str, mode: int = 0o644) -> None:
    """Write `content` beside `path`, sync it, and rename it over `path`."""
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    with open(partial, "w", opener=lambda name, flags: os.open(name, flags, mode)) as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    partial.replace(path)


def server_properties(identity: BrokerIdentity, controller_port: int, extra: Mapping[str, str]) -> dict[str, str]:
    """Kafka's settings of a single node on loopback; `extra` wins over all others."""
    listeners = {"PLAIN": (identity.port, identity.port), "CONTROLLER": (controller_port, controller_port)}
    listeners |= {
        f"PROXY{number}": (bound, advertised) for number, (advertised, bound) in enumerate(identity.proxied.items(), 1)
    }
    bound = [f"{name}://{HOST}:{port}" for name, (port, _) in listeners.items()]
    advertised = [f"{name}://{HOST}:{port}" for name, (_, port) in listeners.items() if name != "CONTROLLER"]
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "listeners": ",".join(bound),
        "advertised.listeners": ",".join(advertised),
        "listener.security.protocol.map": ",".join(
            f"{name}:{'PLAINTEXT' if name == 'CONTROLLER' else identity.protocol}" for name in listeners
        ),
        "inter.broker.listener.name": "PLAIN",
        "controller.listener.names": "CONTROLLER",
        # Relative to the directory, where the process runs: Kafka would split a path at its commas.
        "log.dirs": DATA_FOLDER,
    }
    return settings | _SINGLE_NODE | dict(extra)


_SINGLE_NODE = {
    # A client that names a wrong topic must fail instead of creating one with the wrong settings.
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    # The delay lets the members of a large group arrive together; a test would only wait 3 s for nobody.
    "group.initial.rebalance.delay.ms": "0",
    "message.max.bytes": str(MESSAGE_BYTES_MAX),
    "replica.fetch.max.bytes": str(MESSAGE_BYTES_MAX),
    "socket.request.max.bytes": str(MESSAGE_BYTES_MAX + 8 * 1024 * 1024),
    # Larger socket buffers than the default 100 KiB: batches of hundreds of kilobytes are the rule here.
    "socket.send.buffer.bytes": str(1024 * 1024),
    "socket.receive.buffer.bytes": str(1024 * 1024),
    "num.network.threads": "2",
    "num.io.threads": "4",
    "num.recovery.threads.per.data.dir": "2",
    "background.threads": "2",
    "log.cleaner.enable": "true",
    "log.cleaner.threads": "1",
    "log.cleaner.backoff.ms": "1000",
    # The default of 128 MiB is a quarter of this broker's heap; the compacted topics here are small.
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    "log.segment.bytes": str(256 * 1024 * 1024),
    "log.retention.check.interval.ms": "10000",
    "log.segment.delete.delay.ms": "1000",
    # After kill -9 the controller lets the same node come back only when its old session is over.
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
}


def render_properties(settings: Mapping[str, str]) -> str:
    """A Java properties file, back-slashes and line ends escaped."""
    lines = (f"{key}={value}".replace("\\", "\\\\").replace("\n", "\\n") for key, value in settings.items())
    return "".join(f"{line}\n" for line in lines)


def logging_properties() -> str:
    """Log4j settings: one rolling file in the directory the broker runs in."""
    return render_properties(
        {
            "status": "error",
            "appender.file.type": "RollingFile",
            "appender.file.name": "file",
            "appender.file.fileName": LOG_FILE,
            "appender.file.filePattern": f"{LOG_FILE}.%i",
            "appender.file.layout.type": "PatternLayout",
            "appender.file.layout.pattern": "%d{ISO8601} %p %m (%c)%n",
            "appender.file.policies.type": "Policies",
            "appender.file.policies.size.type": "SizeBasedTriggeringPolicy",
            "appender.file.policies.size.size": f"{LOG_FILE_MB_MAX}MB",
            "appender.file.strategy.type": "DefaultRolloverStrategy",
            "appender.file.strategy.max": "3",
            "rootLogger.level": "info",
            "rootLogger.appenderRef.file.ref": "file",
        }
    )


def java_options(directory: Path) -> list[str]:
    """Flags of the broker's JVM. The first one marks the process as the broker of exactly this directory."""
    return [
        directory_mark(directory),
        f"-Xmx{HEAP_MB}m",
        # G1 keeps messages above half a region as humongous objects, which exhaust a small heap.
        "-XX:+UseParallelGC",
        # A broker that survives an OutOfMemoryError answers some requests and hangs in others.
        "-XX:+ExitOnOutOfMemoryError",
        # Java caches a direct buffer of the largest request per thread, outside the heap and its limit.
        "-Djdk.nio.maxCachedBufferSize=1048576",
        "-Djava.awt.headless=true",
        LOGGING_OPTION,
    ]


def directory_mark(directory: Path) -> str:
    """The JVM argument that identifies the broker of `directory` among all processes."""
    return f"-Dheadrace.broker.directory={directory}"
