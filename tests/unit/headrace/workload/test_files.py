"""Workloads as files: complete or absent, and the same data in every format."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.workload import Workload, WorkloadInvalid, cpu, iot
from headrace.workload.checksum import checksums
from headrace.workload.encode import json_lines_bytes, line_protocol_bytes
from headrace.workload.files import Format, Progress, target_files, write_files, write_stream

FLEET = iot(8, duration_s=200, disorder=True)


def written(workload: Workload, form: Format, output: Path) -> dict[str, Path]:
    """Write all tables and return their files."""
    files = target_files(workload, form, output, workload.tables)
    *_, last = write_files(workload, form, files)
    assert Progress(workload.rows, workload.points) == last
    return files


@pytest.mark.parametrize("form", [Format.PARQUET, Format.ARROW])
def test_columnar_files_hold_the_tables(tmp_path: Path, form: Format) -> None:
    """A directory gets one file a table, with the columns, types and rows of the table, in order."""
    files = written(FLEET, form, tmp_path / "new" / "fleet")
    assert {f"readings.{form}", f"diagnostics.{form}"} == {path.name for path in (tmp_path / "new" / "fleet").iterdir()}
    for name, path in files.items():
        table = pq.read_table(path) if form is Format.PARQUET else pa.ipc.open_file(path).read_all()
        assert FLEET.read(name).schema.equals(table.schema)
        assert FLEET.read(name).to_pylist() == table.to_pylist()


def test_a_table_whose_rows_are_all_missing_has_columns(tmp_path: Path) -> None:
    """Its file can be read: it was one of no bytes, which no reader takes."""
    lost = iot(1, duration_s=10, seed=18, disorder=True)
    assert {"readings": 0, "diagnostics": 1} == {name: lost.rows_of(name) for name in lost.tables}
    whole = iot(1, duration_s=10, seed=18)
    for form in (Format.PARQUET, Format.ARROW):
        path = written(lost, form, tmp_path / form)["readings"]
        table = pq.read_table(path) if form is Format.PARQUET else pa.ipc.open_file(path).read_all()
        assert (0, whole.read("readings").schema) == (table.num_rows, table.schema)
    for form in (Format.INFLUX, Format.JSON):
        assert b"" == written(lost, form, tmp_path / form)["readings"].read_bytes()


def test_text_files_hold_the_lines(tmp_path: Path) -> None:
    """Text files hold exactly the encoded lines of their table."""
    for name, path in written(FLEET, Format.INFLUX, tmp_path / "lines").items():
        assert line_protocol_bytes(name, FLEET.read(name)) == path.read_bytes()
    for name, path in written(FLEET, Format.JSON, tmp_path / "objects").items():
        assert json_lines_bytes(FLEET.read(name)) == path.read_bytes()


def test_one_line_protocol_file_holds_all_tables(tmp_path: Path) -> None:
    """A path that ends in .lp is one file for every table."""
    files = written(FLEET, Format.INFLUX, tmp_path / "all.lp")
    assert {"readings": tmp_path / "all.lp", "diagnostics": tmp_path / "all.lp"} == files
    lines = (tmp_path / "all.lp").read_bytes().splitlines()
    assert FLEET.rows == len(lines)
    assert {b"readings", b"diagnostics"} == {line.split(b",")[0] for line in lines}


def test_one_table_goes_into_a_named_file(tmp_path: Path) -> None:
    """With one table, a path with the format's suffix is that file; an existing directory stays a directory."""
    servers = cpu(3, duration_s=50)
    assert {"cpu": tmp_path / "x.parquet"} == written(servers, Format.PARQUET, tmp_path / "x.parquet")
    assert checksums(servers.read("cpu")).equals(checksums(pq.read_table(tmp_path / "x.parquet")))
    (tmp_path / "d.json").mkdir()
    assert {"cpu": tmp_path / "d.json" / "cpu.json"} == written(servers, Format.JSON, tmp_path / "d.json")


def test_two_tables_do_not_fit_into_one_file(tmp_path: Path) -> None:
    """Formats without a table name refuse one file for two tables, with an action."""
    with pytest.raises(WorkloadInvalid, match=r"2 tables of iot.*--tables readings"):
        target_files(FLEET, Format.PARQUET, tmp_path / "x.parquet", FLEET.tables)
    with pytest.raises(WorkloadInvalid, match="one json stream"):
        list(write_stream(FLEET, Format.JSON, io.BytesIO(), FLEET.tables))


@pytest.mark.parametrize("form", list(Format))
def test_a_file_is_complete_or_absent(tmp_path: Path, form: Format) -> None:
    """A run that is stopped early leaves neither a file nor a part of one, and the file before it stays."""
    old = tmp_path / f"readings{form.suffixes[0]}"
    old.write_bytes(b"before")
    writing = write_files(FLEET, form, target_files(FLEET, form, tmp_path, FLEET.tables))
    next(writing)
    writing.close()
    assert [old] == list(tmp_path.iterdir())
    assert b"before" == old.read_bytes()


def test_streams_take_text_only() -> None:
    """Standard output gets line protocol of all tables, or JSON of one; columnar formats are refused."""
    stream = io.BytesIO()
    list(write_stream(FLEET, Format.INFLUX, stream, FLEET.tables))
    assert FLEET.rows == len(stream.getvalue().splitlines())
    with pytest.raises(WorkloadInvalid, match="standard output"):
        list(write_stream(FLEET, Format.PARQUET, stream, FLEET.tables))
