"""Connection settings of librdkafka as the settings of Kafka's Java clients, which Spark uses."""

from __future__ import annotations

from collections.abc import Mapping

_SAME = {
    "security.protocol",
    "sasl.mechanism",
    "sasl.kerberos.service.name",
    "client.id",
    "client.rack",
    "client.dns.lookup",
    "ssl.endpoint.identification.algorithm",
}
_RENAMED = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.keystore.location": "ssl.keystore.location",
}
_RENAMED |= {"ssl.keystore.password": "ssl.keystore.password"}


def java_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """What of librdkafka's `settings` decides how to reach the broker, in Java's words. Tuning is left out: the clients differ."""
    java = {name: value for name, value in settings.items() if name in _SAME}
    java |= {_RENAMED[name]: value for name, value in settings.items() if name in _RENAMED}
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
