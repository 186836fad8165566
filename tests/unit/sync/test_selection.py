"""What a sender has settled, compared with its definition."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.sync.file_states import FileRecord, FileState
from headrace.consumers.sync.listing import ListedFile
from headrace.consumers.sync.selection import SettledOrders, directory_of
from headrace.consumers.sync.sender_state import SenderState
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
