"""Files that do not come cost nothing while they are in a pause, and hold up no change."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.connectors.files import PARTIAL_SUFFIX
from headrace.consumers.migration.cut_source import CutSource, PresentFiles
from headrace.consumers.migration.file_puller import RETRY_S, FilePuller
from headrace.consumers.migration.puller import SlotPuller
from headrace.consumers.migration.wanted_file import WantedFile
from headrace.consumers.store import staged_names
from headrace.schemas.group_changes import GroupKey
from tests.unit.migration.moves import CHANGE, LIMITS, TARGET, InlineExecutor, Moves, topic_of

pytestmark = pytest.mark.slow(1.5)


def awaited_file(moves: Moves) -> WantedFile:
    """A file that a member awaits, and that nobody gives."""
    moves.turns("n4", count=3)
    group = moves.nodes["n3"].groups[topic_of(TARGET)]
    return WantedFile(topic_of(TARGET), group, group.store.awaited()[0], (("n2", GroupKey("n2", 1)),))


def test_nobody_is_woken_while_all_files_are_in_a_pause(moves: Moves) -> None:
    """A puller that is woken asks for the same files again: each of its turns would cause the next one."""
    file, node, woken = awaited_file(moves), moves.nodes["n3"], list[None]()
    moves.nodes["n2"].leave()
    files = FilePuller(node, InlineExecutor(), 2, node.puller.rate, node.clock, lambda: woken.append(None))
    for _ in range(5):
        files.want([file])
    assert (1, 1) == (files.errors, len(woken))
    node.clock.now_s += RETRY_S
    files.want([file])
    assert (2, 2) == (files.errors, len(woken))


def test_a_puller_whose_donors_are_offline_waits(moves: Moves) -> None:
    """Its thread takes a turn each tenth of a second, and none in between."""
    node, turns = moves.nodes["n3"], list[None]()
    moves.turns("n4", count=3)
    assert node.target.store.awaited()
    for each in moves.nodes.values():
        each.leave()
    puller = SlotPuller(node, LIMITS, ThreadPoolExecutor(4))
    turn = puller.turn

    def noted() -> None:
        turns.append(None)
        turn()

    puller._task._run_once = noted
    puller.start()
    puller._task.stopping.wait(1.0)
    puller.stop()
    assert 2 <= len(turns) <= 40


def test_a_file_that_cannot_be_copied_ahead_for_any_reason_is_tried_once(
    moves: Moves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left, it would keep the group from its report of the first phase, for as long as the fault lasts."""
    node, donor = moves.nodes["n3"], GroupKey("n2", 1)
    entry = moves.nodes["n2"].groups[topic_of(donor)].store.segments()[0]
    file = WantedFile(topic_of(TARGET), node.target, entry, (("n2", donor),), ahead=True)

    def broken(_node: str, _key: GroupKey) -> CutSource | None:
        raise ZeroDivisionError("a fault that nobody foresees")

    monkeypatch.setattr(node, "source", broken)
    files = FilePuller(node, InlineExecutor(), 2, node.puller.rate, node.clock)
    files.begin_ahead(CHANGE.number)
    files.want([file])
    assert files.was_tried_ahead(*file.key)


def test_a_group_that_has_gone_is_not_kept_by_what_was_asked_of_it(moves: Moves) -> None:
    """With each change of members other groups come and go, and each has rows in memory."""
    moves.turns(count=10)
    files, node = PresentFiles(), moves.nodes["n1"]
    topic, group = next(iter(node.groups.items()))
    assert files.find(group, group.store.segments()[0].content_digest)
    gone = weakref.ref(node.groups.pop(topic))
    group.store.close()
    del group
    node.puller = node.new_puller()
    gc.collect()
    assert None is gone()


def test_a_fault_that_a_worker_notes_while_files_are_given_ends_no_turn(moves: Moves) -> None:
    """The thread of the puller looks through them, and its turn ended with an error."""
    file, node, noted = awaited_file(moves), moves.nodes["n3"], list[str]()
    files = FilePuller(node, InlineExecutor(), 2, node.puller.rate, node.clock)

    class Topic(str):
        """A topic at whose look another fault is noted."""

        __slots__ = ()
        __eq__ = str.__eq__

        def __hash__(self) -> int:
            if noted:
                files._faults[noted.pop()] = 0.0, "offline"
            return str.__hash__(self)

    files._faults = {Topic("a"): (0.0, "offline"), Topic(file.topic): (0.0, "offline")}
    noted.append("another")
    files.want([file])
    assert [] == noted
    assert "offline" != files.fault("a")


def test_a_partial_file_that_is_longer_than_that_of_its_next_sender_begins_again(
    moves: Moves, one_by_one: None
) -> None:
    """Members that sealed with other builds have other bytes of one content. The first sender has died behind them."""
    del one_by_one
    node = moves.nodes["n4"]
    staging = node.target.store.staging_directory
    staging.mkdir(parents=True)
    for name in ("n1", "n2", "n3"):
        for group in moves.nodes[name].groups.values():
            for entry in group.store.cut_files():
                segment, _ = staged_names(entry.content_digest)
                (staging / (segment + PARTIAL_SUFFIX)).write_bytes(bytes(entry.size_bytes + 9))
    moves.turns("n4", count=4)
    assert node.target.store.segments()
    assert [] == node.target.store.awaited()
