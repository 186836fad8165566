"""The readings of the demo: a generated fleet and the metrics of this machine, both as raw messages in Kafka."""

from __future__ import annotations

import time

import pyarrow as pa

from headrace.connectors.log.kafka import KafkaLog
from headrace.demo.stage import FLEET_TOPIC, MACHINE_TOPIC, Stage
from headrace.workload import Workload, iot
from headrace.workload.encode import line_protocol_bytes
from headrace.workload.machine import MachineSampler, to_lines

START_NS = 1_767_225_600_000_000_000
LINES_A_MESSAGE = 500
MACHINE_SAMPLES = 24
MACHINE_INTERVAL_S = 0.25


def fleet(trucks: int) -> Workload:
    """An hour of a fleet, a row every 10 s for each truck and table."""
    return iot(trucks=trucks, start_ns=START_NS, duration_s=3_600, seed=7)


def produce(stage: Stage, workload: Workload) -> int:
    """Append both kinds of readings to their topics; returns the number of samples of this machine."""
    log = KafkaLog(stage.cluster.bootstrap)
    appender = log.appender()
    try:
        for topic in (FLEET_TOPIC, MACHINE_TOPIC):
            log.create_topic(topic, {"retention.ms": "-1"})
        # Sampled while the fleet is produced: the chart of the demo then shows the load that this makes.
        sampler, samples, next_s = MachineSampler(), 0, time.monotonic()
        with stage.output.progress("fleet → Kafka", workload.rows, "rows") as advance:
            for name, rows in workload.batches(10_000):
                for start in range(0, rows.num_rows, LINES_A_MESSAGE):
                    part: pa.Table = rows.slice(start, LINES_A_MESSAGE)
                    appender.append(FLEET_TOPIC, line_protocol_bytes(name, part))
                advance(rows.num_rows)
                if time.monotonic() >= next_s:
                    next_s, samples = time.monotonic() + MACHINE_INTERVAL_S, samples + _sample(sampler, appender)
        while samples < MACHINE_SAMPLES:
            time.sleep(MACHINE_INTERVAL_S)
            samples += _sample(sampler, appender)
        appender.flush(60)
        return samples
    finally:
        appender.close()
        log.close()


def _sample(sampler: MachineSampler, appender: object) -> int:
    for line in to_lines(sampler.sample()):
        appender.append(MACHINE_TOPIC, line)  # type: ignore[attr-defined]
    return 1
