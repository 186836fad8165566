"""`headrace write` as a user runs it: every format, bad lines, and its errors."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import structlog
from typer.testing import CliRunner

from headrace.cli.main import build_app
from headrace.connectors.formats.file_blocks import BLOCK_BYTES
from headrace.connectors.kafka.broker import BrokerInfo
from headrace.workload import iot
from headrace.workload.checksum import compare, workload_checksums
from headrace.workload.encode import line_protocol_bytes
from tests.forward_logs import create_cluster, dicts, stored_checksums

pytestmark = [pytest.mark.broker, pytest.mark.slow(4)]
SECOND = 1_000_000_000


@dataclass(frozen=True)
class Written:
    """The result of a run; `document` is its output with `--json`."""

    code: int
    document: dict[str, Any]
    errors: str


@dataclass(frozen=True)
class Shell:
    """Runs `headrace write` against one cluster."""

    directory: Path
    bootstrap: str
    cluster: str

    def small(self, file: str, *arguments: str, environment: dict[str, str] | None = None) -> Written:
        """Write a file whose times may be small numbers of nanoseconds."""
        finer = {"HEADRACE__WRITE__TIME_RESOLUTION": "ns", **(environment or {})}
        return self.write(file, "--any-time", *arguments, environment=finer)

    def write(self, file: str, *arguments: str, environment: dict[str, str] | None = None) -> Written:
        """Write a file with `--json`, in this process."""
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.directory)
            for name, value in {**self.variables(), **(environment or {})}.items():
                patch.setenv(name, value)
            done = CliRunner().invoke(build_app(["write"]), ["write", file, "--json", "--database", "db", *arguments])
        return Written(done.exit_code, json.loads(done.stdout or "{}"), done.stderr)

    def run(self, file: str, *arguments: str, data: bytes = b"") -> Written:
        """The same in a subprocess, with `data` on standard input."""
        command = [sys.executable, "-m", "headrace", "write", file, "--json", "--database", "db", *arguments]
        variables = {**os.environ, **self.variables(), "PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run(command, input=data, capture_output=True, cwd=self.directory, env=variables, timeout=120)
        return Written(done.returncode, json.loads(done.stdout or b"{}"), done.stderr.decode())

    def variables(self) -> dict[str, str]:
        """The environment variables of the cluster."""
        return {"HEADRACE__CLUSTER__NAME": self.cluster, "HEADRACE__CLUSTER__BOOTSTRAP": self.bootstrap}

    def file(self, name: str, content: str | bytes) -> str:
        """Create a file to write; returns its name."""
        path = self.directory / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return name

    def rows(self, table: str, tags: tuple[str, ...] = ("host",)) -> list[dict[str, Any]]:
        """The rows of a table in the log."""
        return dicts(self.bootstrap, self.cluster, table, tags)


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Restore structlog's configuration, which belongs to the whole process."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def cluster(broker: BrokerInfo) -> str:
    """One cluster for all tests here; each writes its own tables."""
    name = f"t{uuid.uuid4().hex[:12]}"
    create_cluster(broker.bootstrap, name)
    return name


@pytest.fixture
def shell(tmp_path: Path, broker: BrokerInfo, cluster: str) -> Shell:
    """A shell in an empty directory."""
    return Shell(tmp_path, broker.bootstrap, cluster)


@pytest.fixture
def table() -> str:
    """A table that no other test writes."""
    return f"t{uuid.uuid4().hex[:8]}"


def assert_written(written: Written, rows: int, points: int, rejected: int = 0) -> None:
    """Assert that a run succeeded, or rejected bad lines alone."""
    assert (3 if rejected else 0) == written.code, written.errors
    assert {"rows": rows, "points": points, "rejected": rejected} == {
        name: written.document[name] for name in ("rows", "points", "rejected")
    }
    assert written.document["seconds"] >= 0


@pytest.mark.slow(6)
def test_a_fleet_in_line_protocol_arrives_complete(shell: Shell) -> None:
    """Both tables of one gzipped file, with missing and late rows, have the checksums of the workload."""
    workload = iot(30, duration_s=1_800, seed=3, disorder=True)
    lines = b"".join(line_protocol_bytes(name, rows) for name, rows in workload.batches(5_000))
    written = shell.run(shell.file("fleet.lp.gz", gzip.compress(lines, 1)))
    assert_written(written, workload.rows, workload.points)
    for name, expected in workload_checksums(workload).items():
        assert [] == compare(expected, stored_checksums(shell.bootstrap, shell.cluster, name, workload.tags))


def test_bad_lines_are_reported_by_number_and_good_ones_written(shell: Shell, table: str) -> None:
    """Broken lines, no time, NaN where none can be, invalid UTF-8: reported on stderr, counted, exit code
    3.
    """
    lines = [
        f"{table},host=a v=1 1",
        "no fields here",
        f"{table},host=a v=2 2",
        f"{table},host=a v=3",
        f"{table},host=a v=maybe 4",
        f'{table},host=a v="text" 5',
        "",
        "# a comment",
        f"{table},host=a v=6 99999999999999999999",
        f"{table},host=b v=7 7",
    ]
    content = "\n".join(lines).encode() + b"\n" + table.encode() + b",host=\xff v=8 8\n"
    written = shell.small(shell.file("readings.lp", content), "--format", "influx")
    assert_written(written, 3, 3, rejected=6)
    reported = [line.partition(":")[0] for line in written.errors.splitlines()]
    assert ["line 2", "line 4", "line 5", "line 6", "line 9", "line 11"] == reported
    assert [(1, 1.0), (2, 2.0), (7, 7.0)] == [(row["time"], row["v"]) for row in shell.rows(table)]


def test_many_bad_lines_are_counted_after_the_first_twenty(shell: Shell, table: str) -> None:
    """A file of noise does not flood the terminal."""
    written = shell.small(shell.file("noise.lp", "noise\n" * 50 + f"{table} v=1 1\n"))
    assert_written(written, 1, 1, rejected=50)
    assert [f"line {number}" for number in range(1, 21)] == [
        line.partition(":")[0] for line in written.errors.splitlines()[:-1]
    ]
    assert "and 30 more lines refused" == written.errors.splitlines()[-1]


def test_a_line_that_clashes_with_its_table_is_rejected_also_in_a_later_file(shell: Shell, table: str) -> None:
    """The types of the table hold for every file: other types are bad lines, and integers widen to floats."""
    assert_written(shell.small(shell.file("first.lp", f"{table},host=a v=1.5,up=true 1\n")), 1, 2)
    written = shell.small(
        shell.file("second.lp", f'{table},host=a v="x" 2\n{table},host=a v=2i 3\n{table},v=a up=t 4\n')
    )
    assert_written(written, 1, 1, rejected=2)
    assert [(1, 1.5), (3, 2.0)] == [(row["time"], row["v"]) for row in shell.rows(table)]


def test_a_row_that_fits_no_message_is_a_bad_line(shell: Shell, table: str) -> None:
    """A text of 18 MB that compresses to more than a message is rejected by its line number; the lines around
    it are written.
    """
    noise = os.urandom(9_000_000).hex()
    content = f'{table},host=a v="x" 1\n{table},host=a v="{noise}" 2\n{table},host=a v="y" 3\n'
    written = shell.small(shell.file("large.lp", content))
    assert_written(written, 2, 2, rejected=1)
    assert written.errors.startswith(f"line 2: a row of db.{table} takes ")
    assert ["x", "y"] == [row["v"] for row in shell.rows(table)]


def test_json_lines_from_standard_input(shell: Shell, table: str) -> None:
    """Numbers are float64, tags are named, static tags are added, times have the given unit."""
    lines = [
        {"ts": 1, "host": "a", "v": 1, "note": "x"},
        {"ts": 2, "host": "b", "v": 2.5, "site": "south"},
        {"host": "c", "v": 3},
    ]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines) + b"not json\n"
    written = shell.run(
        "-", "--format", "json", "--table", table, "--tags", "host,site", "--tag", "site=north", "--time-column", "ts",
        "--time-unit", "s", "--any-time", data=data,
    )  # fmt: skip
    assert_written(written, 2, 3, rejected=2)
    assert [
        {"time": SECOND, "host": "a", "site": "north", "v": 1.0},
        {"time": 2 * SECOND, "host": "b", "site": "south", "v": 2.5},
    ] == [{name: row[name] for name in ("time", "host", "site", "v")} for row in shell.rows(table, ("host", "site"))]


def test_csv_with_a_time_format_and_a_delimiter(shell: Shell, table: str) -> None:
    """Columns by header, quoted text, empty cells as nulls, text times of a given format."""
    content = 'when;host;v;note\n01.02.2026 03:04;a;1;"x;y"\n01.02.2026 03:05;b;;z\nsoon;a;1;x\n'
    written = shell.small(
        shell.file("readings.csv", content), "--table", table, "--tags", "host", "--time-column", "when",
        "--time-format", "%d.%m.%Y %H:%M", "--delimiter", ";",
    )  # fmt: skip
    assert_written(written, 2, 3, rejected=1)
    assert written.errors.startswith("line 4: ")
    assert [("a", 1, "x;y"), ("b", None, "z")] == [(row["host"], row["v"], row["note"]) for row in shell.rows(table)]


def test_parquet_in_row_groups(shell: Shell, table: str) -> None:
    """Typed columns keep their types; a row without a time is rejected by its number; a file without rows
    creates the table.
    """
    rows = pa.table(
        {
            "time": pa.array([1, 2, None, 4], pa.timestamp("us")),
            "host": pa.array(["a", "b", "c", None]),
            "v": pa.array([1, 2, 3, 4], pa.int32()),
            "w": pa.array([0.5, None, 1.5, float("nan")], pa.float32()),
        }
    )
    path = shell.directory / "readings.parquet"
    pq.write_table(rows, path, row_group_size=2)
    written = shell.small(str(path), "--table", table, "--tags", "host")
    assert_written(written, 3, 5, rejected=1)
    assert written.errors.startswith("row 3: ")
    assert [(1_000, "a", 1), (2_000, "b", 2), (4_000, None, 4)] == [
        (row["time"], row["host"], row["v"]) for row in shell.rows(table)
    ]
    pq.write_table(rows.slice(0, 0), path)
    assert_written(shell.small(str(path), "--table", f"{table}_empty", "--tags", "host"), 0, 0)


def test_an_empty_file_is_no_error(shell: Shell) -> None:
    """Zero rows are written."""
    assert_written(shell.small(shell.file("empty.lp", "")), 0, 0)


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "expected"),
    [
        (["missing.lp"], {}, 2, "missing.lp: no such file"),
        (["readings"], {}, 2, "does not say its format"),
        (["readings", "--format", "xml"], {}, 2, "--format xml is unknown"),
        (["readings.lp", "--time-unit", "d"], {}, 2, "--time-unit d is unknown"),
        (["readings.lp", "--tag", "site"], {}, 2, "--tag site is not KEY=VALUE"),
        (["readings.lp", "-X", "linger.mss=5"], {}, 2, "librdkafka refuses its settings"),
        (["readings.lp"], {"HEADRACE__WRITE__QUORUMS": "2"}, 2, "no setting 'write.quorums'"),
        (["readings.lp", "--cluster", "nowhere"], {}, 1, "no cluster 'nowhere' on this Kafka; check the name"),
        (["readings.lp", "--quorum", "4"], {}, 2, "quorum 4 is more than the 3 members"),
        (["readings.json", "--format", "json"], {}, 2, "need a table"),
        (["readings.parquet", "--table", "t"], {}, 1, "readings.parquet"),
    ],
)
def test_a_failure_is_reported_in_one_line(
    shell: Shell, arguments: list[str], environment: dict[str, str], code: int, expected: str
) -> None:
    """Mistakes on the command line end with exit code 2, failures with 1.

    The error is JSON with `--json`, and stdout is empty.
    """
    for name in ("readings", "readings.lp", "readings.json", "readings.parquet"):
        shell.file(name, "t,host=a v=1 1\n")
    written = shell.small(*arguments, environment=environment)
    assert (code, {}) == (written.code, written.document), written.errors
    assert expected in json.loads(written.errors.splitlines()[-1])["error"]["message"]


def test_a_quorum_that_nobody_confirms_is_an_unknown_state(shell: Shell, table: str) -> None:
    """Without live nodes two copies are never acknowledged; the rows are in the log."""
    written = shell.small(
        shell.file("one.lp", f"{table},host=a v=1 1\n"),
        "--quorum",
        "2",
        environment={"HEADRACE__WRITE__QUORUM_TIMEOUT_MS": "200"},
    )
    assert (1, {}) == (written.code, written.document)
    error = json.loads(written.errors.splitlines()[-1])["error"]
    assert ("QuorumTimeout", True) == (error["type"], error["state_unknown"])
    assert [1] == [row["time"] for row in shell.rows(table)]


T0_S = 1_767_225_600
T0 = T0_S * SECOND


def failed(written: Written) -> dict[str, Any]:
    """The error of a run that printed nothing on stdout."""
    assert {} == written.document
    error: dict[str, Any] = json.loads(written.errors.splitlines()[-1])["error"]
    return error


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_rows_of_two_series_without_tags_are_refused(shell: Shell, table: str, form: str) -> None:
    """Two sites at one time, and no `--tags`: nothing is written, and no table made. `--no-tags` takes them and
    counts the row that was replaced; with `--tags` none is.
    """
    rows = pa.table(
        {"time": [T0, T0 + SECOND, T0], "site": ["north", "north", "south"], "flow": [1.5, 2.5, 3.5]},
    )
    file = shell.file(f"flows.{form}", "time,site,flow\n" if form == "csv" else "")
    if form == "parquet":
        pq.write_table(rows, shell.directory / file)
    else:
        with (shell.directory / file).open("a") as lines:
            for row in rows.to_pylist():
                lines.write((json.dumps(row) if form == "json" else ",".join(map(str, row.values()))) + "\n")
    refused = shell.write(file, "--table", table)
    assert (3, "RowsRepeat") == (refused.code, failed(refused)["type"])
    assert "2026-01-01T00:00:00Z" in failed(refused)["message"]
    assert "--tags" in failed(refused)["action"]
    assert "nothing was written" == refused.errors.splitlines()[0]
    assert [] == shell.rows(table, ())
    untagged = shell.write(file, "--table", table, "--no-tags")
    assert_written(untagged, 3, 6)
    assert (1, True) == (untagged.document["replaced"], untagged.document["replaced_exact"])
    tagged = shell.write(file, "--table", f"{table}_tagged", "--tags", "site")
    assert (3, 0) == (tagged.document["rows"], tagged.document["replaced"])


def test_a_repeated_time_is_also_found_on_standard_input(shell: Shell, table: str) -> None:
    """However far behind the repeated time is: nothing of a pipe is written before all of it is checked."""
    lines = "".join(f"{T0 + number * SECOND},north,1\n" for number in range(BLOCK_BYTES // 25))
    data = f"time,site,flow\n{lines}{T0},south,2\n".encode()
    assert len(data) > BLOCK_BYTES
    refused = shell.run("-", "--format", "csv", "--table", table, data=data)
    assert (3, "RowsRepeat") == (refused.code, failed(refused)["type"])
    assert [] == shell.rows(table, ())


@pytest.mark.parametrize(
    ("unit", "per_second", "name"), [("s", 1, "seconds"), ("ms", 10**3, "milliseconds"), ("us", 10**6, "microseconds")]
)
def test_another_unit_than_nanoseconds_is_refused_by_its_name(
    shell: Shell, table: str, unit: str, per_second: int, name: str
) -> None:
    """The size of the first values only refuses; the option that the message names writes them."""
    file = shell.file(
        "readings.lp", f"{table},host=a v=1 {T0_S * per_second}\n{table},host=a v=2 {(T0_S + 1) * per_second}\n"
    )
    refused = shell.write(file)
    error = failed(refused)
    assert (3, "TimesImplausible") == (refused.code, error["type"])
    assert f"these look like {name}" in error["message"]
    assert f"--time-unit {unit}" in error["action"]
    assert [] == shell.rows(table)
    assert_written(shell.write(file, "--time-unit", unit), 2, 2)
    assert [T0, T0 + SECOND] == [row["time"] for row in shell.rows(table)]


def test_a_clock_that_was_not_set_costs_its_line(shell: Shell, table: str) -> None:
    """A time in 1970 among good ones is a bad line, which `--any-time` takes."""
    file = shell.file("readings.lp", f"{table},host=a v=1 {T0}\n{table},host=a v=2 3600000000000\n")
    written = shell.write(file)
    assert_written(written, 1, 1, rejected=1)
    assert written.errors.startswith("line 2: the time is outside 1980 to 2100")
    assert_written(shell.write(file, "--any-time"), 2, 2)


def test_times_finer_than_the_table_keeps_are_bad_lines(shell: Shell, table: str) -> None:
    """Microseconds by default, for good: finer times are refused by number and never rounded. A table made with
    nanoseconds takes them.
    """
    file = shell.file("fine.lp", f"{table},host=a v=1 {T0 + 1_000}\n{table},host=a v=2 {T0 + 1}\n")
    written = shell.write(file)
    assert_written(written, 1, 1, rejected=1)
    assert written.errors.startswith(f"line 2: the time is finer than the microseconds of table '{table}'")
    kept = shell.write(file, "--time-resolution", "ns")
    assert (2, "ResolutionFixed") == (kept.code, failed(kept)["type"])
    setting = {"HEADRACE__WRITE__TIME_RESOLUTION": "ns"}
    assert_written(shell.write(file, environment=setting), 1, 1, rejected=1)
    fine = shell.file("other.lp", (shell.directory / file).read_bytes().replace(table.encode(), f"{table}_ns".encode()))
    assert_written(shell.write(fine, "--time-resolution", "ns"), 2, 2)
    assert [T0 + 1, T0 + 1_000] == [row["time"] for row in shell.rows(f"{table}_ns")]


def test_nan_is_counted_or_refused(shell: Shell, table: str) -> None:
    """NaN is a value: it is written and counted, and `--reject-nan` refuses its line. A row that replaces another
    one is counted too.
    """
    lines = [f"{table},host=a flow=1.5 {T0}", f"{table},host=b flow=nan,n=1i {T0}", f"{table},host=a flow=nan {T0}"]
    file = shell.file("readings.lp", "\n".join(lines))
    written = shell.write(file)
    assert_written(written, 3, 4)
    assert (2, 1) == (written.document["nan"], written.document["replaced"])
    refused = shell.write(file, "--reject-nan")
    assert_written(refused, 1, 1, rejected=2)
    assert ["line 2: field 'flow' is nan", "line 3: field 'flow' is nan"] == refused.errors.splitlines()
    assert 0 == refused.document["nan"]


def test_json_documents_are_read(shell: Shell, table: str) -> None:
    """An array over several lines, indented objects and a pipe give the rows of JSON lines; a bad element is one line."""
    rows = [{"time": number, "host": f"h{number}", "v": number / 2} for number in range(1, 5)]
    options = ("--table", table, "--tags", "host")
    assert_written(shell.small(shell.file("array.json", json.dumps(rows[:2], indent=2)), *options), 2, 2)
    objects = "\n".join(json.dumps(row, indent=4) for row in rows[2:])
    assert_written(shell.run("-", "--format", "json", "--any-time", *options, data=objects.encode()), 2, 2)
    assert [(1, 0.5), (2, 1.0), (3, 1.5), (4, 2.0)] == [(row["time"], row["v"]) for row in shell.rows(table)]
    broken = (
        '[\n{"time": 5, "host": "a", "v": 1},\n{"time": 6, "host: "b", "v": 2},\n{"time": 7, "host": "c", "v": 3}\n]'
    )
    written = shell.small(shell.file("broken.json", broken), *options)
    assert_written(written, 2, 2, rejected=1)
    assert written.errors.startswith("line 3: not JSON")


def test_a_parquet_column_is_left_out_by_name(shell: Shell, table: str) -> None:
    """A list column is named on stderr and in the JSON with exit code 3; dates and decimals are written."""
    columns = {
        "time": pa.array([1, 2]),
        "day": pa.array([19_000, 20_000], pa.date32()),
        "price": pa.array([Decimal("125.00"), Decimal("250.25")], pa.decimal128(19, 2)),
        "samples": pa.array([[1.0], [2.0, 3.0]]),
    }
    pq.write_table(pa.table(columns), shell.directory / "mixed.parquet")
    written = shell.small("mixed.parquet", "--table", table)
    assert (3, 2, 0) == (written.code, written.document["rows"], written.document["rejected"]), written.errors
    assert ["samples"] == list(written.document["refused_columns"])
    assert "column 'samples' is left out: it has type list<" in written.errors
    assert [("2022-01-08", 125.0), ("2024-10-04", 250.25)] == [
        (row["day"], row["price"]) for row in shell.rows(table, ())
    ]
