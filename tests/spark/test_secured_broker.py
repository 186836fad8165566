"""Ingest over TLS and SCRAM: one section [kafka] for librdkafka and for Spark's Java clients, and no secret anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.connectors.kafka.broker import BrokerInfo, EmbeddedBroker
from headrace.connectors.kafka.broker_security import SECRETS_FILE
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.kafka_admin import KafkaAdmin
from headrace.connectors.log.kafka_settings import client_settings
from headrace.connectors.log.port import LogUnavailable
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import join_cluster
from headrace.schemas.records import Create
from tests.spark.stored import stored_tables

WAIT_S = 300
RAW = "raw.readings"


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[BrokerInfo]:
    """A broker with TLS and SCRAM."""
    broker = EmbeddedBroker(tmp_path / "kafka", tls=True, scram=True)
    try:
        yield broker.start()
    finally:
        broker.stop()


@pytest.mark.slow(65)
@pytest.mark.timeout(900)
def test_ingest_over_tls_and_scram_shows_no_secret(secured: BrokerInfo, tmp_path: Path) -> None:
    """`headrace ingest run` with the broker's file as headrace.toml writes the rows. Neither its output, nor Spark's
    log, nor the plans that Spark's UI shows, nor the checkpoint, nor the broker's log has a password.

    A client without the password, or without TLS, is not let in. A wrong one is named: it is no broker that is down.
    """
    assert secured.client_file is not None
    text = secured.client_file.read_text()
    (tmp_path / "headrace.toml").write_text(text)
    found = tomllib.loads(text)
    settings = found["kafka"]
    assert secured.bootstrap == found["cluster"]["bootstrap"]
    fill(secured.bootstrap, settings)
    for wrong in ({}, {**settings, "security.protocol": "SASL_PLAINTEXT"}):
        assert not answers(secured.bootstrap, wrong), wrong.keys()
    for wrong, reason in (
        ({"sasl.password": "guess"}, "invalid credentials"),
        ({"ssl.ca.location": ""}, "certificate"),
    ):
        assert reason in refusal(secured.bootstrap, settings | wrong)
    log, topics = KafkaLog(secured.bootstrap, settings), Topics("c")
    try:
        join_cluster(log, topics, Create(("n1",), 1, 60))
        done, events = ingest(secured.bootstrap, tmp_path)
        assert (0, 3) == (done.returncode, json.loads(done.stdout)["rows"]), done.stderr
        assert 3 == stored_tables(log, topics)["t"].num_rows
    finally:
        log.close()
    # The plan of the Kafka sink is there, with its options.
    assert "KafkaSourceProvider" in events
    assert "kafka.security.protocol" in events
    shown = [done.stdout, done.stderr, events, (tmp_path / "kafka" / "broker.log").read_text()]
    shown += [path.read_text(errors="replace") for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    secrets = json.loads((tmp_path / "kafka" / SECRETS_FILE).read_text()).values()
    assert [] == [text[:200] for text in shown if any(secret in text for secret in secrets)]
    private = [path for path in (tmp_path / "kafka").glob("*") if path.is_file() and path.stat().st_mode & 0o077]
    assert [] == [path for path in private if any(secret in path.read_text(errors="replace") for secret in secrets)]


def fill(bootstrap: str, settings: dict[str, str]) -> None:
    """A raw topic with three readings."""
    with AdminClient({"bootstrap.servers": bootstrap, **settings}) as admin:
        admin.create_topics([NewTopic(RAW, 1, 1)])[RAW].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    for number in range(3):
        producer.produce(RAW, f"t,host=a x={number} {1_767_225_600_000_000_000 + number * 1_000_000}".encode())
    assert producer.flush(30) == 0


def refusal(bootstrap: str, settings: dict[str, str]) -> str:
    """Why a client with these settings has no connection."""
    admin = KafkaAdmin({**client_settings(bootstrap), **settings}, bootstrap, 3.0)
    try:
        with pytest.raises(LogUnavailable) as raised:
            admin.call(RAW, lambda _client: None)
        return raised.value.message
    finally:
        admin.close()


def answers(bootstrap: str, settings: dict[str, str]) -> bool:
    """Whether the broker tells a client its topics."""
    with AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, **settings}) as admin:
        try:
            admin.list_topics(timeout=2)
        except Exception:
            return False
    return True


def ingest(bootstrap: str, directory: Path) -> tuple[subprocess.CompletedProcess[str], str]:
    """(the run, what Spark's UI would show of it)."""
    events = directory / "events"
    events.mkdir()
    settings = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri()}
    settings |= {"spark.eventLog.compress": "false", "spark.sql.maxMetadataStringLength": "100000"}
    (directory / "conf").mkdir()
    (directory / "conf" / "spark-defaults.conf").write_text(
        "".join(f"{key} {value}\n" for key, value in settings.items())
    )
    line = [sys.executable, "-m", "headrace", "ingest", "run", "--topic", RAW, "--database", "db", "--format", "influx"]
    line += ["--cluster", "c", "--bootstrap", bootstrap, "--checkpoint", str(directory / "checkpoint")]
    done = subprocess.run(
        [*line, "--available-now", "--json"],
        cwd=directory,
        env={**os.environ, "SPARK_CONF_DIR": str(directory / "conf")},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    return done, "".join(path.read_text() for path in events.rglob("*") if path.is_file() and path.suffix != ".crc")
