"""Formats the folder of a broker without a JVM, from what Kafka's format tool wrote for the same jars before.

A run of the tool takes most of a second of processor time. Its files hold the cluster's name and ids, which
are written here, and the features of this Kafka, which are the same in every folder.
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64encode
from contextlib import suppress
from pathlib import Path

from headrace.connectors.files import create_directories, write_atomically
from headrace.connectors.kafka.jars import JarSet

META_FILE = "meta.properties"
FEATURES_FILE = "bootstrap.checkpoint"
KEPT_FILE = "broker-features.checkpoint"


def kafka_identifier() -> str:
    """A new identifier as Kafka writes them: 16 bytes as URL-safe base64."""
    # A leading dash would read as an option of Kafka's tools.
    return f"h{urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip('=')[1:]}"


def is_formatted(data: Path) -> bool:
    """Whether a folder was formatted to the end: Kafka's tool writes this file last, and so does `format_folder`."""
    return (data / META_FILE).exists()


def format_folder(data: Path, cluster_id: str, jars: JarSet) -> bool:
    """Format a folder. False when the features of this Kafka are not known yet, and its tool has to run."""
    try:
        features = _kept(jars).read_bytes()
    except OSError:
        return False
    properties = {"version": "1", "cluster.id": cluster_id, "node.id": "1", "directory.id": kafka_identifier()}
    create_directories(data)
    write_atomically(data / FEATURES_FILE, features)
    write_atomically(data / META_FILE, "".join(f"{name}={value}\n" for name, value in properties.items()))
    return True


def keep_features(data: Path, jars: JarSet) -> None:
    """Keep what the tool wrote into a folder, for other folders. Where that fails, the tool runs again."""
    with suppress(OSError):
        write_atomically(_kept(jars), (data / FEATURES_FILE).read_bytes())


def _kept(jars: JarSet) -> Path:
    return jars.directory / KEPT_FILE
