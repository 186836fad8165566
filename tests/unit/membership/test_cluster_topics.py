"""Topics that Kafka would delete records from are corrected, or refused by name."""

from __future__ import annotations

import pytest

from headrace.connectors.log.closing import CLOSED_BYTES, SIZE_SETTING
from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import AccessDenied, TopicMissing
from headrace.connectors.log.topic_settings import FORWARD, STATUS, TABLE, TopicSettings, created_with
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import join_cluster
from headrace.consumers.membership.cluster_topics import ClusterTopics, TopicCopies, TopicUnsuitable
from headrace.schemas.records import Create

TOPICS = Topics("c")
WEEK = "604800000"


def join(log: MemoryLog, copies: TopicCopies | None = None) -> ClusterTopics:
    """Join a cluster of two nodes."""
    cluster_topics = ClusterTopics(log, copies or TopicCopies())
    join_cluster(log, TOPICS, Create(("n1", "n2"), 2, 60), cluster_topics=cluster_topics)
    return cluster_topics


def settings_of(log: MemoryLog, topic: str) -> dict[str, str]:
    """The settings of a topic."""
    return dict(log.configuration(topic).settings or {})


@pytest.mark.parametrize(
    ("topic", "name", "value"),
    [
        ("c.forward.n1.1", "retention.ms", WEEK),
        ("c.forward.n1.1", "retention.bytes", "1000"),
        ("c.forward.n1.1", "cleanup.policy", "compact"),
        ("c.forward.n1.1", "cleanup.policy", "compact,delete"),
        ("c.forward.n1.1", "message.timestamp.type", "CreateTime"),
        ("c.forward.n1.1", "max.message.bytes", "1048588"),
        ("c.table", "retention.ms", WEEK),
        ("c.membership", "cleanup.policy", "compact"),
        ("c.status", "cleanup.policy", "delete"),
        ("c.status", "message.timestamp.type", "CreateTime"),
        ("c.status", "retention.ms", "1000"),
    ],
)
def test_a_topic_made_before_is_corrected(topic: str, name: str, value: str) -> None:
    """Each setting that loses records or times has the cluster's value after a join; it was used as it was."""
    log = MemoryLog()
    log.create_topic(topic, {name: value})
    join(log)
    kind: TopicSettings = STATUS if topic == "c.status" else FORWARD if "forward" in topic else TABLE
    assert created_with(kind)[name] == settings_of(log, topic)[name]


def test_a_closed_topic_stays_closed() -> None:
    """Its group ends, and another node may not know that yet: a check of its settings must not open it. It is a
    warning until this node knows as well.
    """
    log = MemoryLog()
    cluster_topics, topic = join(log), TOPICS.forward("n1")
    log.close_topic(topic)
    cluster_topics.check()
    assert CLOSED_BYTES == settings_of(log, topic)[SIZE_SETTING]
    (warning,) = cluster_topics.warnings
    assert warning.startswith(f"{topic}: closed, so nobody can write to it")
    cluster_topics.forget(topic)
    cluster_topics.check()
    assert () == cluster_topics.warnings


def test_a_topic_of_statuses_that_is_gone_is_made_again() -> None:
    """Nodes send theirs again and again. No other topic is: that one would hide what is lost."""
    log = MemoryLog()
    cluster_topics = join(log)
    for topic in (TOPICS.status, TOPICS.table, TOPICS.forward("n1")):
        log.delete_topic(topic)
    cluster_topics.check()
    assert created_with(STATUS).items() <= settings_of(log, TOPICS.status).items()
    for topic in (TOPICS.table, TOPICS.forward("n1")):
        with pytest.raises(TopicMissing):
            log.configuration(topic)


def test_a_topic_of_statuses_that_may_not_be_made_again_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is ready without it, so an operator has to see why. The other topics are checked all the same."""
    log = MemoryLog()
    cluster_topics = join(log)
    log.delete_topic(TOPICS.status)
    log.topic(TOPICS.forward("n2")).settings["retention.ms"] = WEEK

    def denied(topic: str, *_settings: object, **_options: object) -> None:
        raise AccessDenied(f"topic {topic} may not be created", topic=topic)

    with monkeypatch.context() as patch:
        patch.setattr(log, "create_topic", denied)
        cluster_topics.check()
    warning = "c.status: does not exist any more, and was not created again: topic c.status may not be created"
    assert [warning] == list(cluster_topics.warnings)
    assert "-1" == settings_of(log, TOPICS.forward("n2"))["retention.ms"]
    cluster_topics.check()
    cluster_topics.check()
    assert [] == list(cluster_topics.warnings)


def test_a_log_without_its_first_records_is_a_warning() -> None:
    """What runs has read them, and what starts needs them."""
    log = MemoryLog()
    cluster_topics = join(log)
    log.trim(TOPICS.membership, 1)
    cluster_topics.check()
    (warning,) = cluster_topics.warnings
    assert warning.startswith(f"{TOPICS.membership}: begins at offset 1; nodes and clients that start need the records")


def test_a_topic_that_may_not_be_changed_is_refused_by_name() -> None:
    """The error names topic, setting and value, and the command that an administrator runs."""
    log = MemoryLog()
    log.create_topic("c.forward.n1.1", {"retention.ms": WEEK})
    log.settings_changeable = False
    with pytest.raises(TopicUnsuitable, match=rf"c\.forward\.n1\.1 .* retention\.ms is {WEEK}") as raised:
        join(log)
    assert "--entity-name c.forward.n1.1 --add-config retention.ms=-1" in raised.value.action


def test_an_empty_topic_with_several_partitions_is_refused() -> None:
    """Nothing is lost by creating it again."""
    log = MemoryLog()
    log.create_topic("c.forward.n2.1", dict(created_with(FORWARD)), partitions=3)
    with pytest.raises(TopicUnsuitable, match="3 partitions"):
        join(log)


def test_a_topic_in_use_with_several_partitions_is_a_warning() -> None:
    """Partition 0 is the log; an operator who adds partitions must not stop a cluster."""
    log = MemoryLog()
    join(log)
    log.topic("c.membership").partitions = 2
    assert ("c.membership: 2 partitions, of which only partition 0 is read and written",) == join(log).warnings


def test_other_settings_are_the_users() -> None:
    """A join changes none of them, and neither do values on the safe side."""
    log = MemoryLog()
    theirs = {"max.message.bytes": "33554432", "segment.bytes": "1000000", "compression.type": "zstd"}
    log.create_topic("c.forward.n1.1", {**created_with(FORWARD), **theirs})
    log.create_topic("c.status", {**created_with(STATUS), "segment.ms": "5000", "retention.ms": "7200000"})
    log.settings_changeable = False
    join(log)
    assert theirs.items() <= settings_of(log, "c.forward.n1.1").items()


def test_a_setting_that_changes_later_is_corrected_or_shown() -> None:
    """The periodic check corrects it; without the right to, it is a warning by name until it is right."""
    log = MemoryLog()
    cluster_topics = join(log)
    for changeable in (True, False):
        log.topic("c.forward.n1.1").settings["retention.ms"] = WEEK
        log.settings_changeable = changeable
        cluster_topics.check()
        assert ("-1" if changeable else WEEK) == settings_of(log, "c.forward.n1.1")["retention.ms"]
        assert (not changeable) == any("retention.ms=-1" in line for line in cluster_topics.warnings)
    log.settings_changeable = True
    cluster_topics.check()
    assert () == cluster_topics.warnings


def test_settings_that_may_not_be_seen_are_one_warning() -> None:
    """The account of a cluster of before has no such right: it is no reason not to start."""
    log = MemoryLog()
    log.settings_visible = False
    [line] = join(log).warnings
    assert line.startswith("c.forward.n1.1, c.forward.n2.1, c.membership, c.status, c.table: ")
    assert "DescribeConfigs" in line


def test_a_single_copy_on_three_brokers_is_a_warning() -> None:
    """With one broker it is all there can be."""
    log = MemoryLog()
    assert () == join(log).warnings
    log.brokers = 3
    [line] = join(log).warnings
    assert "one copy on 3 brokers" in line


def test_copies_are_set_and_their_minimum_kept() -> None:
    """New topics get the copies, all topics the minimum; without a minimum of 2 three copies are a warning."""
    log = MemoryLog()
    log.brokers = 3
    [line] = join(log, TopicCopies(3)).warnings
    assert "min.insync.replicas is 1" in line
    assert {3} == {log.configuration(topic).replication_factor for topic in ("c.table", "c.status", "c.forward.n1.1")}
    assert () == join(log, TopicCopies(3, 2)).warnings
    assert "2" == settings_of(log, "c.forward.n1.1")["min.insync.replicas"]
    [line] = join(log, TopicCopies(2, 2)).warnings
    assert "3 copies instead of 2" in line
