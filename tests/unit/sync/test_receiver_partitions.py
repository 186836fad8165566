"""Partitions that an operator has added to one of the two topics alone."""

from __future__ import annotations

from structlog.testing import capture_logs

from headrace.consumers.sync.shares import note_assigned
from headrace.schemas.sync_records import Verdict
from tests.unit.sync.test_receiver import CHUNK, FILE, MANIFEST, TOPICS, Scene
from tests.unit.sync.test_receiver import scene as scene


def test_files_whose_chunks_are_at_another_receiver_wait_and_are_named(scene: Scene) -> None:
    """By the range assignment a receiver has manifests 0 and 1, and chunks 0. No offset passes what it lacks, an error
    names the partition, and files of the others are accepted."""
    alone = (TOPICS.sync_manifest, 1)
    with capture_logs() as lines:
        scene.receiver.revoked([MANIFEST, CHUNK])
        scene.receiver.assigned([MANIFEST, CHUNK, alone])
    assert [[1]] == [line["numbers"] for line in lines if line["log_level"] == "error"]
    scene.manifest(FILE.body)
    scene.consumer.logs[alone], scene.consumer.positions[alone] = scene.consumer.logs[MANIFEST][:], 0
    scene.chunks(FILE)
    scene.turn_until(lambda: scene.states() == [Verdict.ACCEPTED], "the file with its chunks is accepted")
    scene.receiver.revoked([MANIFEST, CHUNK, alone])
    assert scene.consumer.committed.get(alone, 0) == 0


def test_chunks_without_manifests_of_their_number_wait(scene: Scene) -> None:
    """It has chunks 0 and 1, and manifests 0: those that it cannot know are not passed over."""
    alone = (TOPICS.sync_chunk, 1)
    with capture_logs() as lines:
        scene.receiver.assigned([alone])
    assert [[1]] == [line["numbers"] for line in lines if line["log_level"] == "error"]
    scene.chunks(FILE)
    scene.consumer.logs[alone], scene.consumer.logs[CHUNK] = scene.consumer.logs[CHUNK], []
    scene.consumer.positions[alone] = 0
    scene.consumer.logs[TOPICS.sync_manifest, 1] = []
    # Another receiver reads them.
    scene.consumer.paused.add((TOPICS.sync_manifest, 1))
    for _ in range(3):
        scene.receiver.turn(scene.consumer)
    assert 0 == scene.receiver.figures.chunks_ignored
    scene.receiver.revoked([MANIFEST, CHUNK, alone])
    assert scene.consumer.committed.get(alone, 0) == 0


def test_equal_numbers_are_no_error() -> None:
    """As the first receiver makes them."""
    with capture_logs() as lines:
        note_assigned([MANIFEST, CHUNK])
    assert ["info"] == [line["log_level"] for line in lines]
