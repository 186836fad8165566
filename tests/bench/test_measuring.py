"""The parts of the benchmarks: options, ratios, percentiles, hashes, noise, and legs in child processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from headrace.bench import sync, sync_limits
from headrace.bench.content import tag_names, written_checksums
from headrace.bench.measurement import (
    content_hash,
    in_child,
    percentiles,
    ratio,
    ratio_text,
    summary,
)
from headrace.bench.noise import ROW_BYTES, TAGS, Noise
from headrace.bench.options import Options, OptionUnknown
from headrace.bench.recovery import BenchStuck
from headrace.bench.replay import store_digests
from headrace.cli.bench import BENCHES
from headrace.cli.main import build_app
from headrace.consumers.store import Store
from headrace.schemas.errors import HeadraceError
from headrace.workload.checksum import compare

OPTIONS = Options({"rows": 100, "rate": 0.5, "way": "a", "seed": 1, "dir": ""}, among={"way": ("a", "b")})


def refuse(reason: str) -> None:
    """A child that fails."""
    raise BenchStuck(reason)


def die(code: int) -> None:
    """A child that ends without an answer."""
    os._exit(code)


def test_options_have_the_type_of_their_default(tmp_path: Path) -> None:
    """A given option overrides the default and has its type; the rest are defaults."""
    given = {"rows": "7", "dir": str(tmp_path), "seed": "0"}
    assert {"rows": 7, "rate": 0.5, "way": "a", "seed": 0, "dir": str(tmp_path)} == OPTIONS.chosen(given)


@pytest.mark.parametrize(
    "options",
    [
        *({"row": "7"}, {"rows": "many"}, {"rows": "0"}, {"rows": "-1"}, {"seed": "-1"}),
        *({"rate": "nan"}, {"rate": "inf"}, {"rate": "0"}, {"way": "c"}, {"dir": "/no/such/directory"}),
    ],
)
def test_an_invalid_option_is_refused(options: dict[str, str]) -> None:
    """A misspelt name, text in place of a number, and what no run can use are errors, not defaults."""
    with pytest.raises(OptionUnknown):
        OPTIONS.chosen(options)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        *((name, "wrong=1") for name in BENCHES),
        *((name, "rounds=0") for name in BENCHES if name not in ("migrate", "fairness")),
        *((name, "rows=3") for name in ("ingest", "http", "replication", "recovery")),
        *(("ingest", "compression=zip"), ("replication", "compression=zip"), ("sync", "digest=sha1")),
        *(("migrate", "days=1"), ("spark", "parts="), ("spark", "parts=tables"), ("spark", "rows=1000")),
    ],
)
def test_a_benchmark_refuses_an_option_before_it_measures(name: str, option: str) -> None:
    """With exit code 2, and before a line that it measures."""
    answer = CliRunner().invoke(build_app(["bench"]), ["bench", name, "-o", option])
    assert 2 == answer.exit_code, answer.stderr
    assert answer.stderr.startswith("error: ")
    assert "measuring" not in answer.output


@pytest.mark.parametrize(
    ("name", "option"), [("queries", "trucks=0"), ("replication", "load_rows=0"), ("wal", "peers=0")]
)
def test_nothing_of_a_kind_may_be_asked_for(name: str, option: str) -> None:
    """Of what can be left out there may be none."""
    key, _, value = option.partition("=")
    assert 0 == import_module(BENCHES[name]).OPTIONS.chosen({key: value})[key]


def test_a_ratio_is_computed_round_by_round() -> None:
    """A round that was slow for both does not count against either; the median decides."""
    figure = ratio([10.0, 1.0, 8.0], [20.0, 2.0, 10.0], 0.6)
    assert {"median": 0.5, "min": 0.5, "max": 0.8, "least": 0.6, "met": False} == figure
    assert "0.50 (0.50 to 0.80), at least 0.6: missed" == ratio_text(figure)
    assert summary([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0}


def test_percentiles_are_measured_values() -> None:
    """p50 and p99 of 1 to 101."""
    assert {"p50": 51.0, "p99": 100.0, "count": 101} == percentiles([float(value) for value in range(101, 0, -1)])


def test_noise_depends_on_size_and_seed_alone() -> None:
    """Size determines the number of rows, the seed their content; the hash of the content depends on both."""
    size = 60 * 1_000 * ROW_BYTES
    noise, again, other = Noise(size, 1), Noise(size, 1), Noise(size, 2)
    tables = list(noise.batches())
    assert noise.rows == 60_000 == sum(rows.num_rows for rows in tables)
    assert list(TAGS) == tag_names(tables[0])
    assert not compare(written_checksums(tables), again.checksums())
    assert content_hash(noise.checksums()) == content_hash(again.checksums())
    assert content_hash(noise.checksums()) != content_hash(other.checksums())
    times = pa.concat_tables(tables)["time"].to_numpy()
    assert (times[1:] >= times[:-1]).all()


@pytest.mark.slow(9)
def test_a_child_returns_its_answer_or_its_error() -> None:
    """The answer of a child process, its error by name, and its death."""
    assert os.getpid() != in_child(os.getpid)
    with pytest.raises(HeadraceError, match="BenchStuck: no way"):
        in_child(refuse, "no way")
    with pytest.raises(HeadraceError, match="exit code 3"):
        in_child(die, 3)


def test_an_interrupt_ends_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would wait for its end, which may be minutes away."""

    def interrupted(_: Connection) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "recv", interrupted)
    with pytest.raises(KeyboardInterrupt):
        in_child(time.sleep, 600)
    assert [] == multiprocessing.active_children()


def test_a_copy_that_is_cut_has_no_figure(tmp_path: Path) -> None:
    """As many files are not all of their bytes."""
    files, target = [tmp_path / "a", tmp_path / "b"], tmp_path / "target"
    target.mkdir()
    for number, path in enumerate(files):
        path.write_bytes(bytes(10))
        (target / str(number)).write_bytes(bytes(10))
    assert 2 == len(sync_limits.check_arrived(files, target, "the copy"))
    (target / "1").write_bytes(bytes(9))
    with pytest.raises(sync_limits.LegFailed, match="the copy is not complete"):
        sync_limits.check_arrived(files, target, "the copy")


def test_a_process_that_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would run on, with nobody who knows of it."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    monkeypatch.setattr(sync, "COMMAND", (sys.executable, "-c"))
    monkeypatch.setattr(sync, "READY_TIMEOUT_S", 0.1)
    running = sync.running_process(tmp_path, "deaf", code)
    process = running.__enter__()
    while not (tmp_path / "deaf.log").read_bytes():
        time.sleep(0.01)
    with pytest.raises(subprocess.TimeoutExpired):
        running.__exit__(None, None, None)
    assert -signal.SIGKILL == process.returncode


def test_the_digests_of_an_empty_store_are_empty(tmp_path: Path) -> None:
    """A store without segments has nothing to compare."""
    Store.open(tmp_path, "n1").close()
    assert {} == store_digests(tmp_path, "n1")
