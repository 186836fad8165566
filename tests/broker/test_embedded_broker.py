"""The embedded broker as a real process with a directory and a port."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.connectors.kafka import broker as broker_module
from headrace.connectors.kafka import storage_format
from headrace.connectors.kafka.broker import (
    BrokerAlreadyRunning,
    BrokerDirectoryUnusable,
    BrokerInfo,
    BrokerPortInUse,
    BrokerStartFailed,
    EmbeddedBroker,
    NotABrokerDirectory,
    make_broker_archive,
)
from headrace.connectors.kafka.broker_process import find_broker, free_port, write_pid
from headrace.connectors.kafka.broker_settings import DATA_FOLDER, HOST, IDENTITY_FILE, PID_FILE
from headrace.connectors.kafka.jars import resolve_jars
from headrace.connectors.kafka.java import OPTIONS_VARIABLE
from headrace.schemas.errors import HeadraceError

pytestmark = pytest.mark.broker

QUIET = {"log_level": 0}
LARGE_BYTES = 50_000_000
COMMAND_TIMEOUT_S = 120


def headrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `headrace broker` with captured pipes, as a script would."""
    return subprocess.run(
        [sys.executable, "-m", "headrace", "broker", *arguments],
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )


def create_topic(bootstrap: str, topic: str) -> None:
    """Create a topic of one partition."""
    with AdminClient({"bootstrap.servers": bootstrap, **QUIET}) as client:
        client.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)


def produce(bootstrap: str, topic: str, value: bytes) -> None:
    """Produce one message, acknowledged by the broker."""
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 2 * LARGE_BYTES, **QUIET})
    producer.produce(topic, value, on_delivery=lambda error, _message: errors.append(error))
    producer.flush(60)
    assert errors == [None]


def consume(bootstrap: str, topic: str) -> bytes:
    """The first message of a topic, through a consumer group."""
    settings = {
        # A group of its own: a member whose leave was cut off by a kill would hold the next one up for its session.
        "group.id": f"test-{uuid.uuid4().hex}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.message.max.bytes": 2 * LARGE_BYTES,
        **QUIET,
    }
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(120)
        assert message is not None
        assert message.error() is None
        return message.value() or b""
    finally:
        consumer.close()


def test_broker_accepts_messages_of_50_mb(broker: BrokerInfo, cluster_name: str) -> None:
    """A message far above Kafka's default of 1 MB is stored and read back unchanged."""
    value = os.urandom(LARGE_BYTES)
    create_topic(broker.bootstrap, cluster_name)
    produce(broker.bootstrap, cluster_name, value)
    assert value == consume(broker.bootstrap, cluster_name)


def test_topics_are_not_created_by_a_metadata_request(broker: BrokerInfo, cluster_name: str) -> None:
    """A metadata request for a missing topic does not create it."""
    with AdminClient({"bootstrap.servers": broker.bootstrap, **QUIET}) as client:
        client.list_topics(cluster_name, timeout=30)
        assert cluster_name not in client.list_topics(timeout=30).topics


def test_broker_listens_on_loopback_only(broker: BrokerInfo) -> None:
    """No socket of the broker is reachable from another machine."""
    listening = [
        entry for entry in psutil.Process(broker.pid).net_connections("inet") if entry.status == psutil.CONN_LISTEN
    ]
    assert {HOST} == {entry.laddr.ip.removeprefix("::ffff:") for entry in listening}


@pytest.mark.slow(15)
def test_restart_keeps_port_and_data(own_broker: EmbeddedBroker) -> None:
    """After a clean stop, and after kill -9, the same address serves the same messages."""
    first = own_broker.start()
    create_topic(first.bootstrap, "kept")
    produce(first.bootstrap, "kept", b"reading")
    assert own_broker.stop()
    assert not psutil.pid_exists(first.pid)

    second = own_broker.start()
    assert first.bootstrap == second.bootstrap
    assert b"reading" == consume(second.bootstrap, "kept")
    os.kill(second.pid, signal.SIGKILL)
    psutil.Process(second.pid).wait(30)
    assert not own_broker.status().running

    third = own_broker.start()
    assert first.bootstrap == third.bootstrap
    assert b"reading" == consume(third.bootstrap, "kept")


def test_never_two_brokers_on_one_directory(own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    """A second start is refused: with the pid file, without it, and through a link to the directory."""
    info = own_broker.start()
    with pytest.raises(BrokerAlreadyRunning, match=str(info.pid)):
        EmbeddedBroker(own_broker.directory).start()
    (own_broker.directory / PID_FILE).unlink()
    with pytest.raises(BrokerAlreadyRunning, match=str(info.pid)):
        EmbeddedBroker(own_broker.directory).start()
    (tmp_path / "link").symlink_to(own_broker.directory)
    with pytest.raises(BrokerAlreadyRunning, match=str(info.pid)):
        EmbeddedBroker(tmp_path / "link").start()
    assert EmbeddedBroker(tmp_path / "link").stop()
    assert not own_broker.status().running


def test_a_folder_is_formatted_as_by_kafka(
    own_broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first start lets Kafka's tool format the folder and keeps what it wrote; later folders get the same files
    without it, with names of their own. All other tests here start brokers on such folders.
    """
    jars, other = resolve_jars(), tmp_path / "other"
    monkeypatch.setattr(storage_format, "KEPT_FILE", str(tmp_path / "kept"))
    assert not storage_format.format_folder(other, "h2", jars)
    assert not storage_format.is_formatted(other)
    own_broker.start()
    by_tool = own_broker.directory / DATA_FOLDER
    assert storage_format.format_folder(other, "h2", jars)
    assert storage_format.is_formatted(other)
    features = (by_tool / storage_format.FEATURES_FILE).read_bytes()
    assert features == (other / storage_format.FEATURES_FILE).read_bytes()
    theirs, ours = (properties_of(folder / storage_format.META_FILE) for folder in (by_tool, other))
    assert set(theirs) == set(ours)
    assert ("h2", theirs["version"], theirs["node.id"]) == (ours["cluster.id"], ours["version"], ours["node.id"])
    assert len(theirs["directory.id"]) == len(ours["directory.id"])
    assert theirs["directory.id"] != ours["directory.id"]


def properties_of(file: Path) -> dict[str, str]:
    """The lines of a properties file without its remarks."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.slow(7)
def test_of_concurrent_starts_one_wins(own_broker: EmbeddedBroker) -> None:
    """Of several processes that start the same directory at once, one starts the broker; the others get clear
    errors.
    """
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda _: headrace("start", "--data-dir", str(own_broker.directory)), range(3)))
    winners = [json.loads(answer.stdout) for answer in answers if answer.returncode == 0]
    refused = [answer for answer in answers if answer.returncode != 0]
    assert 1 == len(winners)
    assert winners[0]["pid"] == own_broker.status().pid
    assert all("broker" in answer.stderr and "Traceback" not in answer.stderr for answer in refused)


def test_a_copied_directory_is_a_broker_of_its_own(own_broker: EmbeddedBroker, tmp_path: Path) -> None:
    """The pid file in a copy names the original's broker, which the copy neither reports nor stops."""
    info = own_broker.start()
    copy = EmbeddedBroker(shutil.copytree(own_broker.directory, tmp_path / "copy"))
    assert not copy.status().running
    assert not copy.stop()
    assert psutil.pid_exists(info.pid)


@pytest.mark.slow(13)
def test_captured_pipes_close_with_the_command(tmp_path: Path) -> None:
    """`broker start` returns with its output while the broker keeps running; parent directories are
    created.
    """
    directory = str(tmp_path / "a, b" / "größe" / "data")
    started = headrace("start", "--data-dir", directory, "--json")
    try:
        assert 0 == started.returncode, started.stderr
        answer = json.loads(started.stdout)
        assert {"bootstrap", "pid"} == answer.keys()
        assert json.loads(headrace("status", "--data-dir", directory, "--json").stdout)["answers"]
        assert os.getsid(answer["pid"]) == answer["pid"]
        again = headrace("start", "--data-dir", directory, "--json")
        assert 1 == again.returncode
        assert "BrokerAlreadyRunning" == json.loads(again.stderr)["error"]["type"]
    finally:
        stopped = headrace("stop", "--data-dir", directory, "--json")
    assert {"stopped": True} == json.loads(stopped.stdout)
    assert {"stopped": False} == json.loads(headrace("stop", "--data-dir", directory, "--json").stdout)
    status = headrace("status", "--data-dir", directory, "--json")
    assert (1, False) == (status.returncode, json.loads(status.stdout)["running"])


@pytest.mark.slow(12)
def test_killed_start_leaves_a_usable_directory(own_broker: EmbeddedBroker) -> None:
    """After a kill of the starting process, the directory can be stopped and started normally."""
    command = [sys.executable, "-m", "headrace", "broker", "start", "--data-dir", str(own_broker.directory)]
    starter = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (own_broker.directory / PID_FILE).exists():
        assert starter.poll() is None
    starter.kill()
    starter.wait()
    own_broker.stop()
    assert own_broker.start().pid == own_broker.status().pid


@pytest.mark.slow(6)
def test_given_port_is_used_and_kept(own_broker: EmbeddedBroker) -> None:
    """`--port` sets the address, also of later starts without it."""
    port = free_port()
    assert f"{HOST}:{port}" == EmbeddedBroker(own_broker.directory, port).start().bootstrap
    own_broker.stop()
    assert f"{HOST}:{port}" == own_broker.start().bootstrap


def test_advertised_ports_reach_the_client(tmp_path: Path) -> None:
    """A client of an extra listener gets the advertised port, on which a proxy is to listen."""
    advertised = free_port()
    embedded = EmbeddedBroker(tmp_path / "data", advertise=[advertised])
    info = embedded.start()
    try:
        with AdminClient({"bootstrap.servers": f"{HOST}:{info.proxied[advertised]}", **QUIET}) as client:
            brokers = client.list_topics(timeout=30).brokers
        assert [advertised] == [entry.port for entry in brokers.values()]
    finally:
        embedded.stop()


def test_port_in_use_is_refused(tmp_path: Path) -> None:
    """A port that another process uses gives an error that names it, and starts nothing."""
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        holder.listen()
        port = holder.getsockname()[1]
        embedded = EmbeddedBroker(tmp_path / "data", port)
        with pytest.raises(BrokerPortInUse, match=str(port)):
            embedded.start()
        assert find_broker(embedded.directory) is None


def test_foreign_directory_is_refused_untouched(tmp_path: Path) -> None:
    """A directory with foreign files is neither used nor written to."""
    (tmp_path / "letters").write_text("dear")
    with pytest.raises(NotABrokerDirectory, match="not empty"):
        EmbeddedBroker(tmp_path).start()
    assert ["letters"] == [entry.name for entry in tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("identity", "message"), [('{"cluster_id": "x", "port": 1, "format": 99}', "newer Headrace"), ("{", "damaged")]
)
def test_unreadable_identity_is_refused(tmp_path: Path, identity: str, message: str) -> None:
    """A directory of a newer format, or with a damaged identity file, is refused by name."""
    (tmp_path / IDENTITY_FILE).write_text(identity)
    with pytest.raises(NotABrokerDirectory, match=message):
        EmbeddedBroker(tmp_path).start()


def test_directory_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    """A file in place of the directory is a clear error."""
    (tmp_path / "file").write_text("")
    with pytest.raises(BrokerDirectoryUnusable, match="cannot write"):
        EmbeddedBroker(tmp_path / "file" / "data").start()


def test_status_without_a_broker_is_an_error(tmp_path: Path) -> None:
    """A directory without a broker has no status: an error, with exit code 1 on the command line."""
    with pytest.raises(NotABrokerDirectory):
        EmbeddedBroker(tmp_path / "nothing").status()
    answer = headrace("status", "--data-dir", str(tmp_path / "nothing"))
    assert 1 == answer.returncode
    assert answer.stderr.startswith("error: ")
    assert "what to do: " in answer.stderr


def test_stale_pid_of_another_process_is_not_killed(own_broker: EmbeddedBroker) -> None:
    """When the pid file names a live process that is not the broker, stop kills nothing."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        own_broker.directory.mkdir()
        write_pid(own_broker.directory, other.pid)
        assert not own_broker.stop()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_java_options_of_the_environment_reach_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come last and override the defaults; an error names an option that Java does not know."""
    monkeypatch.setenv(OPTIONS_VARIABLE, "-Xmx384m -XX:TieredStopAtLevel=1 '-Dplant=north hall'")
    embedded = EmbeddedBroker(tmp_path / "data")
    try:
        command = psutil.Process(embedded.start().pid).cmdline()
        assert "-Dplant=north hall" in command
        assert "-Xmx384m" == [word for word in command if word.startswith("-Xmx")][-1]
    finally:
        embedded.stop()
    monkeypatch.setenv(OPTIONS_VARIABLE, "-XX:NoSuchFlag=1")
    with pytest.raises(BrokerStartFailed, match="NoSuchFlag"):
        embedded.start()


def test_invalid_setting_is_reported_with_its_reason(tmp_path: Path) -> None:
    """The error of a broker that fails to start has the logged reason, and no process is left."""
    embedded = EmbeddedBroker(tmp_path / "data", settings={"num.io.threads": "none"})
    with pytest.raises((BrokerStartFailed, HeadraceError), match=r"num\.io\.threads"):
        embedded.start()
    assert find_broker(embedded.directory) is None


@pytest.mark.slow(5)
def test_archive_is_optional(own_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a damaged class archive the broker still starts."""
    archive = own_broker.directory.with_suffix(".jsa")
    archive.write_bytes(b"not an archive" * 1000)
    monkeypatch.setattr(broker_module, "broker_archive", lambda _jars, _java: archive)
    info = own_broker.start()
    assert f"-XX:SharedArchiveFile={archive}" in psutil.Process(info.pid).cmdline()


def test_archive_is_created_once_and_used(own_broker: EmbeddedBroker) -> None:
    """The archive is created once beside the jars, and brokers use it."""
    archive = make_broker_archive()
    modified_ns = archive.stat().st_mtime_ns
    assert archive == make_broker_archive()
    assert modified_ns == archive.stat().st_mtime_ns
    assert f"-XX:SharedArchiveFile={archive}" in psutil.Process(own_broker.start().pid).cmdline()
