"""Clients of librdkafka and Python's garbage collector."""

from __future__ import annotations

import subprocess
import sys

from connectors.kafka.broker import BrokerInfo

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

admin.ask("nothing", question)
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
