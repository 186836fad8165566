"""Which deletes a file brings to a centre: all that concerns its rows, and as little else as can be."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa

from headrace.consumers.store.brought_deletes import brought_deletes
from headrace.consumers.store.tombstone_set import TombstoneSet
from headrace.consumers.store.tombstones import Tombstone
from headrace.schemas.message_rules import CARRIED_DELETES_MAX
from headrace.schemas.series import series_key

HOSTS = [f"h{number:05}" for number in range(2_000)]
KEYS = pa.array([series_key("cpu", {"host": host, "rack": "r"}) for host in HOSTS] + ["cpu,host=alone"], pa.string())
Tags = dict[str, tuple[str, ...]]


def delete(version: int, tags: Tags, start_ns: int | None = None, end_ns: int | None = None) -> Tombstone:
    """One delete of a user."""
    return Tombstone("plant", "cpu", 1, version, tuple(tags.items()), start_ns, end_ns)


def brought(*deletes: Tombstone) -> list[Tombstone]:
    """What a file with KEYS brings of deletes."""
    return list(brought_deletes(TombstoneSet(deletes), KEYS))


def test_more_deletes_than_a_manifest_has_become_few() -> None:
    """A user deletes each device of a file, and some again: the manifest would be rejected, and the rows lost."""
    count = CARRIED_DELETES_MAX + 1
    deletes = [delete(version, {"rack": ("r",), "host": (HOSTS[version % 2_000],)}) for version in range(1, count + 1)]
    assert [delete(count, {"rack": ("r",), "host": tuple(HOSTS)})] == brought(*deletes)
    # Of another range, and of another rack: these are not the same rows.
    others = [delete(count + 1, {"rack": ("",), "host": ("alone",)}), delete(count + 2, {"host": ("h00001",)}, 0, 5)]
    assert [delete(count, {"rack": ("r",), "host": tuple(HOSTS)}), *others] == brought(*deletes, *others)


def test_values_that_no_series_has_stay_behind() -> None:
    """One delete names thousands of devices, and the file has two of them: a manifest has 16 MiB at most."""
    many = tuple(f"gone{number}" for number in range(10_000))
    assert [delete(1, {"host": ("alone", "h00000")})] == brought(delete(1, {"host": (*many, "h00000", "alone")}))
    assert [] == brought(delete(1, {"host": many}), delete(2, {"host": ("alone",), "rack": ("r",)}))


def test_deletes_of_whole_tables_and_ranges_are_brought_as_they_are() -> None:
    """They name no tag, and match every series. A range that is there twice comes once, with the newer rank."""
    ranges = [delete(1, {}, 0, 5), delete(2, {}, 0, 5), delete(4, {}, None, -1), delete(3, {}, 6, None)]
    assert [ranges[1], ranges[3], ranges[2]] == brought(*ranges)
    assert [delete(5, {})] == brought(delete(5, {}))
    assert [] == brought()


def test_ranges_that_meet_are_one() -> None:
    """A job deletes what is old each minute, or a window that it writes again: the manifest would be rejected too."""
    count = CARRIED_DELETES_MAX + 1
    old = [delete(version, {}, None, version) for version in range(1, count + 1)]
    assert [delete(count, {}, None, count)] == brought(*old)
    windows = [delete(version, {"rack": ("r",)}, version, version + 60) for version in range(1, count + 1)]
    assert [delete(count, {"rack": ("r",)}, 1, count + 60)] == brought(*reversed(windows))
    # A gap is kept, and so are those of other devices, as the rank of the one that ends first is.
    ranges = [delete(9, {}, 0, 9), delete(2, {}, 3, 5), delete(3, {}, 10, 12), delete(4, {}, 12, None)]
    others = delete(1, {"host": ("alone",)}, 9, 10)
    assert [others, delete(4, {}, 10, None), delete(9, {}, 0, 9)] == brought(*ranges, others)


def test_what_is_brought_deletes_the_same_rows() -> None:
    """Of three tags, some absent, over many draws: no row more and no row less."""
    random = Random(1)
    for _ in range(200):
        devices = [{name: value for name in "abc" if (value := random.choice(("", "x", "y")))} for _ in range(4)]
        keys = pa.array(sorted({series_key("cpu", each) for each in devices}), pa.string())
        deletes = []
        for version in range(1, 1 + random.randrange(8)):
            names = random.sample("abc", random.randrange(4))
            tags = {name: tuple(random.sample(("", "x", "y", "z"), random.randrange(1, 4))) for name in names}
            deletes.append(delete(version, tags, random.choice((None, 0, 2)), random.choice((None, 3, 4))))
        codes, times = np.repeat(np.arange(len(keys)), 6), np.tile(np.arange(6), len(keys))
        floors = np.zeros(len(codes), np.int64)
        both = TombstoneSet(deletes), TombstoneSet(brought_deletes(TombstoneSet(deletes), keys))
        before, after = (each.deleted(keys, codes, times, floors).tolist() for each in both)
        assert before == after, (deletes, keys)
