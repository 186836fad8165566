"""What a node does once, before it serves."""

from __future__ import annotations

import gc

from headrace.cli.node import _without_collection


class Cycle:
    """Garbage that only a collection finds."""

    def __init__(self, ended: list[str]) -> None:
        self.itself = self
        self._ended = ended

    def __del__(self) -> None:
        self._ended.append("collected")


def test_no_collection_looks_at_what_was_imported() -> None:
    """None runs meanwhile, and none behind it has the objects that were made; later garbage is collected."""
    ended, kept = list[str](), list[list[int]]()
    before = gc.get_freeze_count()
    with _without_collection():
        assert not gc.isenabled()
        kept.extend([number] for number in range(10_000))
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(kept)
    followed = {id(each) for each in gc.get_objects()}
    assert followed.isdisjoint(map(id, kept))
    Cycle(ended)
    gc.collect()
    assert ["collected"] == ended
