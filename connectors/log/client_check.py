"""Checks a user's settings of librdkafka before any client uses them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from confluent_kafka import KafkaException, Producer

from headrace.connectors.log.kafka_errors import SETTINGS_REFUSED, log_error
from headrace.connectors.log.port import ClientSettingsRefused

_BROKERS = frozenset({"bootstrap.servers", "metadata.broker.list"})


def check_client_settings(settings: Mapping[str, str]) -> None:
    """Raise ClientSettingsRefused for a name that librdkafka does not know, a value that it refuses, and an address.

    The clients would raise it too, but some of them only after a data directory or a checkpoint exists.
    """
    for name in sorted(_BROKERS & settings.keys()):
        # It would override ours in silence, and not in Spark's Java clients. Its value may have a password.
        raise ClientSettingsRefused(
            f"{name} is no setting of librdkafka here: the address of Kafka is given by itself",
            action="use --bootstrap, cluster.bootstrap of headrace.toml, or bootstrap in Python and Spark",
        )
    if settings:
        _check(frozenset(settings.items()))


# Once a process: a log is opened for each task of Spark.
@lru_cache(maxsize=64)
def _check(settings: frozenset[tuple[str, str]]) -> None:
    # librdkafka has no list of its names to compare with, and checks them when it makes a client. A client
    # without brokers connects to nothing.
    try:
        Producer({**dict(settings), "log_level": 0})
    except KafkaException as error:
        # Anything else is the business of the clients, which know the topic that they fail at.
        if error.args[0].code() in SETTINGS_REFUSED:
            raise log_error(error.args[0], "") from error
