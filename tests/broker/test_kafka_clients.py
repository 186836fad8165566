"""Uses of librdkafka that abort the process; the Kafka adapter avoids each."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.connectors.kafka.broker import BrokerInfo
from headrace.connectors.log.kafka import KafkaLog

COLLECTING = """
import gc, sys, threading
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec
from headrace.connectors.log.kafka_admin import KafkaAdmin

gc.disable()
admin = KafkaAdmin({"bootstrap.servers": sys.argv[1], "log_level": 2}, sys.argv[1])
answered, closed, collected = threading.Event(), threading.Event(), threading.Event()

def collect(_answer):
    answered.set()
    closed.wait(1.0)
    gc.collect()
    collected.set()

def request(client):
    cycle = [client]
    cycle.append(cycle)
    partition = TopicPartition("nothing", 0)
    client.list_offsets({partition: OffsetSpec.latest()})[partition].add_done_callback(collect)
    assert answered.wait(60.0)

admin.call("nothing", request, exists=False)
admin.close()
closed.set()
assert collected.wait(60.0)
"""


def test_a_client_is_never_freed_by_the_garbage_collector_in_its_own_thread(broker: BrokerInfo) -> None:
    """An answer arrives after the caller has left, and its client is part of a reference cycle.

    librdkafka aborts a process that frees a client in the client's own thread.
    """
    done = subprocess.run(
        [sys.executable, "-c", COLLECTING, broker.bootstrap], capture_output=True, text=True, timeout=120
    )
    assert (0, "") == (done.returncode, done.stderr)


def test_librdkafka_never_queries_a_leader_during_an_offset_request(
    broker: BrokerInfo, cluster_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two threads of librdkafka do so, and one may free what the other uses; every client learns the leader
    before.
    """
    creator = KafkaLog(broker.bootstrap)
    creator.create_topic(cluster_name, {})
    creator.close()
    log = KafkaLog(broker.bootstrap, {"debug": "metadata", "log_level": "7"})
    log.describe(cluster_name)
    log.written_end(cluster_name)
    log.trim(cluster_name, 0)
    log.close()
    errors = capfd.readouterr().err
    assert "application requested" in errors
    assert "query partition leaders" not in errors
