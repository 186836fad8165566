"""Which segment files are read, and which overlap: from names and footers alone."""

from __future__ import annotations

from headrace.pipeline.segment_files import Footer, FoundFile, found_file, live_files, newest_copies, overlapping


def named(name: str, place: str = "20454-3") -> FoundFile:
    """A file of a slice and bucket by its name."""
    found = found_file(f"/n1/segments/n1/plant/cpu/{place}/{name}.parquet")
    assert found is not None, name
    return found


def ranks(first: int, last: int, suffix: str = "", era: int = 1) -> str:
    """The name of a file that holds these versions."""
    return f"{era:06}-{first:015}-{last:015}{suffix}"


def test_replaced_files_are_not_read() -> None:
    """A merge has the rows of its inputs, and a rewrite those of the file before it, until these are unlinked."""
    merged, next_one, other_era = named(ranks(1, 9)), named(ranks(10, 12)), named(ranks(3, 4, era=2))
    rewritten = named(ranks(10, 12, "-1"))
    inputs = [named(ranks(1, 4)), named(ranks(5, 9)), named(ranks(6, 7))]
    apart = named(ranks(1, 4), "20455-3")
    found = live_files([*inputs, merged, next_one, rewritten, other_era, apart])
    assert {merged, rewritten, other_era, apart} == set(found)


def test_files_of_senders_stay_beside_each_other() -> None:
    """Several files of one version differ in their order, and none has the rows of another one."""
    files = [named(ranks(5, 5)), named(ranks(5, 5, "_a1")), named(ranks(5, 5, "_a2"))]
    assert set(files) == set(live_files(files))
    assert [named(ranks(4, 6))] == live_files([*files, named(ranks(4, 6))])


def test_other_files_are_no_segments() -> None:
    """What is being written, and what lies in another directory, is not read."""
    for path in ("n1/x/20454-3/a.parquet", f"n1/{ranks(1, 2)}.parquet", f"n1/0-0/{ranks(1, 2)}.parquet.partial"):
        assert found_file(path) is None


def test_of_several_copies_of_a_group_the_newest_is_read() -> None:
    """Two nodes have one group; the one that is behind is left out."""
    behind, newest = [named(ranks(1, 4))], [named(ranks(1, 9))]
    assert newest == newest_copies({"n1": {"/n1": behind, "/n2": newest}})


def test_only_files_that_share_time_overlap() -> None:
    """Within one slice and bucket, also when a long file reaches over several short ones."""
    long, inside, later, touching, after = (named(ranks(first, first)) for first in range(1, 6))
    elsewhere = named(ranks(1, 1), "20454-4")
    times = {long: (0, 100), inside: (10, 20), later: (50, 60), touching: (100, 110), after: (111, 120)}
    footers = {each: Footer(*between, (), (), 1) for each, between in {**times, elsewhere: (0, 200)}.items()}
    assert {long, inside, later, touching} == overlapping(footers)
