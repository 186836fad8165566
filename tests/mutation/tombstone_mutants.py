"""Mutants of tombstones: which rows and files they concern, and what is kept of those that come again."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

DELETES, TOMBSTONES, EDGES, LOADS = "test_deletes.py", "test_tombstone_set.py", "test_edges.py", "test_loads.py"
JOINED = "test_joined_deletes.py"

TOMBSTONE = (
    Mutant(
        "tombstone_deletes_rows_of_its_own_rank",
        "store/tombstone_set.py",
        "found = bisect_right(self.items, max((era, version), (held_since, -1)), key=_rank)",
        "found = bisect_right(self.items, max((era, version - 1), (held_since, -1)), key=_rank)",
        (DELETES, TOMBSTONES),
    ),
    Mutant(
        "rank_of_a_tombstone_is_its_version",
        "store/tombstone_set.py",
        "    return tombstone.era, tombstone.version\n",
        "    return 0, tombstone.version\n",
        (DELETES, TOMBSTONES),
    ),
    Mutant(
        "applied_tombstone_of_the_same_version_applied_again",
        "store/tombstone_set.py",
        "(self._came_at > entry.cleaned_version)",
        "(self._came_at >= entry.cleaned_version)",
        (EDGES,),
    ),
    Mutant(
        "tombstone_that_begins_at_the_last_row_not_applied",
        "store/tombstone_set.py",
        "        mask &= self._starts <= entry.max_time_ns\n",
        "        mask &= self._starts < entry.max_time_ns\n",
        (EDGES,),
    ),
    Mutant(
        "tombstone_that_ends_at_the_first_row_not_applied",
        "store/tombstone_set.py",
        "(self._lasts >= entry.min_time_ns)",
        "(self._lasts > entry.min_time_ns)",
        (EDGES,),
    ),
    Mutant(
        "file_that_begins_at_the_end_of_all_tombstones_skipped",
        "store/tombstone_set.py",
        "last >= entry.min_time_ns\n",
        "last > entry.min_time_ns\n",
        (EDGES,),
    ),
    Mutant(
        "file_that_ends_at_the_begin_of_all_tombstones_skipped",
        "store/tombstone_set.py",
        "first <= entry.max_time_ns",
        "first < entry.max_time_ns",
        (EDGES,),
    ),
    Mutant(
        "delete_that_comes_again_forgets_its_slots",
        "store/tombstones.py",
        "_in_order({**_placed(earlier), **_placed(later)})",
        "_in_order(_placed(later))",
        (JOINED,),
    ),
    Mutant(
        "slot_keeps_the_place_where_a_delete_came_first",
        "store/tombstones.py",
        "_in_order({**_placed(earlier), **_placed(later)})",
        "_in_order({**_placed(later), **_placed(earlier)})",
        (JOINED,),
    ),
    Mutant(
        "place_of_a_slot_ignored",
        "store/tombstone_set.py",
        "(came == _OF_TOMBSTONE) | (came > entry.cleaned_version)",
        "came == came",
        (JOINED,),
    ),
    Mutant(
        "deletes_behind_a_version_are_of_it",
        "store/tombstone_set.py",
        "        if self._extent[0] <= version:\n",
        "        if self:\n",
        (JOINED,),
    ),
    Mutant(
        "replaced_delete_stays_in_the_index",
        "store/seal_job.py",
        "[*purged, *self._replaced]",
        "list(purged)",
        (JOINED,),
    ),
    Mutant(
        "purge_takes_what_has_come_since",
        "store/store_view.py",
        "None if newest is None else newest.since(purged.came_at)",
        "None",
        (JOINED,),
    ),
    Mutant(
        "delete_of_the_next_rank_spares_rows_in_memory",
        "store/tombstone_set.py",
        "(self._places >= place) & (self._starts",
        "(self._places > place) & (self._starts",
        ("test_handed.py",),
    ),
    Mutant(
        "tombstone_of_the_time_before_the_slot_came",
        "store/tombstone_set.py",
        "max((era, version), (held_since, -1))",
        "(era, version)",
        (TOMBSTONES, LOADS),
    ),
    Mutant(
        "carried_tombstones_ignored",
        "store/tombstone_set.py",
        "        return TombstoneSet((*own.items, *entry.carried)) if entry.carried else own\n",
        "        return own\n",
        (TOMBSTONES, LOADS),
    ),
)
