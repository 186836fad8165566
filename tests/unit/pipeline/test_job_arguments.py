"""The options of the jobs for `spark-submit`."""

from __future__ import annotations

import signal
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest

from headrace.pipeline.dead_letter_limit import SHARE_MAX
from headrace.pipeline.ingest_progress import Counts, IngestProgress
from headrace.pipeline.job_arguments import JobOptionInvalid, kafka_settings, message_options
from headrace.pipeline.jobs import backfill, ingest
from headrace.pipeline.package import write_jobs

LEAST = ["--cluster", "c", "--bootstrap", "b:1", "--topic", "raw", "--checkpoint", "/c"]
JSON = [*LEAST, "--format", "json"]
AVRO = [*LEAST, "--format", "confluent-avro", "--database", "db", "--table", "t"]


@pytest.fixture
def mapping(tmp_path: Path) -> str:
    """A mapping that names its database."""
    path = tmp_path / "mapping.toml"
    path.write_text('[topics.raw]\ndatabase = "plant"\ntable = "pumps"\ntags = ["site"]\n')
    return str(path)


def test_a_mapping_names_the_database(mapping: str) -> None:
    """As for `headrace ingest run`; both may name the same one."""
    for more in ([], ["--database", "plant"]):
        database, options = message_options(ingest.parser().parse([*JSON, "--mapping", mapping, *more]))
        assert ("plant", "pumps", ("site",)) == (database, options.table, options.tags)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (["--tabel", "t"], "did you mean --table"),
        (["--qqqq=1"], "the options are"),
        (["--tim", "t"], "no option --tim"),
        (["--format", "xml"], "invalid choice"),
        (["--max-messages", "many"], "invalid int"),
        ([], "no database is named"),
        (["--database", "db", "--tag", "site"], "--tag site is not KEY=VALUE"),
        (["--database", "db", "--schema-dir", "/d"], "not for --format json"),
        (["--mapping", "/nowhere.toml"], "cannot be read"),
    ],
)
def test_a_wrong_option_is_named(more: list[str], word: str) -> None:
    """The options are those of `headrace`, never shortened, and near ones are named."""
    with pytest.raises(JobOptionInvalid) as raised:
        message_options(ingest.parser().parse([*JSON, *more]))
    assert word in str(raised.value)
    assert 2 == raised.value.exit_code


def test_a_mapping_excludes_what_it_has(mapping: str) -> None:
    """Another database, and options about the table."""
    for more in (["--database", "other"], ["--tags", "a"]):
        with pytest.raises(JobOptionInvalid):
            message_options(ingest.parser().parse([*JSON, "--mapping", mapping, *more]))


def test_the_limit_of_refused_lines_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    """The default is that of `headrace ingest run`; a share is from 0 to 1."""
    assert SHARE_MAX == ingest.parser().parse(JSON).rejected_share_max
    assert 2 == ingest.main([*JSON, "--database", "db", "--rejected-share-max", "1.5"])
    assert "--rejected-share-max" in capsys.readouterr().err


def test_secrets_come_from_a_file_and_the_environment(tmp_path: Path) -> None:
    """Spark shows the command line. What `-X` has overrides the file, and no error repeats a line."""
    file = tmp_path / "kafka.properties"
    # As Notepad saves it.
    file.write_text("sasl.mechanism=PLAIN\n# of plant\nsasl.password=p=w\n\nsasl.username = u \n", "utf-8-sig")
    given = ingest.parser().parse(
        [*AVRO, "--registry", "http://r:1", "--kafka-config", str(file), "-X", "sasl.username=v"]
    )
    expected = (("sasl.mechanism", "PLAIN"), ("sasl.password", "p=w"), ("sasl.username", "v"))
    assert expected == kafka_settings(given)
    names = {f"HEADRACE__INGEST__REGISTRY_{name}": name.lower() for name in ("USER", "PASSWORD")}
    place = message_options(given, names)[1].schemas
    assert ("http://r:1", "user", "password") == (place.registry, place.user, place.password)
    file.write_text("s3cret\n")
    with pytest.raises(JobOptionInvalid, match="is not KEY=VALUE") as raised:
        kafka_settings(given)
    assert "s3cret" not in str(raised.value)


def test_the_jobs_are_written_beside_the_zip(tmp_path: Path) -> None:
    """Both of them; a job of files names what it lacks."""
    assert ["backfill.py", "ingest.py"] == [path.name for path in write_jobs(tmp_path)]
    with pytest.raises(JobOptionInvalid, match="--table"):
        backfill.parser().parse(["a.csv", "--cluster", "c", "--bootstrap", "b:1", "--database", "d", "--format", "csv"])


@pytest.mark.parametrize(
    ("more", "ended", "code"), [(["--available-now"], False, 1), (["--available-now"], True, 0), ([], False, 0)]
)
def test_a_job_that_is_stopped_before_the_end_that_it_was_to_reach_has_failed(
    more: list[str], ended: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What schedules it would take the topic for read; its counts are printed all the same."""
    done = IngestProgress(Counts(rows=5), 1, 0, 0.0, ended=ended)
    for name in ("prepare", "open_session"):
        monkeypatch.setattr(ingest, name, Mock())
    monkeypatch.setattr(ingest, "held_checkpoint", lambda *_arguments: nullcontext())
    monkeypatch.setattr(ingest, "run_ingest", Mock(return_value=done))
    monkeypatch.setattr(signal, "signal", Mock())
    assert code == ingest.main([*JSON, "--database", "d", "--table", "t", *more])
    out, err = capsys.readouterr()
    assert '"rows": 5' in out
    assert ("stopped before the end" in err) is bool(code)
