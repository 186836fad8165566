"""Settings of Kafka clients: those of our librdkafka clients, and a user's settings of librdkafka for the
Java clients of Spark.

A user's settings are librdkafka's, verbatim, and override ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.connectors.log.port import ClientSettingsRefused
from headrace.schemas.addresses import USER_IN_ADDRESS, has_user

CONSUMER_QUEUE_KBYTES = 65_536
PRODUCER_QUEUE_KBYTES = 65_536
PORT_MAX = 65_535
PORT_DIGITS_MAX = 5
# Twice the largest forward message: no envelope or batch header makes a message too large for its topic.
RECORD_BYTES_MAX = 16 * 1024 * 1024
# A dead letter is as large as a raw message, 64 MiB, and has headers.
LETTER_BYTES_MAX = 64 * 1024 * 1024 + 65_536

_SAME_IN_JAVA = {
    "security.protocol",
    "sasl.mechanism",
    "sasl.kerberos.service.name",
    "client.id",
    "client.rack",
    "client.dns.lookup",
    "ssl.endpoint.identification.algorithm",
}
_RENAMED_IN_JAVA = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.keystore.location": "ssl.keystore.location",
    "ssl.keystore.password": "ssl.keystore.password",
}

# Records are delivered as they arrive all the same, and a follower is rarely asked whether it is at the end. With
# 50 ms the three readers of each idle node were most of the load of an idle broker.
FOLLOW_SETTINGS: Mapping[str, Any] = {"fetch.wait.max.ms": 500}

# While an idempotent client of librdkafka (2.16) waits for five answers, its default, it polls without a pause: a
# whole core, as long as records come faster than Kafka takes them. With four it sleeps, and is no slower here; from
# far away it sends four batches a round trip.
IN_FLIGHT_MAX = 4


def client_settings(bootstrap: str) -> dict[str, Any]:
    """The settings of every client. Raises ClientSettingsRefused without an address, or for one that is none."""
    addresses = [address for each in bootstrap.split(",") if (address := each.strip())]
    if not addresses:
        # librdkafka takes it, and connects to nothing.
        raise ClientSettingsRefused("no address of Kafka is given", action="name it as host:port (bootstrap)")
    # First, so that no message repeats the password.
    if has_user(bootstrap):
        raise ClientSettingsRefused(
            f"the address of Kafka {USER_IN_ADDRESS}",
            action="set sasl.username and sasl.password ([kafka] of headrace.toml)",
        )
    for address in addresses:
        # librdkafka takes any text and waits for its answer.
        host, _, port = address.rpartition("://")[2].rpartition(":")
        is_port = port.isascii() and port.isdigit() and len(port) <= PORT_DIGITS_MAX and 0 < int(port) <= PORT_MAX
        if not host or " " in host or not is_port:
            raise ClientSettingsRefused(
                f"the address of Kafka {address} is not HOST:PORT", action="for example --bootstrap 127.0.0.1:9092"
            )
    return {
        "bootstrap.servers": bootstrap,
        "client.id": "headrace",
        "socket.keepalive.enable": True,
        # The default of 10 s would keep every node away from a restarted broker for that long.
        "reconnect.backoff.max.ms": 1_000,
        "topic.metadata.refresh.interval.ms": 10_000,
        "topic.metadata.propagation.max.ms": 3_000,
        "log_level": 2,
    }


def consumer_settings(bootstrap: str, name: str, settings: Mapping[str, str], **ours: Any) -> dict[str, Any]:
    """A consumer that joins no group, commits nothing and never resets its offset; `ours` override the
    settings of all consumers.
    """
    return {
        **client_settings(bootstrap),
        "group.id": name,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # A reset would skip records in silence; a replica that misses one is no copy any more.
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        # Bytes that changed at a broker or on the way would otherwise be decoded as if they were the record.
        "check.crcs": True,
        # Transaction markers are never delivered: only the event of the end moves a position behind them.
        "enable.partition.eof": True,
        # How long a broker holds a fetch that finds nothing: a reader learns only then that it is at the end.
        "fetch.wait.max.ms": 50,
        "fetch.queue.backoff.ms": 5,
        "fetch.error.backoff.ms": 50,
        "fetch.max.bytes": 32 * 1024 * 1024,
        "max.partition.fetch.bytes": 16 * 1024 * 1024,
        "receive.message.max.bytes": 96 * 1024 * 1024,
        "queued.max.messages.kbytes": CONSUMER_QUEUE_KBYTES,
        **ours,
        **settings,
    }


def appender_settings(bootstrap: str, settings: Mapping[str, str], *, repeats: bool = False) -> dict[str, Any]:
    """An appender that keeps the order of its records across retries; `repeats`: one may be in the log twice."""
    return {
        **client_settings(bootstrap),
        # An idempotent client (librdkafka 2.16) asks for its identity before it is connected, in vain, and again after
        # half a second. Until then it sends nothing. Without one, a single request under way keeps the order.
        "enable.idempotence": not repeats,
        "max.in.flight": 1 if repeats else IN_FLIGHT_MAX,
        "acks": "all",
        "linger.ms": 2,
        # Row batches are compressed already: a second pass costs time and saves nothing.
        "compression.type": "none",
        "message.max.bytes": LETTER_BYTES_MAX,
        "batch.size": 1_000_000,
        "queue.buffering.max.kbytes": PRODUCER_QUEUE_KBYTES,
        "queue.buffering.max.messages": 100_000,
        "delivery.timeout.ms": 120_000,
        **settings,
    }


def java_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The connection settings among librdkafka's `settings`, under their names in Java."""
    # Tuning is left out: buffers and timeouts of the two clients mean different things.
    java = {name: value for name, value in settings.items() if name in _SAME_IN_JAVA}
    java |= {_RENAMED_IN_JAVA[name]: value for name, value in settings.items() if name in _RENAMED_IN_JAVA}
    # librdkafka takes PEM for the authorities and PKCS#12 for the key; Kafka's Java clients expect JKS unless
    # the type is set.
    if "ssl.ca.location" in settings:
        java["ssl.truststore.type"] = "PEM"
    if "ssl.keystore.location" in settings:
        java["ssl.keystore.type"] = "PKCS12"
    if "sasl.username" in settings:
        java["sasl.jaas.config"] = _jaas(java.get("sasl.mechanism", "PLAIN"), settings)
    return java


def _jaas(mechanism: str, settings: Mapping[str, str]) -> str:
    module = "scram.ScramLoginModule" if mechanism.startswith("SCRAM") else "plain.PlainLoginModule"
    user, password = (_quoted(settings.get(name, "")) for name in ("sasl.username", "sasl.password"))
    return f"org.apache.kafka.common.security.{module} required username={user} password={password};"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
