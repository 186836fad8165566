"""When an appender replaces its Kafka client, and what becomes of the records of the old one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.connectors.log import kafka_appender
from headrace.connectors.log.kafka_appender import KafkaAppender
from headrace.connectors.log.port import AppendUnknown
from headrace.schemas.errors import HeadraceError
from tests.waiting import eventually

Report = Callable[[KafkaError | None, Any], None]


class Delivered:
    """A message that Kafka has taken."""

    @staticmethod
    def offset() -> int:
        """Its place in the log."""
        return 7


class Client:
    """A Producer that delivers, stalls or has failed for good; what is reported is reported by `poll`."""

    behaviours: list[str]

    def __init__(self, _settings: dict[str, Any]) -> None:
        self.behaviour = self.behaviours.pop(0)
        self.queued: list[Report] = []
        self.error: KafkaError | None = None

    def produce(self, _topic: str, _value: bytes, *, on_delivery: Report, **_others: Any) -> None:
        """See Producer."""
        if self.behaviour == "failed":
            raise KafkaException(KafkaError(KafkaError._FATAL))
        self.queued.append(on_delivery)

    def poll(self, _timeout_s: float) -> int:
        """See Producer."""
        if self.behaviour == "delivers" or self.error:
            while self.queued:
                self.queued.pop(0)(self.error, Delivered)
        return 0

    def flush(self, timeout_s: float) -> int:
        """See Producer."""
        if self.behaviour == "fails":
            raise SystemError("returned a result with an exception set")
        self.poll(timeout_s)
        return len(self)

    def purge(self) -> None:
        """See Producer."""
        self.error = KafkaError(KafkaError._PURGE_INFLIGHT)

    def __len__(self) -> int:
        return len(self.queued)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int | None, HeadraceError | None]]:
    """The delivery reports of a test, which sets `Client.behaviours` of the clients to come."""
    monkeypatch.setattr(kafka_appender, "Producer", Client)
    monkeypatch.setattr(kafka_appender, "STALL_POLLS", 3)
    found: list[tuple[int | None, HeadraceError | None]] = []
    return found


def test_closing_waits_for_no_poll_of_a_client_that_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An appender of one record is closed right behind its report."""
    Client.behaviours = ["delivers"]
    monkeypatch.setattr(kafka_appender, "Producer", Client)
    # Longer than the test may take.
    monkeypatch.setattr(kafka_appender, "IDLE_POLL_S", 600.0)
    appender = KafkaAppender({})
    appender.append("t", b"one")
    assert 0 == appender.flush(1)
    appender.close()
    assert not appender._report_thread.is_alive()


@pytest.mark.parametrize("answering", [True, False])
def test_a_client_that_stalls_is_replaced_while_kafka_answers_others(
    answering: bool, reports: list[tuple[int | None, HeadraceError | None]]
) -> None:
    """Its records are unknown, and the next one is delivered; without Kafka they stay where they are."""
    Client.behaviours = ["stalls", "delivers"]
    asked: list[str] = []

    def answers(topic: str) -> bool:
        asked.append(topic)
        return answering

    appender = KafkaAppender({}, answers)
    appender.append("t", b"one", on_delivery=lambda *report: reports.append(report))
    eventually(lambda: len(asked) > 0, "the question whether Kafka answers")
    assert {"t"} == set(asked)
    if answering:
        eventually(lambda: len(reports) == 1, "the report of the purged record")
        assert isinstance(reports[0][1], AppendUnknown)
        appender.append("t", b"two", on_delivery=lambda *report: reports.append(report))
        eventually(lambda: (7, None) in reports, "the next record")
        assert 0 == appender.flush(1)
    else:
        assert (1, []) == (appender.flush(0), reports)
    appender.close(0)


def test_the_record_at_which_a_client_fails_goes_to_the_next_one(
    reports: list[tuple[int | None, HeadraceError | None]],
) -> None:
    """It was not queued, so it cannot be in the log."""
    Client.behaviours = ["failed", "delivers"]
    appender = KafkaAppender({})
    appender.append("t", b"one", on_delivery=lambda *report: reports.append(report))
    eventually(lambda: reports == [(7, None)], "the record")
    appender.close(0)


def test_a_second_client_that_fails_as_well_is_an_error(
    reports: list[tuple[int | None, HeadraceError | None]],
) -> None:
    """A client that cannot be had is not made again and again."""
    Client.behaviours = ["failed", "failed"]
    appender = KafkaAppender({})
    with pytest.raises(AppendUnknown):
        appender.append("t", b"one", on_delivery=lambda *report: reports.append(report))
    assert [] == reports
    appender.close(0)


def test_a_client_that_fails_among_its_reports_is_replaced(
    reports: list[tuple[int | None, HeadraceError | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error appears as SystemError, in flush and in the report that is made next. No report is lost, and the
    thread that serves them continues.
    """

    def pending() -> None:
        raise SystemError("returned a result with an exception set")

    Client.behaviours = ["fails", "delivers"]
    monkeypatch.setattr(kafka_appender, "_call_into_c", pending)
    appender = KafkaAppender({})
    appender.append("t", b"one", on_delivery=lambda *report: reports.append(report))
    assert 0 == appender.flush(5)
    assert [None] == [offset for offset, _ in reports]
    assert isinstance(reports[0][1], AppendUnknown)
    appender.append("t", b"two", on_delivery=lambda *report: reports.append(report))
    eventually(lambda: (7, None) in reports, "the next record")
    appender.close(0)


def test_the_thread_of_reports_outlives_a_client_that_fails(
    reports: list[tuple[int | None, HeadraceError | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it no append would ever be confirmed."""
    failures = [
        SystemError("returned NULL without setting an exception"),
        KafkaException(KafkaError(KafkaError._FATAL)),
    ]

    class Failing(Client):
        """Its first polls fail."""

        def poll(self, timeout_s: float) -> int:
            """See Producer."""
            if failures:
                raise failures.pop()
            return super().poll(timeout_s)

    monkeypatch.setattr(kafka_appender, "Producer", Failing)
    Client.behaviours = ["delivers"]
    appender = KafkaAppender({})
    appender.append("t", b"one", on_delivery=lambda *report: reports.append(report))
    eventually(lambda: [(7, None)] == reports, "the report")
    assert [] == failures
    appender.close(0)
