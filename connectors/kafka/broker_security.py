"""TLS and SCRAM of the embedded broker: its key, its passwords, and the settings with which clients reach it.

All of it is made at the first start with `--tls` or `--scram` and kept in the broker's directory, in files that only
their owner can read. No password is an argument of a process.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from headrace.connectors.kafka.broker_errors import BrokerStartFailed
from headrace.connectors.kafka.broker_settings import HOST, BrokerIdentity, replace_file

SECRETS_FILE = "broker-secrets.json"
KEYSTORE_FILE = "broker.p12"
AUTHORITY_FILE = "ca.pem"
CLIENT_FILE = "client.toml"
USER = "headrace"
MECHANISM = "SCRAM-SHA-512"
OWNER_ONLY = 0o600
KEYTOOL_TIMEOUT_S = 60.0
# The broker's own user logs in by PLAIN, which needs no credential in the metadata log: a new broker has none there.
_OWN_USER = "broker"
_PASSWORD_BYTES = 24
_ITERATIONS = 8_192
_VALID_DAYS = "3650"


@dataclass(frozen=True, slots=True)
class BrokerSecrets:
    """The passwords of a broker: of its key store, of its own user, and of the user of clients."""

    keystore: str = field(repr=False)
    own: str = field(repr=False)
    client: str = field(repr=False)


def prepare(directory: Path, identity: BrokerIdentity, java: Path) -> BrokerSecrets:
    """Make what is missing of passwords, key and the settings for clients. Raises BrokerStartFailed."""
    path = directory / SECRETS_FILE
    if not path.exists():
        made = BrokerSecrets(*(secrets.token_urlsafe(_PASSWORD_BYTES) for _ in range(3)))
        replace_file(path, json.dumps(asdict(made)) + "\n", OWNER_ONLY)
    known = load_secrets(directory)
    if identity.tls and not (directory / AUTHORITY_FILE).exists():
        _make_key(directory, known, java)
    lines = (f'"{name}" = {json.dumps(value)}\n' for name, value in client_settings(directory, identity).items())
    head = f"[cluster]\nbootstrap = {json.dumps(f'{HOST}:{identity.port}')}\n\n[kafka]\n"
    replace_file(directory / CLIENT_FILE, head + "".join(lines), OWNER_ONLY)
    return known


def load_secrets(directory: Path) -> BrokerSecrets:
    """The passwords of a broker that was started. Raises BrokerStartFailed."""
    try:
        return BrokerSecrets(**json.loads((directory / SECRETS_FILE).read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise BrokerStartFailed(
            f"{directory / SECRETS_FILE} cannot be read", action="restore it, or start with another directory"
        ) from error


def client_settings(directory: Path, identity: BrokerIdentity) -> dict[str, str]:
    """Settings of librdkafka for clients; none for a broker without TLS and SCRAM."""
    if not identity.is_secured:
        return {}
    settings = {"security.protocol": identity.protocol}
    if identity.tls:
        settings["ssl.ca.location"] = str(directory / AUTHORITY_FILE)
    if identity.scram:
        password = load_secrets(directory).client
        settings |= {"sasl.mechanism": MECHANISM, "sasl.username": USER, "sasl.password": password}
    return settings


def server_settings(identity: BrokerIdentity, known: BrokerSecrets) -> dict[str, str]:
    """Kafka's settings for TLS and SCRAM of all listeners of clients."""
    settings: dict[str, str] = {}
    if identity.tls:
        settings |= {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": KEYSTORE_FILE,
            "ssl.keystore.password": known.keystore,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": AUTHORITY_FILE,
        }
    if identity.scram:
        settings |= {"sasl.enabled.mechanisms": f"{MECHANISM},PLAIN", "sasl.mechanism.inter.broker.protocol": "PLAIN"}
        package = "org.apache.kafka.common.security"
        own = f'username="{_OWN_USER}" password="{known.own}" user_{_OWN_USER}="{known.own}"'
        for name in identity.listeners:
            prefix = f"listener.name.{name.lower()}"
            settings[f"{prefix}.plain.sasl.jaas.config"] = f"{package}.plain.PlainLoginModule required {own};"
            module = f"{package}.scram.ScramLoginModule required;"
            settings[f"{prefix}.{MECHANISM.lower()}.sasl.jaas.config"] = module
    return settings


def ensure_user(directory: Path, identity: BrokerIdentity, timeout_s: float) -> bool:
    """Give the user of clients its password; whether the broker has taken it."""
    if not identity.scram:
        return True
    known = load_secrets(directory)
    own = {"sasl.mechanism": "PLAIN", "sasl.username": _OWN_USER, "sasl.password": known.own}
    settings = {**client_settings(directory, identity), **own}
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, _ITERATIONS)
    change = UserScramCredentialUpsertion(USER, credential, known.client.encode())
    with AdminClient({"bootstrap.servers": f"{HOST}:{identity.port}", "log_level": 0, **settings}) as client:
        try:
            client.alter_user_scram_credentials([change], request_timeout=timeout_s)[USER].result(timeout_s)
        except (KafkaException, TimeoutError):
            return False
    return True


def _make_key(directory: Path, known: BrokerSecrets, java: Path) -> None:
    """A key and its certificate for loopback, by Java's own tool: Python has none for it."""
    keystore = directory / KEYSTORE_FILE
    keystore.unlink(missing_ok=True)
    common = [
        "-alias",
        "broker",
        "-keystore",
        KEYSTORE_FILE,
        "-storetype",
        "PKCS12",
        "-storepass:env",
        "HEADRACE_STORE",
    ]
    names = f"SAN=ip:{HOST},dns:localhost"
    make = ["-genkeypair", "-keyalg", "EC", "-groupname", "secp256r1", "-validity", _VALID_DAYS]
    _keytool(directory, [*make, "-dname", "CN=headrace broker", "-ext", names, *common], known, java)
    keystore.chmod(OWNER_ONLY)
    replace_file(directory / AUTHORITY_FILE, _keytool(directory, ["-exportcert", "-rfc", *common], known, java))


def _keytool(directory: Path, words: list[str], known: BrokerSecrets, java: Path) -> str:
    tool = java.with_name("keytool")
    tool = tool if tool.exists() else java.resolve().with_name("keytool")
    environment: Mapping[str, str] = {**os.environ, "HEADRACE_STORE": known.keystore, "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            [str(tool), *words],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=KEYTOOL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BrokerStartFailed(
            f"{tool} does not run: {error}", action="install a Java that has keytool, or start without --tls"
        ) from error
    if done.returncode != 0:
        reason = (done.stdout or done.stderr).strip().splitlines()[:1]
        raise BrokerStartFailed(f"keytool made no key: {' '.join(reason)}", action="check the directory")
    return done.stdout
