"""Where the next listing of each group begins: a node lists a part of what a centre has not decided about. Pure.

What is left of a part, as a damaged file or one that the centre holds, keeps the progress below it. Listed from there
alone, what came behind that part would never be sent. So the parts are listed one behind the other, and then the first
one again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from headrace.consumers.sync.listing import Listing


class Pages:
    """Owned by one thread. Begins with the first part."""

    def __init__(self) -> None:
        self._above: dict[str, int] = {}

    def above(self, group: str) -> int:
        """The version above which the next listing of a group begins, if that is above the progress; 0 for the first."""
        return self._above.get(group, 0)

    def turn(self, listings: Iterable[Listing]) -> bool:
        """Behind a round that has done what can be done; whether there is another part."""
        more = False
        for each in listings:
            if not each.files_left:
                self._above.pop(each.group, None)
            elif each.through > self.above(each.group):
                self._above[each.group] = each.through
                more = True
        return more


def as_part(listing: Listing, progress: int) -> Listing:
    """A listing as it counts: of one that does not begin at the progress nobody knows what is undecided below it."""
    if listing.after <= progress:
        return listing
    return replace(listing, files=tuple(replace(each, settles=False) for each in listing.files))
