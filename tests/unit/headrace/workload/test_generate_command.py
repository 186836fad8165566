"""`headrace generate`: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner, Result

from headrace.cli import generate
from headrace.workload import iot
from headrace.workload.checksum import checksums
from headrace.workload.encode import json_lines_bytes, line_protocol_bytes


def run(*arguments: object) -> Result:
    """Run the command line with the noun `generate` alone."""
    app = typer.Typer()
    app.callback()(lambda: None)
    generate.register(app)
    return CliRunner().invoke(app, ["generate", *map(str, arguments)])


def test_writes_parquet_files_and_prints_the_counts(tmp_path: Path) -> None:
    """By default each table is a Parquet file in the directory; --json prints rows, points, seconds and files."""
    output = tmp_path / "deep" / "fleet"
    result = run("iot", "--trucks", 3, "--duration", "5m", "--seed", 9, "--disorder", "--output", output, "--json")
    fleet = iot(3, duration_s=300, seed=9, disorder=True)
    document = json.loads(result.stdout)
    assert 0 == result.exit_code
    assert ["rows", "points", "seconds", "files"] == list(document)
    assert (fleet.rows, fleet.points) == (document["rows"], document["points"])
    assert [str(output / "readings.parquet"), str(output / "diagnostics.parquet")] == document["files"]
    for name in fleet.tables:
        assert checksums(fleet.read(name)).equals(checksums(pq.read_table(output / f"{name}.parquet")))


def test_prints_a_line_for_people(tmp_path: Path) -> None:
    """Without --json one line has the counts and the path."""
    result = run("cpu", "--hosts", 200, "--duration", "1m", "--format", "arrow", "-o", tmp_path / "cpu.arrow")
    assert result.stdout.startswith("1,200 rows, 12,000 points in ")
    assert result.stdout.endswith(f": {tmp_path / 'cpu.arrow'}\n")


def test_the_suffix_of_the_output_selects_the_format(tmp_path: Path) -> None:
    """Without --format a name that ends in .lp gets line protocol; any other name is a directory of Parquet."""
    result = run("iot", "--trucks", 2, "--duration", "30s", "-o", tmp_path / "fleet.lp")
    fleet = iot(2, duration_s=30)
    assert 0 == result.exit_code
    lines = b"".join(line_protocol_bytes(name, fleet.read(name)) for name in fleet.tables)
    assert sorted(lines.splitlines()) == sorted((tmp_path / "fleet.lp").read_bytes().splitlines())
    run("iot", "--trucks", 2, "--duration", "30s", "-o", tmp_path / "fleet.d")
    assert (tmp_path / "fleet.d" / "readings.parquet").exists()


def test_line_protocol_on_standard_output() -> None:
    """- writes the lines of all tables to stdout, and the counts to stderr."""
    result = run("iot", "--trucks", 2, "--duration", "30s", "--format", "influx", "--output", "-", "--json")
    fleet = iot(2, duration_s=30)
    assert b"".join(line_protocol_bytes(name, fleet.read(name)) for name in fleet.tables) == result.stdout_bytes
    assert {"rows": 12, "points": 60, "files": []}.items() <= json.loads(result.stderr).items()


def test_json_of_one_table_on_standard_output() -> None:
    """--tables chooses the one table that JSON on stdout holds."""
    result = run("iot", "--trucks", 2, "--duration", "30s", "--format", "json", "-o", "-", "--tables", "diagnostics")
    assert json_lines_bytes(iot(2, duration_s=30).read("diagnostics")) == result.stdout_bytes
    assert result.stderr.startswith("6 rows, 18 points in ")


def test_start_and_interval() -> None:
    """The first row is at --start, the others follow at --interval."""
    line = ("cpu", "--hosts", 1, "--duration", "1s", "--interval", "500ms", "--format", "json", "-o", "-", "--start")
    for start in ("2020-01-01T01:00:00+01:00", "2020-01-01", "1577836800000000000"):
        times = [json.loads(text)["time"] for text in run(*line, start).stdout.splitlines()]
        assert [1577836800000000000, 1577836800500000000] == times


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["iot", "--duration", "soon"], "error: --duration soon is not a duration"),
        (["iot", "--interval", "-1s"], "error: --interval -1s is not a duration"),
        (["iot", "--duration", "5s"], "error: 5.0 s hold no row at an interval of 10.0 s"),
        (["iot", "--start", "1767225600"], "error: --start 1767225600 looks like seconds"),
        (["iot", "--start", "now"], "error: --start now is not a time"),
        (["iot", "--start", "9" * 20], f"error: --start {'9' * 20} is a time that no row has"),
        (["iot", "--start", "2262-04-11T23:40:00"], "error: the data set leaves the years 1677 to 2262"),
        (["iot", "--trucks", "0"], "error: 0 trucks: give 1 to 1000000"),
        (["iot", "--seed", "-1"], "error: seed -1 is negative"),
        (["iot", "--format", "avro"], "error: --format avro is unknown"),
        (["iot", "--tables", "readings,cpu"], "error: iot has no table 'cpu'"),
        (["iot", "--format", "json"], "error: one json stream cannot hold the 2 tables of iot"),
        (["cpu", "--format", "parquet"], "error: parquet cannot be written to standard output"),
    ],
)
def test_usage_errors_are_one_line(arguments: list[str], message: str) -> None:
    """A mistake on the command line is named in one line, the exit code is 2, and stdout stays empty."""
    result = run(*arguments, "--output", "-")
    assert 2 == result.exit_code
    assert message == result.stderr.splitlines()[0]
    assert b"" == result.stdout_bytes


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    """A path below a file is an error of one line that names it; the exit code is 1."""
    (tmp_path / "file").write_text("")
    result = run("cpu", "--output", tmp_path / "file" / "below")
    assert 1 == result.exit_code
    assert str(tmp_path / "file") in result.stderr
    assert 1 == len(result.stderr.splitlines())


@pytest.mark.parametrize(("text", "seconds"), [("90m", 5_400), ("1h30m", 5_400), ("1.5h", 5_400), ("1d", 86_400)])
def test_durations(text: str, seconds: float) -> None:
    """Durations are numbers with units, one or several in a row."""
    assert seconds == generate.parse_duration("--duration", text)
