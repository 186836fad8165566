"""Settings: their names and defaults, where they come from, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from typer.testing import CliRunner

from headrace.cli import config
from headrace.cli.node import load_node_settings
from headrace.connectors.log.kafka_settings import client_settings
from headrace.consumers.membership import SLOTS_MAX
from headrace.consumers.node.http_address import parse_address
from headrace.consumers.node.settings import StoreSection
from headrace.consumers.query.settings import QuerySettings
from headrace.node_client import NodeClient
from headrace.pipeline.source_options import read_options
from headrace.schemas import message_rules
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import RECORD_SLOTS_MAX
from headrace.schemas.settings import MEMBERS_MAX, SettingsModel, user_settings
from headrace.settings import (
    MASK,
    SettingMissing,
    Settings,
    SettingsInvalid,
    environment_name,
    is_secret,
    load_settings,
)

DEFAULTS = {
    "cluster.name": "headrace",
    "cluster.bootstrap": "127.0.0.1:9092",
    "cluster.slots": 10_000,
    "cluster.topic_replication_factor": 0,
    "cluster.topic_min_insync_replicas": 0,
    "cluster.ended_log_kept_s": 10.0,
    "node.id": "",
    "node.nodes": (),
    "node.replication": 0,
    "node.http": "127.0.0.1:0",
    "node.advertise": "",
    "node.flight": "",
    "node.allowed_hosts": (),
    "node.data_dir": "",
    "node.log": "kafka",
    "node.startup_timeout_s": 60.0,
    "node.url": "",
    "store.seal_rows": 2_000_000,
    "store.seal_bytes": 268_435_456,
    "store.seal_age_ms": 300_000,
    "store.apply_queue_bytes": 67_108_864,
    "store.encode_threads": 2,
    "store.compression_level": 1,
    "store.log_keep_records": 0,
    "store.recovery_bytes_per_second": 0,
    "store.recoveries_max": 2,
    "store.migration_fetches_max": 4,
    "store.migration_bytes_per_second": 0,
    "store.migration_busy_share": 0.25,
    "store.background_nice": 10,
    "store.rollups": True,
    "store.scrub_interval_s": 86_400.0,
    "store.scrub_bytes_per_second": 67_108_864,
    "query.memory_limit_mb": 1_000,
    "query.threads": 2,
    "query.timeout_ms": 60_000,
    "query.queries_max": 64,
    "query.queries_per_user_max": 64,
    "query.queue_max": 1_000,
    "query.short_threads": 1,
    "query.slice_ms": 2.0,
    "query.memory_per_query_mb": 750,
    "query.scans_max": 16,
    "query.remote_mb_max": 1_000,
    "query.stale_max_s": 0.0,
    "query.spill_directory": "",
    "query.spill_mb_max": 4_000,
    "write.quorum": 1,
    "write.quorum_timeout_ms": 2_000,
    "write.compression": "zstd",
    "write.time_resolution": "us",
    "write.line_parser": "auto",
    "write.http_body_mb_max": 32,
    "write.http_requests_max": 4_096,
    "write.http_waiting_mb_max": 64,
    "sync.partitions": 8,
    "sync.files_max": 64,
    "sync.staging_mb_max": 4_096,
    "sync.loads_max": 32,
    "sync.uploads_max": 64,
    "sync.upload_mb_max": 4_096,
    "ingest.threads": 2,
    "ingest.driver_memory_mb": 1_024,
    "ingest.rejected_share_max": 0.5,
    "ingest.registry_user": "",
    "ingest.registry_password": "",
    "send.interval_s": 60.0,
    "send.seal_age_s": 300.0,
    "send.tries_max": 5,
    "send.window_bytes": 256 << 20,
    "send.files_max": 64,
    "send.rate_limit_bytes": 0,
    "send.wait_s": 60.0,
    "log.level": "warning",
}


def load(tmp_path: Path, toml: str = "", flags: dict[str, object] | None = None, **environment: str) -> Settings:
    """Settings of a process with this file, environment and flags."""
    if toml:
        (tmp_path / "headrace.toml").write_text(toml)
    return load_settings(flags or {}, environment=environment, directory=tmp_path)


def test_names_and_defaults_are_pinned(tmp_path: Path) -> None:
    """Names and defaults are part of the interface: a change needs a change of this list and a line in the changelog."""
    shown = load(tmp_path).shown()
    assert DEFAULTS == {row.name: row.value for row in shown}
    assert {"default"} == {row.origin for row in shown}
    assert all(row.meaning for row in shown)


def test_flags_beat_environment_and_environment_beats_the_file(tmp_path: Path) -> None:
    """Each source overrides the one before, setting by setting, and each value has its origin."""
    toml = '[cluster]\nname = "file"\nbootstrap = "file:1"\nslots = 7\n'
    variables = {"HEADRACE__CLUSTER__NAME": "environment", "HEADRACE__CLUSTER__BOOTSTRAP": "environment:1"}
    settings = load(tmp_path, toml, {"cluster.bootstrap": "flag:1", "cluster.slots": None}, **variables)
    assert ("environment", "flag:1", 7) == (settings.cluster.name, settings.cluster.bootstrap, settings.cluster.slots)
    names = ("cluster.name", "cluster.bootstrap", "cluster.slots", "node.id")
    assert ["HEADRACE__CLUSTER__NAME", "flag", "headrace.toml", "default"] == [settings.origin(name) for name in names]


def test_values_take_the_type_of_their_setting(tmp_path: Path) -> None:
    """Numbers, decimals, lists and texts are understood from TOML, from texts and from flags."""
    toml = '[node]\nnodes = ["n1", "n2"]\nstartup_timeout_s = 2\n[store]\nseal_rows = 50_000\n'
    settings = load(tmp_path, toml, {"node.data_dir": tmp_path}, HEADRACE__STORE__SEAL_AGE_MS="1_000")
    assert (("n1", "n2"), 2.0) == (settings.node.nodes, settings.node.startup_timeout_s)
    assert (50_000, 1_000) == (settings.store.seal_rows, settings.store.seal_age_ms)
    assert str(tmp_path) == settings.node.data_dir
    assert ("a", "b") == load(tmp_path, HEADRACE__NODE__NODES="a, b").node.nodes


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("False", False), ("YES", True), (" no ", False), ("TRUE", True)]
)
def test_a_setting_that_is_on_or_off_is_taken_from_a_text(tmp_path: Path, text: str, value: bool) -> None:
    """The environment has texts only: true, false, yes and no are taken in any case."""
    assert value is load(tmp_path, HEADRACE__STORE__ROLLUPS=text).store.rollups


def test_what_config_show_prints_can_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that is on or off is printed as the file and the environment take it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    line = next(line for line in run_show()[1].splitlines() if "store.rollups" in line)
    assert "true" in line
    assert load(tmp_path, "[store]\nrollups = true\n", HEADRACE__STORE__ROLLUPS="true").store.rollups


def test_librdkafka_names_are_taken_verbatim(tmp_path: Path) -> None:
    """In the file with or without quotes, in the environment with `_` for a dot and `__` for `_`, as flags under `kafka`."""
    toml = '[kafka]\n"linger.ms" = 5\nsecurity.protocol = "SSL"\nenable.ssl.certificate.verification = false\n'
    variables = {"HEADRACE__KAFKA__LINGER_MS": "7", "HEADRACE__KAFKA__LOG__LEVEL": "3"}
    settings = load(tmp_path, toml, {"kafka": {"client.id": "me"}}, **variables)
    assert {
        "linger.ms": "7",
        "log_level": "3",
        "security.protocol": "SSL",
        "enable.ssl.certificate.verification": "false",
        "client.id": "me",
    } == dict(settings.kafka)
    assert "HEADRACE__KAFKA__LINGER_MS" == environment_name("kafka.linger.ms") == settings.origin("kafka.linger.ms")


@pytest.mark.parametrize(
    ("toml", "flags", "environment", "expected"),
    [
        (
            "[store]\nseal_row = 1\n",
            {},
            {},
            r"'store.seal_row' \(from .*headrace.toml\) \(did you mean store.seal_rows",
        ),
        ("[stores]\nseal_rows = 1\n", {}, {}, r"'stores.seal_rows'.*store.seal_rows"),
        ("name = 'x'\n", {}, {}, "no setting 'name'"),
        ("", {}, {"HEADRACE__STORE__SEAL_ROW": "1"}, r"'store.seal_row' \(from HEADRACE__STORE__SEAL_ROW\)"),
        ("", {}, {"HEADRACE__STORE": "1"}, "no setting 'store'"),
        ("", {}, {"HEADRACE__KAFKA__": "1"}, "no setting 'kafka'"),
        ("", {"cluster.nam": "x"}, {}, r"'cluster.nam' \(from flag\)"),
    ],
)
def test_unknown_names_are_errors_that_name_near_ones(
    tmp_path: Path, toml: str, flags: dict[str, object], environment: dict[str, str], expected: str
) -> None:
    """A misspelt setting is refused from every source, with near names."""
    with pytest.raises(SettingsInvalid, match=expected):
        load(tmp_path, toml, flags, **environment)


@pytest.mark.parametrize("variable", ["HEADRACE_NODE_HTTP", "HEADRACE_NODE__HTTP", "headrace_node_http"])
def test_a_variable_with_too_few_underscores_is_refused(tmp_path: Path, variable: str) -> None:
    """It would change nothing, and nobody would notice. Other variables that begin like one of ours are none."""
    with pytest.raises(SettingsInvalid, match=f"{variable} is no setting") as refused:
        load(tmp_path, "", None, **{variable: "0.0.0.0:80"})
    assert "did you mean HEADRACE__NODE__HTTP?" == refused.value.action
    load(tmp_path, HEADRACE_JAVA_OPTIONS="-Xmx1g", HEADRACE_NODE_SERVICE_HOST="10.0.0.1", HEADRACE_NODE_PORT="80")


@pytest.mark.parametrize(
    ("toml", "environment", "expected"),
    [
        ("", {"HEADRACE__STORE__SEAL_ROWS": "many"}, r"store.seal_rows = 'many' \(from HEADRACE__STORE__SEAL_ROWS\)"),
        ("", {"HEADRACE__STORE__SEAL_ROWS": "0"}, "less than 1"),
        ("", {"HEADRACE__NODE__STARTUP_TIMEOUT_S": "nan"}, "is not a number"),
        ("", {"HEADRACE__QUERY__SLICE_MS": "nan"}, "is not a number"),
        ("[query]\nslice_ms = nan\n", {}, "is not a number"),
        ("", {"HEADRACE__NODE__STARTUP_TIMEOUT_S": "1e308"}, "is more than 604,800"),
        ("", {"HEADRACE__NODE__STARTUP_TIMEOUT_S": "inf"}, "is more than 604,800"),
        ("", {"HEADRACE__STORE__SEAL_ROWS": "9223372036854775808"}, "is more than 1,000,000,000"),
        ("", {"HEADRACE__QUERY__TIMEOUT_MS": "99999999999999999999"}, "is more than 604,800,000"),
        ("", {"HEADRACE__QUERY__THREADS": "100000"}, "is more than 256"),
        ("", {"HEADRACE__STORE__SEAL_ROWS": "9" * 5_000}, "is not a whole number"),
        ("[store]\nseal_rows = " + "9" * 5_000 + "\n", {}, "is not TOML"),
        ("[send]\ninterval_s = 1" + "0" * 400 + "\n", {}, "send.interval_s = 1000.* "),
        ("[store]\nseal_rows = true\n", {}, r"store.seal_rows = True \(from headrace.toml\) is not a whole number"),
        ("[store]\nseal_rows = 1.5\n", {}, "is not a whole number"),
        ("", {"HEADRACE__STORE__ROLLUPS": "on"}, r"'on' .*is not true or false \(as a text also yes or no\)"),
        ("[store]\nrollups = 1\n", {}, "is not true or false"),
        ("[cluster]\nname = 5\n", {}, "is not a text"),
        ("[node]\nnodes = [1]\n", {}, "is not a list of names"),
        ('[kafka]\n"linger.ms" = [1]\n', {}, r"kafka.linger.ms \(from headrace.toml\)"),
        ("[store]\ncompression_level = 23\n", {}, "is more than 22"),
        ('[write]\ncompression = "rar"\n', {}, "is none of zstd, lz4, none"),
        ("", {"HEADRACE__LOG__LEVEL": "loud"}, r"'loud' \(from HEADRACE__LOG__LEVEL\) is none of debug, info"),
        ("[store\n", {}, "is not TOML.*line 1"),
    ],
)
def test_bad_values_name_the_setting_and_where_it_is_from(
    tmp_path: Path, toml: str, environment: dict[str, str], expected: str
) -> None:
    """A value of the wrong type or out of bounds is never replaced by the default."""
    with pytest.raises(SettingsInvalid, match=expected):
        load(tmp_path, toml, None, **environment)


def test_every_number_has_bounds() -> None:
    """Each number is refused below and above what the program can work with: none starts a node that fails later."""
    for name, field in numbers():
        marks = {name: value for mark in field.metadata for name, value in vars_of(mark).items()}
        assert {"ge", "gt"} & set(marks), name
        assert marks["le"] >= field.default, name
        # What ends in a long of Avro, or in a time-out of the system in milliseconds.
        assert marks["le"] < 2**62, name
        assert "timeout" not in name or marks["le"] * (1 if name.endswith("_ms") else 1_000) < 2**31, name


def numbers() -> Iterator[tuple[str, FieldInfo]]:
    """Every setting that is a number."""
    for section, holder in Settings.model_fields.items():
        if isinstance(holder.annotation, type) and issubclass(holder.annotation, SettingsModel):
            for name, field in user_settings(holder.annotation).items():
                if field.annotation in (int, float):
                    yield f"{section}.{name}", field


def vars_of(mark: object) -> dict[str, float]:
    """The bounds that one mark of a field sets."""
    return {name: getattr(mark, name) for name in ("ge", "gt", "le") if hasattr(mark, name)}


def test_bounds_are_those_of_what_they_count() -> None:
    """Settings load no messages, so that two bounds are written down twice."""
    assert (MEMBERS_MAX, SLOTS_MAX) == (message_rules.MEMBERS_MAX, RECORD_SLOTS_MAX)


@pytest.mark.parametrize("name", ["cluster.bootstrap", "node.url", "node.http", "node.advertise", "node.flight"])
def test_an_address_has_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It was printed by `config show`, and by every error about the address. The error does not repeat it."""
    with pytest.raises(SettingsInvalid, match="has a user or a password in it") as why:
        load(tmp_path, flags={name: "http://user:hunter2@host:80"})
    assert "hunter2" not in str(why.value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(environment_name(name), "user:hunter2@host:80")
    code, text, errors = run_show()
    assert (2, "", False) == (code, text, "hunter2" in errors)
    assert f"{name} (from {environment_name(name)})" in errors


@pytest.mark.parametrize(
    "refusing",
    [
        NodeClient,
        client_settings,
        lambda text: parse_address(text, "--http", "x"),
        lambda text: read_options({"table": "d.t", "node": text}),
    ],
)
def test_no_refusal_of_an_address_repeats_a_password(refusing: Callable[[str], object]) -> None:
    """Also of one that is no setting, as in Python and in Spark."""
    with pytest.raises(HeadraceError, match="has a user or a password in it") as why:
        refusing("http://user:hunter2@host:80")
    assert "hunter2" not in str(why.value)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are an error with the path."""
    (tmp_path / "headrace.toml").write_bytes(b'[cluster]\nname = "\xff"\n')
    with pytest.raises(SettingsInvalid, match=r"headrace.toml is not UTF-8.*byte 18"):
        load(tmp_path)


def test_what_is_there_and_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory in its place, and a link to nothing, which was as if there were no settings."""
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "headrace.toml"
    place.mkdir()
    code, _, errors = run_show()
    assert (2, "error: headrace.toml cannot be read: Is a directory\n") == (code, errors)
    place.rmdir()
    place.symlink_to("elsewhere.toml")
    code, _, errors = run_show()
    assert (2, "error: headrace.toml is a link to elsewhere.toml, which does not exist\n") == (code, errors)
    (tmp_path / "elsewhere.toml").write_text("[log]\nlevel = 'info'\n")
    assert 0 == run_show()[0]


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    """Editors of Windows write one in front of the text."""
    (tmp_path / "headrace.toml").write_bytes(b'\xef\xbb\xbf[cluster]\r\nname = "plant"\r\n')
    assert "plant" == load(tmp_path).cluster.name


def test_a_missing_setting_lists_the_ways_to_give_it(tmp_path: Path) -> None:
    """A missing setting lists the three ways to give it; one that is there is returned."""
    with pytest.raises(SettingMissing) as raised:
        load(tmp_path).require("node.id", "--id")
    assert "give --id, HEADRACE__NODE__ID or node.id in headrace.toml" == raised.value.action
    assert "n1" == load(tmp_path, HEADRACE__NODE__ID="n1").require("node.id")


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("sasl.password", True),
        ("ssl.key.password", True),
        ("ssl.keystore.password", True),
        ("ssl.key.pem", True),
        ("ssl_key", True),
        ("sasl.oauthbearer.client.secret", True),
        ("sasl.oauthbearer.config", True),
        ("sasl.username", False),
        ("ssl.key.location", False),
        ("linger.ms", False),
    ],
)
def test_secrets_are_known_by_name(name: str, secret: bool) -> None:
    """Passwords, keys and tokens of librdkafka are secret; file names and users are not."""
    assert secret is is_secret(name)


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """structlog's configuration belongs to the whole process; put it back."""
    yield
    structlog.reset_defaults()


def run_show(*arguments: str) -> tuple[int, str, str]:
    """Run `config show`; exit code, stdout and stderr."""
    app = typer.Typer()
    config.register(app)
    result = CliRunner().invoke(app, ["config", "show", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_config_show_masks_secrets_and_shows_origins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`config show --origin` prints each value with its source, but no password, as a table and as JSON."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE__KAFKA__SASL_PASSWORD", "hunter2")
    monkeypatch.setenv("HEADRACE__STORE__SEAL_ROWS", "77")
    code, text, _ = run_show("--origin", "-X", "ssl.key.password=hunter2")
    assert 0 == code
    assert "hunter2" not in text
    assert all(word in text for word in (MASK, "77", "HEADRACE__STORE__SEAL_ROWS", "unsealed rows are this old"))
    code, text, _ = run_show("--origin", "--json")
    document = json.loads(text)
    assert (0, {"value": 77, "origin": "HEADRACE__STORE__SEAL_ROWS"}) == (code, document["store.seal_rows"])
    assert MASK == document["kafka.sasl.password"]["value"]
    assert 77 == json.loads(run_show("--json")[1])["store.seal_rows"]


def test_config_show_fails_on_a_bad_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad setting is one line on stderr and exit code 2."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE__STORE__SEAL_ROWS", "x")
    code, text, errors = run_show()
    assert (2, "") == (code, text)
    assert errors.startswith("error: store.seal_rows = 'x'")


def test_a_node_takes_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node starts with the store and query settings of the file."""
    (tmp_path / "headrace.toml").write_text(
        '[node]\nid = "n1"\ndata_dir = "d"\n'
        "[store]\nseal_rows = 5\ncompression_level = 9\nrecoveries_max = 3\nencode_threads = 4\n"
        '[query]\nqueries_max = 3\nspill_directory = "spill"\nspill_mb_max = 7\nthreads = 1\n'
    )
    monkeypatch.chdir(tmp_path)
    given = load_node_settings({})
    assert (5, 9, 4, 3) == (
        given.store.seal_rows,
        given.store.compression_level,
        given.store.encode_threads,
        given.store.recoveries_max,
    )
    assert QuerySettings(threads=1, queries_max=3, spill_directory="spill", spill_mb_max=7) == given.query
    assert (("n1",), 1, Path("d")) == (given.node.members, given.node.replication_factor, given.node.data_directory)
    with pytest.raises(SettingMissing, match="node.data_dir is not set"):
        load_node_settings({"node.data_dir": ""})


def test_limits_of_the_program_are_no_settings(tmp_path: Path) -> None:
    """Limits that only tests change are neither printed nor read from a file."""
    assert 4 == StoreSection(row_group_rows=4).row_group_rows
    with pytest.raises(SettingsInvalid, match="no setting 'store.row_group_rows'"):
        load(tmp_path, "[store]\nrow_group_rows = 4\n")


def test_a_node_without_settings_of_a_user_checks_them_too() -> None:
    """Code that makes settings by itself cannot pass a value that a file could not."""
    for wrong in ({"seal_rows": 0}, {"seal_rows": True}, {"seal_row": 1}, {"encode_threads": "2"}):
        with pytest.raises(ValidationError):
            StoreSection(**wrong)


def test_settings_load_nothing_heavy() -> None:
    """Every command loads the settings; a node must set up its allocators before pyarrow is loaded."""
    code = "import sys; from headrace.settings import load_settings; load_settings(); print(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"pyarrow", "rocksdict", "duckdb", "numpy", "polars", "confluent_kafka", "fastavro"}
    assert set() == heavy & set(answer.stdout.split())


def test_every_setting_is_documented() -> None:
    """The page for operators has each setting with its default and its meaning."""
    page = (Path(__file__).parents[3] / "docs/operating/settings.md").read_text()
    for row in Settings().shown():
        spelt = str(row.value).lower() if isinstance(row.value, bool) else row.value
        default = "none" if row.value in ("", ()) else f"`{spelt}`"
        assert f"| `{row.name}` | {default} | {row.meaning} |" in page


def test_the_sample_on_the_page_is_valid(tmp_path: Path) -> None:
    """The sample file loads, and gives the values written in it."""
    page = (Path(__file__).parents[3] / "docs/operating/settings.md").read_text()
    settings = load(tmp_path, page.split("```toml\n")[1].split("```")[0])
    assert ("plant", 2) == (settings.cluster.name, settings.write.quorum)
    assert {"security.protocol", "sasl.password"} == set(settings.kafka)
