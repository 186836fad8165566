"""What a sender has settled, compared with its definition."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.sync.file_states import FileRecord, FileState
from headrace.consumers.sync.listing import ListedFile, Listing
from headrace.consumers.sync.selection import SettledOrders, directory_of, unsent_deletes
from headrace.consumers.sync.sender_state import GroupRecord, SenderState
from headrace.schemas.sync_records import SyncDelete, SyncDeletes, SyncManifest, encode_manifest
from tests.sync_sender import DAY_NS, sealed_file

TEMPLATE = sealed_file({"a": [(DAY_NS, 1.0)]}, version=1).body


def listed(version: int, place: int) -> ListedFile:
    """A file of a version in one of some locations."""
    body = replace(TEMPLATE, file=f"e1/1/{place}/{version}", bucket=place, first_version=version, last_version=version)
    return ListedFile(body, version, "s", "r", settles=True)


def defined(file: ListedFile, files: list[ListedFile], state: SenderState) -> str:
    """What is settled, by the definition: nothing below the lowest undecided file of the location."""
    if any(
        each.state is FileState.REJECTED and directory_of(each.file) == directory_of(file.body.file)
        for each in state.files.values()
    ):
        return ""
    undecided = [each for each in files if not state.files[each.body.file].decided]
    lowest = min(each.body.first_version for each in undecided if each.body.bucket == file.body.bucket)
    return f"{TEMPLATE.era:06}-{lowest - 1:015}"


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 2)), min_size=1, max_size=15, unique=True),
    st.lists(
        st.tuples(st.integers(0, 14), st.sampled_from((FileState.ACCEPTED, FileState.ACCEPTED, FileState.REJECTED)))
    ),
)
def test_orders_are_settled_as_defined(places: list[tuple[int, int]], decisions: list[tuple[int, FileState]]) -> None:
    """Whatever order files are decided in, the answer for each undecided file is that of its definition."""
    files, state = [listed(*each) for each in places], SenderState({})
    for each in files:
        state.put_file(FileRecord(each.body.file, "e1", each.version, 1, "d"))
    orders = SettledOrders(files)
    for place, decision in [*decisions, (-1, FileState.WAITING)]:
        for each in files:
            if not state.files[each.body.file].decided:
                assert defined(each, files, state) == orders.settled(each, state.files, state.rejected)
        if 0 <= place < len(files):
            record = state.files[files[place].body.file]
            state.put_file(record if record.decided else replace(record, state=decision))
    again = SenderState({key: value for key, value in state.changes().records.items() if value is not None})
    assert again.rejected == state.rejected


def test_deletes_of_one_manifest_fit_into_a_record() -> None:
    """Each may name thousands of devices. A manifest that no topic takes would end the sender at each start."""
    values = tuple(f"device-{number:060}" for number in range(3_000))
    large = [SyncDelete(1, number, "d", "t", {"s": values}, None, None) for number in range(1, 101)]
    small = [SyncDelete(1, number, "d", "t", {"s": ("a",)}, None, None) for number in range(101, 1_301)]
    listing = Listing("1", "/", "e1", "e1/1", 0, 2_000, (), (*large, *small))
    parts = unsent_deletes(listing, GroupRecord("e1"))
    assert [*large, *small] == [each for part in parts for each in part]
    manifests = [SyncManifest("u", "s", "", 1, 1, 1, SyncDeletes("e1/1", part)) for part in parts]
    assert max(len(encode_manifest(each)) for each in manifests) < 600_000
    assert 500 == max(map(len, parts))
    huge = replace(large[0], tags={"s": values * 10})
    assert [(huge,)] == unsent_deletes(replace(listing, deletes=(huge,)), GroupRecord("e1"))
