"""Files of sync senders in a store: their place among all others, merges, and moves with their slots."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.consumers.store import JobSuperseded, SegmentEntry, Store, StoreFormatUnknown
from headrace.consumers.store.compaction import are_neighbours, output_name, plan_compaction
from headrace.consumers.store.index import Index
from headrace.consumers.store.last_rows import decode_last, encode_last
from headrace.consumers.store.segment import EncodedSegment
from headrace.consumers.store.synced import is_settled, rank_of
from headrace.schemas.messages import CarriedDelete, SyncedRows
from headrace.schemas.series import bucket_of, series_key
from headrace.schemas.tables import FieldType, TableSchema
from tests.unit.store.builders import CPU, DATABASE, Row, contents, expected, seal, write
from tests.unit.store.conftest import SETTINGS
from tests.unit.store.foreign import LEADER, foreign_files, load_of, slots_of_slices, stage, stage_export
from tests.unit.store.test_deletes import last
from tests.unit.store.test_loads import row

S1, S2 = "sender-1", "sender-2"
ALL_SETTLED = "z"


def sent(
    store: Store,
    version: int,
    order: str,
    *rows: Row,
    sender: str = S1,
    settled: str = "",
    staged: bool = True,
    schema: TableSchema = CPU,
    era: int = 1,
    deletes: tuple[CarriedDelete, ...] = (),
) -> EncodedSegment:
    """A file of a sender is loaded; its versions there say nothing here."""
    (file,) = foreign_files(rows, (1, 700, 800), schema)
    if staged:
        stage(store, file)
    load = replace(
        load_of(file, 0, deletes), origin=sender, sender=sender, order=order, settled=settled, stores=(f"of-{sender}",)
    )
    store.load(version, load, CPU, DATABASE, era).run()
    return file


def merge_all(store: Store, version: int) -> int:
    """Carry out plans until there are none; the version after them."""
    while plans := store.plan_compaction():
        for plan in plans:
            store.compact(version, plan.inputs).run()
            version += 1
    return version


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Store]:
    """Another store."""
    opened = Store.open(tmp_path / "other", "n2", SETTINGS)
    yield opened
    opened.close()


@pytest.mark.parametrize("staged", [True, False])
def test_file_2_loaded_before_file_1_of_one_sender(store: Store, tmp_path: Path, staged: bool) -> None:
    """Same series and time: file 2's value wins, also after compaction and on a member rebuilt from files."""
    write(store, 1, [row(1, 0)])
    seal(store, 2)
    second = sent(store, 3, "2", row(1, 2), row(3, 2), staged=staged)
    first = sent(store, 4, "1", row(1, 1), row(2, 1), settled=ALL_SETTLED, staged=staged)
    assert [first.entry.content_digest, second.entry.content_digest] == [
        each.content_digest for each in store._components.view.catalogue() if each.order
    ]
    for file in (first, second) if not staged else ():
        stage(store, file)
        store.attach(file.entry.content_digest)
    want, newest = expected([row(1, 2), row(2, 1), row(3, 2)]), expected([row(3, 2)])
    assert (want, newest) == (contents(store), last(store))
    merge_all(store, 5)
    (entry,) = store.segments()
    assert (want, newest) == (contents(store), last(store))
    assert ((1, 3, ""), ("of-sender-1",)) == (rank_of(entry)[1:], entry.stores)
    assert (SyncedRows(S1, "2", ALL_SETTLED),) == entry.synced
    store.snapshot(tmp_path / "copy")
    copy = Store.open(tmp_path / "copy", "n1", SETTINGS)
    assert (want, newest, store.digests()) == (contents(copy), last(copy), copy.digests())
    copy.close()


def test_a_file_outranks_what_was_written_before_it_and_no_later_row(store: Store) -> None:
    """Also when nothing was unsealed at its load: no own segment has ranks on both sides of it."""
    sent(store, 3, "1", row(1, 1), row(2, 1))
    write(store, 4, [row(2, 2)])
    seal(store, 6)
    sent(store, 7, "2", row(1, 7))
    assert [(3, 3), (4, 6), (7, 7)] == [(each.first_version, each.last_version) for each in store.segments()]
    assert expected([row(1, 7), row(2, 2)]) == contents(store)


def test_deletes_concern_a_file_from_its_load_on(store: Store) -> None:
    """Whatever rank the file has; what it brings has outranked it at its sender."""
    sent(store, 1, "2", row(9, 9))
    write(store, 2, [row(7, 7)])
    store.delete(3, 1, "plant", "cpu", {"host": ("a",)}, 0, 8)
    seal(store, 4)
    sent(store, 5, "1", *(row(at, at) for at in range(4)), deletes=(CarriedDelete(1, 900, (), 2, 3),))
    assert expected([row(at, at) for at in (0, 1, 3, 9)]) == contents(store)
    store.delete(6, 1, "plant", "cpu", {"host": ("a",)}, 3, None)
    for version in (7, 8):
        assert expected([row(0, 0), row(1, 1)]) == contents(store)
        assert last(store) is None
        seal(store, version)
    merge_all(store, 9)
    assert expected([row(0, 0), row(1, 1)]) == contents(store)


def test_a_plan_looks_once_at_each_of_many_late_files(store: Store) -> None:
    """A burst of thousands may be at one version, and the leader plans again and again."""

    class Counted(dict[str, str]):
        """What senders have settled; `looks` is how often somebody asked."""

        looks = 0

        def get(self, sender: str, default: Any = None, /) -> Any:
            """See dict."""
            self.looks += 1
            return super().get(sender, default)

    sent(store, 1, "1", row(1, 1))
    (entry,) = store.segments()
    late = [replace(entry, synced=(SyncedRows(S1, f"{number:03}", ""),)) for number in range(200)]
    settled = Counted({S1: "199"})
    assert is_settled(late, settled)
    assert settled.looks <= len(late)
    assert not is_settled(late, {S1: "198"})


def test_a_drop_from_before_a_file_does_not_hide_its_last_row(store: Store) -> None:
    """The tombstone of the drop is not sealed yet, and has a rank above the late file."""
    sent(store, 1, "2", row(9, 9), sender=S1)
    assert store.drop(2, 1, "plant", "cpu", 0) is not None
    store._components.queue.popleft()
    store.delete(3, 1, "plant", "cpu", {}, None, 100)
    sent(store, 4, "1", row(5, 5))
    assert expected([row(5, 5)]) == contents(store) == last(store)
    seal(store, 5)
    assert expected([row(5, 5)]) == contents(store) == last(store)


def ranks(*each: tuple[int, int, str], synced: tuple[SyncedRows, ...] = ()) -> list[SegmentEntry]:
    """Entries of one location by first and last version and order."""
    found = []
    for first, last_version, order in each:
        entry = SegmentEntry("", "d", "t", 0, 0, 1, first, last_version, 0, 9, 0, 99, 1, "", "", 1, 0, order=order)
        found.append(replace(entry, name=output_name([replace(entry, generation=-1)]).relative, synced=synced))
    return found


def test_names_sort_as_ranks_do() -> None:
    """A file of a sender is above what ends at its version; a longer order is above its beginning."""
    entries = ranks((1, 4, ""), (4, 4, ""), (4, 4, "1+a"), (4, 4, "1+b"), (4, 4, "1-1+a"), (4, 4, "10+0"), (5, 8, ""))
    names = [each.name for each in entries]
    assert names == sorted(names)
    assert entries == sorted(entries, key=rank_of)


@pytest.mark.parametrize(
    ("inputs", "allowed"),
    [((0, 1, 2, 3), True), ((0, 1), False), ((2, 3), False), ((1, 2), False), ((1,), True), ((0, 1, 2), True)],
)
def test_a_merge_takes_whole_versions(inputs: Sequence[int], allowed: bool) -> None:
    """A file that comes to a version later must find a place between all below and all above."""
    entries = ranks((1, 4, ""), (4, 4, "1+a"), (4, 4, "2+b"), (5, 8, ""))
    assert allowed is are_neighbours([entries[at] for at in inputs], entries)


def test_an_output_never_has_the_name_of_an_input() -> None:
    """The old file stays until its readers are done."""
    low, file = ranks((1, 4, ""), (4, 4, "1+a"))
    assert 1 == output_name([low, file]).generation
    assert (4, "1+a", 1) == (
        output_name([file]).first_version,
        output_name([file]).order,
        output_name([file]).generation,
    )


@pytest.mark.parametrize(("settled", "merges"), [("", 0), ("1", 0), ("2", 1)])
def test_two_files_of_a_sender_are_merged_once_nothing_can_come_between(settled: str, merges: int) -> None:
    """A file that comes later must rank above the one and below the other."""
    (one,), (two,) = (
        ranks((9 + at, 9 + at, f"{at}+a"), synced=(SyncedRows(S1, str(at), settled if at == 2 else ""),))
        for at in (1, 2)
    )
    assert merges == len(plan_compaction([one, two], {}, SETTINGS))
    assert 1 == len(plan_compaction([one, replace(two, synced=(SyncedRows(S2, "2"),))], {}, SETTINGS))


def test_files_of_two_senders_may_have_one_order(store: Store) -> None:
    """Both are late below one merged segment, and neither load is void."""
    for version, sender in ((2, S1), (3, S2)):
        sent(store, version, "5", row(version - 1, 5, {"host": sender}), sender=sender)
    merge_all(store, 4)
    assert [(2, 3, "")] == [rank_of(each)[1:] for each in store.segments()]
    for version, sender in ((10, S1), (11, S2)):
        sent(store, version, "4", row(version - 9, 4, {"host": sender}), sender=sender)
    assert 3 == len(store.segments())
    assert expected([row(1, 5, {"host": S1}), row(2, 5, {"host": S2})]) == contents(store)


def test_a_name_that_an_earlier_build_gives_twice_has_the_series_of_its_own_file(store: Store) -> None:
    """Its leader merges the files of one version alone. Which series a row belongs to must not be that of the first."""
    found = [name for name in map(str, range(50)) if not bucket_of(series_key("cpu", {"host": name}), DATABASE.buckets)]
    for version, sender, host in ((2, S1, found[0]), (3, S2, found[1])):
        sent(store, version, "5", row(version, 5, {"host": host}), sender=sender)
    version, names = merge_all(store, 4), list[str]()
    for order, hosts in (("3", found[2:4]), ("4", found[4:6])):
        for at, (sender, host) in enumerate(zip((S1, S2), hosts, strict=True), 10):
            sent(store, version, order, row(at, 1, {"host": host}), sender=sender)
            version += 1
        assert [] == store.plan_compaction()
        store.compact(version, [each.name for each in store.segments() if each.order]).run()
        names.append(store.segments()[0].name)
        # A query, so that its runs are known.
        assert {(("host", host),) for host in hosts} <= {series for series, _ in contents(store)}
        if order == "3":
            store.delete(version + 1, 1, "plant", "cpu", {"host": tuple(hosts)}, None, None)
            seal(store, version + 2)
            version = merge_all(store, version + 3)
    assert names[0] == names[1]
    for host in found[4:6]:
        with store.scan("plant", "cpu", tags={"host": [host]}) as scan:
            assert [Path(names[1]).name] == [each.name for each in scan.files]


def test_a_merge_keeps_every_column_of_its_inputs(store: Store) -> None:
    """The file of an edge names a version of the table with columns that it lacks, and has integers for decimals."""
    wide = replace(CPU, version=1)
    write(store, 1, [({"host": "a"}, 1, {"busy": 1, "load": 0.5, "note": "x"})], schema=wide)
    seal(store, 2)
    edge = TableSchema("plant", "cpu", 1, ("host",), (("load", FieldType.INT64),))
    sent(store, 3, "1", ({"host": "a"}, 2, {"load": 7}), schema=edge, settled=ALL_SETTLED)
    want = {
        ((("host", "a"),), 1): {"busy": 1, "load": "0.5", "note": "x"},
        ((("host", "a"),), 2): {"load": "7.0"},
    }
    assert want == contents(store)
    assert {((("host", "a"),), 2): {"load": "7.0"}} == last(store)
    merge_all(store, 4)
    (entry,) = store.segments()
    assert want == contents(store)
    names = pq.read_schema(store.segments_directory / entry.name).names
    assert ["host", "rack", "time", "busy", "load", "note", "up"] == names


def test_a_file_moves_with_its_slot_and_keeps_its_place(store: Store, other: Store, tmp_path: Path) -> None:
    """The new holder puts a late file of the sender below it, and deletes of the donor from before stay without effect."""
    sent(store, 1, "3", row(1, 3), row(3, 3))
    write(store, 2, [row(2, 0)])
    store.delete(3, 1, "plant", "cpu", {"host": ("a",)}, 2, 3)
    seal(store, 4)
    sent(store, 5, "2", row(1, 2), row(2, 2))
    moved = slots_of_slices(0)
    seal(store, 6)
    store.hold(6, moved).run()
    cut = store.export(6, moved, tmp_path / "export")
    stage_export(other, tmp_path / "export")
    for version, file in enumerate(cut.files, 1):
        other.load(version, file.load(LEADER, "origin", 4), CPU, DATABASE).run()
    want = expected([row(1, 3), row(2, 2), row(3, 3)])
    assert want == contents(other)
    places = [(rank_of(each), each.synced, each.loaded_rank) for each in other.segments() if each.synced]
    assert places == [(rank_of(e.entry), e.entry.synced, e.entry.loaded_rank) for e in cut.files if e.entry.synced]
    sent(other, 20, "1", row(1, 1), row(0, 1), era=4)
    sent(other, 21, "4", row(3, 4), era=4)
    want = expected([row(0, 1), row(1, 3), row(2, 2), row(3, 4)])
    assert want == contents(other)
    merge_all(other, 22)
    assert want == contents(other)


def test_only_a_store_with_such_files_is_closed_to_earlier_builds(store: Store, home: Path) -> None:
    """They could not rank its files; last rows and entries without sync are as they were."""
    write(store, 1, [row(1, 1)])
    seal(store, 2)
    state = store._components.index._families["state"]
    (entry,) = store.segments()
    assert {"order", "synced", "stores", "loaded_rank"}.isdisjoint(json.loads(entry.to_json()))
    batch = store._components.last(("plant", "cpu", entry.bucket))
    assert batch is not None
    encoded = encode_last(batch)
    assert (b"1", batch) == (state.get(b"format"), decode_last(encoded))
    sent(store, 3, "1", row(5, 5))
    assert b"3" == state.get(b"format")
    seal(store, 4)
    assert b"3" == state.get(b"format")
    synced = next(each for each in store.segments() if each.synced)
    assert synced == SegmentEntry.from_json(synced.to_json())
    batch = store._components.last(("plant", "cpu", synced.bucket))
    assert batch is not None
    assert batch == decode_last(encode_last(batch))
    state.put(b"format", b"4")
    store.close()
    with pytest.raises(StoreFormatUnknown):
        Index(home / "index" / "n1", SETTINGS)


def test_a_merge_that_is_divided_is_void(store: Store) -> None:
    """A leader that did not know of a late file has planned it; every replica leaves it out."""
    sent(store, 1, "2", row(1, 2))
    write(store, 2, [row(2, 0)])
    seal(store, 3)
    names = [each.name for each in store.segments()]
    sent(store, 4, "1", row(1, 1))
    job = store.compact(5, names)
    with pytest.raises(JobSuperseded):
        job.run()
    job.cancel()
