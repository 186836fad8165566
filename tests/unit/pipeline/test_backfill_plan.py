"""Which files a backfill writes, and what it refuses before anything is written."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.connectors.files import DirectoryHeld
from headrace.connectors.formats.interface import FormatOptions
from headrace.pipeline.backfill_plan import (
    BackfillFormat,
    BackfillJob,
    BackfillPlan,
    FileChanged,
    FileRefused,
    FilesMissing,
    PlannedFile,
    file_digest,
    file_state,
    find_files,
    plan_files,
)
from headrace.pipeline.backfill_state import STATE_FILE, BackfillState, FileState, Known, StateDamaged
from headrace.pipeline.source_options import Target


def job_of(form: BackfillFormat = "csv") -> BackfillJob:
    """A job with one tag."""
    return BackfillJob(Target("db", "t"), form, FormatOptions(table="t", tags=("site",)))


def csv(path: Path, text: str = "site,time,x\na,1,2\n") -> str:
    """A file with one row."""
    path.write_text(text)
    return str(path)


def finish(state: BackfillState, plan: BackfillPlan) -> None:
    """What a run records behind the last row of its files."""
    state.note((each.path, Known(each.state, each.batch, file_digest(each.path))) for each in plan.files)


def test_patterns_give_each_file_once(tmp_path: Path) -> None:
    """In order of name, with folders for `**`, and a name with brackets as it is; none and a directory are errors."""
    (tmp_path / "deep").mkdir()
    files = [csv(tmp_path / name) for name in ("b.csv", "a[1].csv", "deep/c.csv")]
    assert sorted(files) == find_files([f"{tmp_path}/**/*.csv", f"{tmp_path}/b.csv", f"{tmp_path}/a[1].csv"])
    with pytest.raises(FilesMissing, match="no file matches"):
        find_files([f"{tmp_path}/*.parquet"])
    with pytest.raises(FilesMissing, match="is a directory"):
        find_files([str(tmp_path)])


def test_a_repeat_has_the_producer_of_the_first_time() -> None:
    """From whatever folder. In order a file with the content of an earlier one is another one, and wins again."""
    plain, ordered = job_of(), replace(job_of(), ordered=True)
    assert plain.producer("a.csv", "d") == plain.producer("b/a.csv", "d") != plain.producer("a.csv", "e")
    assert ordered.producer("a.csv", "d") == ordered.producer("a.csv", "d")
    assert len({each.producer(path, "d") for each in (plain, ordered) for path in ("a.csv", "b.csv", "b\udcff")}) == 4
    assert plain.digest == ordered.digest
    # Rows of before a drop are not there, however they were written.
    assert plain.producer("a.csv", "d") != replace(plain, drops=1).producer("a.csv", "d")
    assert plain.digest != replace(plain, drops=1).digest


def test_finished_files_are_left_out_and_begun_ones_repeated(tmp_path: Path) -> None:
    """By size and time, and for a copy by its content."""
    paths = [csv(tmp_path / name) for name in ("a.csv", "b.csv")]
    with BackfillState(tmp_path / "state", "k") as state:
        first = plan_files(job_of(), paths[:1], state)
        finish(state, first)
        state.note([(paths[1], Known(file_state(paths[1]), 1))])
    os.utime(paths[0], ns=(1, 1))
    with BackfillState(tmp_path / "state", "k") as state:
        assert [(paths[1], 1)] == [(each.path, each.batch) for each in plan_files(job_of(), paths, state).files]
    with BackfillState(tmp_path / "state", "another job") as state:
        assert [1, 1] == [each.batch for each in plan_files(job_of(), paths, state).files]


def test_what_is_written_again_is_above_all_that_was_written(tmp_path: Path) -> None:
    """By whatever state: replicas drop an older batch, and what they have of one that was begun. So rows that were
    deleted in between would stay away.
    """
    paths = [csv(tmp_path / name) for name in ("a.csv", "b.csv")]

    def batches(state: BackfillState, now_ms: int) -> list[int]:
        return [each.batch for each in plan_files(job_of(), paths, state, again=True, now_ms=now_ms).files]

    with BackfillState(tmp_path / "one", "k") as one, BackfillState(tmp_path / "other", "k") as other:
        finish(one, plan_files(job_of(), paths[:1], one))
        one.note([(paths[1], Known(file_state(paths[1]), 1))])
        # Without the state of the first run.
        assert [77, 77] == batches(other, 77)
        assert [88, 88] == batches(one, 88)
        finish(one, plan_files(job_of(), paths, one, again=True, now_ms=88))
        # With a clock that was set back.
        assert [89, 89] == batches(one, 66)


def test_a_changed_file_is_named(tmp_path: Path) -> None:
    """Written or begun: its rows of before may be there. Allowed, it is a newer batch."""
    path = csv(tmp_path / "a.csv")
    for digest in ("", "done"):
        with BackfillState(tmp_path / f"state{digest}", "k") as state:
            state.note([(path, Known(FileState(1, 1), 1, digest))])
            with pytest.raises(FileChanged, match=r"a\.csv changed since"):
                plan_files(job_of(), [path], state)
            assert [2] == [each.batch for each in plan_files(job_of(), [path], state, changed=True).files]


def test_state_survives_a_torn_line_and_one_process_holds_it(tmp_path: Path) -> None:
    """The last line may be cut by a crash; any other damage is an error."""
    directory, path = tmp_path / "state", csv(tmp_path / "a.csv")
    with BackfillState(directory, "k") as state:
        state.note([(path, Known(file_state(path), 1, "d"))])
        with pytest.raises(DirectoryHeld):
            BackfillState(directory, "k")
    with (directory / STATE_FILE).open("a") as file:
        file.write('{"file": "/torn')
    with BackfillState(directory, "k") as state:
        state.note([("/b", Known(FileState(1, 2), 3))])
    with BackfillState(directory, "k") as state:
        assert Known(file_state(path), 1, "d") == state.known(path)
        assert Known(FileState(1, 2), 3) == state.known("/b")
    (directory / STATE_FILE).write_text("nothing\n")
    with pytest.raises(StateDamaged, match="line 1 of"):
        BackfillState(directory, "k")


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may note its file behind it; the error names the file, and what was not written is not known."""
    written = os.write

    def full(file: int, data: memoryview) -> int:
        if len(data) < 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(file, data[:-19])

    with BackfillState(tmp_path, "k") as state:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match=STATE_FILE):
            state.note([("/a", Known(FileState(1, 2), 3))])
        monkeypatch.undo()
        assert state.known("/a") is None
        state.note([("/b", Known(FileState(1, 2), 3))])
    with BackfillState(tmp_path, "k") as state:
        assert [None, Known(FileState(1, 2), 3)] == [state.known("/a"), state.known("/b")]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "is empty"),
        ("sit,time,x\na,1,2\n", r"no column 'site' for the tag.*did you mean sit"),
        ("site,at,x\na,1,2\n", "no column 'time' for the time"),
        ("PAS1\0\xff", "control character"),
    ],
)
def test_csv_files_that_do_not_fit_are_refused(tmp_path: Path, text: str, named: str) -> None:
    """By their header, with the file's name."""
    path = csv(tmp_path / "a.csv", text)
    with BackfillState(tmp_path / "state", "k") as state, pytest.raises(FileRefused, match=f"(?s)a.csv.*{named}"):
        plan_files(job_of(), [path], state)


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"time": pa.array([1, None]), "site": ["a", "b"], "x": [1.0, 2.0]}, "1 rows have no time"),
        ({"time": [1, 2], "site": ["a", "b"], "x": [[1], [2]]}, r"column 'x' has type list.*no field"),
        ({"time": [1, 2], "sites": ["a", "b"]}, "did you mean sites"),
    ],
)
def test_parquet_files_that_do_not_fit_are_refused(tmp_path: Path, columns: dict[str, object], named: str) -> None:
    """By their footer, with the file's name."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path)
    with BackfillState(tmp_path / "state", "k") as state:
        with pytest.raises(FileRefused, match=f"(?s)a.parquet.*{named}"):
            plan_files(job_of("parquet"), [str(path)], state)
        with pytest.raises(FileRefused, match=r"cannot be read as parquet"):
            plan_files(job_of("parquet"), [csv(tmp_path / "b.parquet")], state)


def test_folders_give_tags_to_the_files_that_lack_them(tmp_path: Path) -> None:
    """As Spark's `partitionBy` writes them. The same content in two folders is not a repeat."""
    folders = ("site=a b", "site=c%2Fd", "site=__HIVE_DEFAULT_PARTITION__", "plain", "x=1/site=e")
    paths = [str(tmp_path / folder / "f.csv") for folder in folders]
    for path in paths:
        Path(path).parent.mkdir(parents=True)
        csv(Path(path), "time,x\n1,2\n" if "site=" in path else "site,time,x\na,1,2\n")
    job = job_of()
    with BackfillState(tmp_path / "state", "k") as state:
        planned = plan_files(job, paths, state).files
        assert [(("site", value),) for value in ("a b", "c/d", "")] == [each.folder_tags for each in planned[:3]]
        # A column of the file comes first.
        assert [(), (("site", "e"),)] == [each.folder_tags for each in planned[3:]]
        assert ("site", "a b") in job.options_of(planned[0]).static_tags
        assert [(), ("site",)] == [job.options_of(each).tags for each in planned[2:4]]
        untagged = replace(job, options=replace(job.options, tags=()))
        assert planned[0].folder_tags == plan_files(untagged, paths[:1], state, ("site",)).files[0].folder_tags
    assert len({job.producer(each.path, "d", each.folder_tags) for each in planned}) == 5
    assert job.producer("f", "d") == job.producer("f", "d", planned[3].folder_tags)


def test_a_tag_for_every_row_is_for_those_whose_folder_has_none() -> None:
    """As for files: rows of two folders would get one tag, and replace each other."""
    job = job_of()
    job = replace(job, options=replace(job.options, static_tags=(("site", "unknown"), ("unit", "u"))))
    for value, tag, absent in (("a", "a", ()), ("", "unknown", ())):
        file = PlannedFile(0, "f", FileState(1, 1), folder_tags=(("site", value),))
        assert {"site": tag, "unit": "u"} == dict(job.options_of(file).static_tags)
        assert absent == job.absent_tags(file)
    nothing = PlannedFile(0, "f", FileState(1, 1), folder_tags=(("site", ""),))
    assert ("site",) == job_of().absent_tags(nothing)
    assert () == job_of().options_of(nothing).static_tags


def test_folders_that_nobody_decided_about_are_refused(tmp_path: Path) -> None:
    """Rows of two folders could replace each other without a word. A tag for every row decides as well."""
    path = tmp_path / "day=1" / "site=a" / "f.csv"
    path.parent.mkdir(parents=True)
    csv(path)
    job = job_of()
    decided = replace(job, options=replace(job.options, static_tags=(("day", "7"),)))
    with BackfillState(tmp_path / "state", "k") as state:
        with pytest.raises(FileRefused, match="column 'day'") as refused:
            plan_files(job, [str(path)], state)
        assert "--tags day" in refused.value.action
        assert "--ignore-folders" in refused.value.action
        for each in (decided, replace(job, ignores_folders=True)):
            assert () == plan_files(each, [str(path)], state).files[0].folder_tags
    assert job.digest == replace(job, ignores_folders=True).digest


def test_a_parquet_file_that_is_read_as_csv_is_named_as_one(tmp_path: Path) -> None:
    """Its bytes are in no message: they would reach a terminal."""
    path = str(tmp_path / "a.csv")
    pq.write_table(pa.table({"time": [1], "x": [1.5]}), path)
    with BackfillState(tmp_path / "s", "i") as state, pytest.raises(FileRefused, match="is a Parquet file") as raised:
        plan_files(job_of("csv"), [path], state)
    assert str(raised.value).isprintable()


def test_small_files_share_a_task_and_large_ones_do_not() -> None:
    """In the order of the plan."""
    sizes = [40 << 20, 10, 20 << 20, 20 << 20, *[1] * 65]
    files = tuple(PlannedFile(number, f"/{number}", FileState(size, 0)) for number, size in enumerate(sizes))
    chunks = BackfillPlan(files).chunks()
    assert [1, 3, 64, 1] == [len(each) for each in chunks]
    assert files == tuple(each for chunk in chunks for each in chunk)


def test_secrets_are_in_no_text_of_a_job() -> None:
    """Settings of librdkafka go to the workers, and into no plan, log or message."""
    target = Target("db", "t", kafka=(("sasl.password", "hidden"),))
    assert "hidden" not in repr(BackfillJob(target, "csv"))
