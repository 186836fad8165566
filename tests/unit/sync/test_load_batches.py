"""Loads that wait together go to their leader together, and each file gets its own answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.consumers.sync.group_members import Holder, MemberRefused
from headrace.consumers.sync.load_batches import REQUESTS_AT_ONCE, LoadBatches, fitting
from headrace.consumers.sync.member_routes import (
    LOADS_AT_ONCE,
    LOADS_BYTES_MAX,
    LoadRequest,
    decode_loads,
    encode_loads,
)
from headrace.schemas.framing import FrameInvalid
from headrace.schemas.group_changes import GroupKey
from tests.waiting import eventually

HOLDER = Holder(GroupKey("n1", 1), ("n1",), (("n1", "http://n1"),), "n1")


class Leader:
    """Answers when it may; refuses files that are called bad."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.requests: list[list[bytes]] = []

    def loads(self, url: str, holder: Holder, requests: Sequence[LoadRequest]) -> list[MemberRefused | None]:
        """See Loads."""
        assert (url, holder) == ("http://n1", HOLDER)
        self.requests.append([each.manifest for each in requests])
        assert self.may_answer.wait(30)
        if any(each.manifest == b"away" for each in requests):
            raise MemberRefused("nobody answers")
        return [MemberRefused("it is bad") if each.manifest == b"bad" else None for each in requests]


def test_files_that_wait_together_are_loaded_by_one_request() -> None:
    """Two requests are under way; what comes meanwhile goes with the third, and one bad file fails alone."""
    leader = Leader()
    batches = LoadBatches(leader)
    names = [b"a", b"b", b"c", b"bad", b"d"]
    with ThreadPoolExecutor(len(names)) as pool:
        tasks = []
        for number, name in enumerate(names, 1):
            tasks.append(pool.submit(batches.load, "http://n1", HOLDER, LoadRequest(name, 1)))
            eventually(lambda number=number: len(leader.requests) == min(number, REQUESTS_AT_ONCE), "a request")
        eventually(lambda: pool._work_queue.empty(), "all files wait")
        leader.may_answer.set()
        errors = [str(task.exception(30) or "") for task in tasks]
    assert ["", "", "", "it is bad", ""] == errors
    assert sorted(names) == sorted(name for request in leader.requests for name in request)
    assert len(leader.requests) < len(names)


def test_a_leader_that_does_not_answer_fails_its_files_and_no_later_ones() -> None:
    """The error of a request is that of each of its files; the next request is made all the same."""
    leader = Leader()
    leader.may_answer.set()
    batches = LoadBatches(leader)
    with pytest.raises(MemberRefused, match="nobody answers"):
        batches.load("http://n1", HOLDER, LoadRequest(b"away", 1))
    batches.load("http://n1", HOLDER, LoadRequest(b"a", 1))
    assert [[b"away"], [b"a"]] == leader.requests


def test_a_request_has_a_limit_in_files_and_in_bytes() -> None:
    """At least one file, however large its manifest is."""
    assert LOADS_AT_ONCE == fitting([10] * 1_000)
    assert 2 == fitting([LOADS_BYTES_MAX // 2, LOADS_BYTES_MAX // 2, 1])
    assert 1 == fitting([2 * LOADS_BYTES_MAX, 1])


def test_the_body_of_a_request_is_read_back() -> None:
    """Whole requests alone: one that was cut, or that has too many files, is refused."""
    requests = [LoadRequest(b"manifest", 7), LoadRequest(b"", 0)]
    data = encode_loads(requests)
    assert requests == decode_loads(data)
    for size in (3, 10, len(data) - 1):
        with pytest.raises(FrameInvalid):
            decode_loads(data[:size])
    with pytest.raises(FrameInvalid):
        decode_loads(encode_loads([LoadRequest(b"", 0)] * (LOADS_AT_ONCE + 1)))
