"""Loads of one receiver, asked for together: while two requests are under way at a leader, the next files gather.

What a load costs its leader is a record, a sync and a commit. Files that come in one request share them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.consumers.sync.group_members import Holder, MemberRefused
from headrace.consumers.sync.member_routes import LOADS_AT_ONCE, LOADS_BYTES_MAX, LoadRequest
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import GroupKey

REQUESTS_AT_ONCE = 2
"""Requests under way at a leader: the records of one are appended while the files of the other are attached."""
Lane = tuple[str, GroupKey]
"""(address of the leader, its group)."""


class Loads(Protocol):
    """Asks leaders to load files; see `GroupMembers`."""

    def loads(self, url: str, holder: Holder, requests: Sequence[LoadRequest]) -> list[MemberRefused | None]:
        """For each file what its leader refuses, None once it is applied. Raises MemberRefused for all of them."""
        ...


def fitting(sizes_bytes: Sequence[int]) -> int:
    """How many of the files that wait longest go into one request: at least one of them."""
    total, count = 0, 0
    for size in sizes_bytes[:LOADS_AT_ONCE]:
        total += size
        if count and total > LOADS_BYTES_MAX:
            break
        count += 1
    return count


@dataclass(slots=True, eq=False)
class _Asked:
    request: LoadRequest
    done: bool = False
    error: HeadraceError | None = None


@dataclass(slots=True)
class _Waiting:
    files: deque[_Asked] = field(default_factory=deque)
    requests: int = 0


class LoadBatches:
    """Safe to share between threads: each brings one file, and one of them carries the request of many."""

    def __init__(self, members: Loads) -> None:
        self._members = members
        self._changed = threading.Condition()
        self._lanes: dict[Lane, _Waiting] = {}

    def load(self, url: str, holder: Holder, request: LoadRequest) -> None:
        """Have a leader load a file; on return it is applied there. Raises MemberRefused."""
        mine, lane = _Asked(request), (url, holder.group)
        with self._changed:
            self._lanes.setdefault(lane, _Waiting()).files.append(mine)
        while (batch := self._take(lane, mine)) is not None:
            self._carry(lane, holder, batch)
        if mine.error is not None:
            raise mine.error

    def _take(self, lane: Lane, mine: _Asked) -> list[_Asked] | None:
        """The files of the next request, for the thread that is to carry it; None once its own is answered."""
        with self._changed:
            # The lane stays while one of its files waits or is under way.
            self._changed.wait_for(lambda: mine.done or self._may_carry(self._lanes[lane]))
            if mine.done:
                return None
            waiting = self._lanes[lane]
            waiting.requests += 1
            count = fitting([len(each.request.manifest) for each in waiting.files])
            return [waiting.files.popleft() for _ in range(count)]

    @staticmethod
    def _may_carry(waiting: _Waiting) -> bool:
        return bool(waiting.files) and waiting.requests < REQUESTS_AT_ONCE

    def _carry(self, lane: Lane, holder: Holder, batch: Sequence[_Asked]) -> None:
        answers: Sequence[HeadraceError | None] = [MemberRefused("the request was not made")] * len(batch)
        try:
            answers = self._members.loads(lane[0], holder, [each.request for each in batch])
        except HeadraceError as error:
            answers = [error] * len(batch)
        finally:
            with self._changed:
                for each, answer in zip(batch, answers, strict=True):
                    each.done, each.error = True, answer
                waiting = self._lanes[lane]
                waiting.requests -= 1
                if not waiting.files and not waiting.requests:
                    del self._lanes[lane]
                self._changed.notify_all()
