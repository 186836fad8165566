"""Ways of using librdkafka that end the process, none of which is ours."""

from __future__ import annotations

import subprocess
import sys

import pytest

from connectors.kafka.broker import BrokerInfo
from connectors.log.kafka import KafkaLog

COLLECTING = """
import gc, sys, threading
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec
from connectors.log.kafka_admin import KafkaAdmin

gc.disable()
admin = KafkaAdmin({"bootstrap.servers": sys.argv[1], "log_level": 2}, sys.argv[1])
answered, closed, collected = threading.Event(), threading.Event(), threading.Event()

def collect(_answer):
    answered.set()
    closed.wait(1.0)
    gc.collect()
    collected.set()

def question(client):
    cycle = [client]
    cycle.append(cycle)
    partition = TopicPartition("nothing", 0)
    client.list_offsets({partition: OffsetSpec.latest()})[partition].add_done_callback(collect)
    assert answered.wait(60.0)

admin.ask("nothing", question, exists=False)
admin.close()
closed.set()
assert collected.wait(60.0)
"""


def test_a_client_is_never_freed_by_the_garbage_collector_in_its_own_thread(broker: BrokerInfo) -> None:
    """An answer comes when nobody waits any more and its client is part of a cycle; librdkafka aborts a process that frees a client in its thread."""
    done = subprocess.run(
        [sys.executable, "-c", COLLECTING, broker.bootstrap], capture_output=True, text=True, timeout=120
    )
    assert (0, "") == (done.returncode, done.stderr)


def test_librdkafka_never_looks_for_a_leader_while_it_asks_for_offsets(
    broker: BrokerInfo, cluster_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It does so in two threads of which one may free what the other uses; every client knows the leader before."""
    maker = KafkaLog(broker.bootstrap)
    maker.create_topic(cluster_name, {})
    maker.close()
    log = KafkaLog(broker.bootstrap, {"debug": "metadata", "log_level": "7"})
    log.describe(cluster_name)
    log.written_end(cluster_name)
    log.trim(cluster_name, 0)
    log.close()
    said = capfd.readouterr().err
    assert "application requested" in said
    assert "query partition leaders" not in said
