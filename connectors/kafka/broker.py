"""An Apache Kafka broker (KRaft, one node) on loopback, started and stopped as a process of its own.

For tests, the demo and a laptop. It outlives the process that starts it: start, stop and status share its
data directory alone.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from headrace.connectors.files import create_directories
from headrace.connectors.held_signals import signals_held
from headrace.connectors.kafka import broker_process, broker_security, broker_settings, storage_format
from headrace.connectors.kafka.broker_errors import (
    BrokerAlreadyRunning,
    BrokerDirectoryUnusable,
    BrokerPortInUse,
    BrokerStartFailed,
    explain_exit,
)
from headrace.connectors.kafka.broker_settings import HOST, BrokerIdentity, NotABrokerDirectory
from headrace.connectors.kafka.class_data_archive import (
    archive_options,
    broker_archive,
    record_archive,
    recording_options,
)
from headrace.connectors.kafka.jars import ProgressCallback, resolve_jars
from headrace.connectors.kafka.java import find_java, java_options_given

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
FORMAT_TIMEOUT_S = 60.0
READY_POLL_S = 0.05
PORT_ATTEMPTS_MAX = 3
ARCHIVE_STOP_TIMEOUT_S = 120.0

__all__ = [
    "BrokerAlreadyRunning",
    "BrokerDirectoryUnusable",
    "BrokerInfo",
    "BrokerPortInUse",
    "BrokerStartFailed",
    "BrokerStatus",
    "EmbeddedBroker",
    "NotABrokerDirectory",
    "make_broker_archive",
]


@dataclass(frozen=True)
class BrokerInfo:
    """A broker that answered.

    `proxied` maps each advertised extra port to the port that the broker listens on behind it. `client_file` has the
    settings of clients, as the section `[kafka]` of headrace.toml; None where they need none.
    """

    bootstrap: str
    pid: int
    proxied: Mapping[int, int] = field(default_factory=dict)
    client_file: Path | None = None


@dataclass(frozen=True)
class BrokerStatus:
    """State of a directory's broker. `answers`: it replied to a metadata request just now."""

    running: bool
    answers: bool
    bootstrap: str | None
    pid: int | None
    data_directory: Path
    log_file: Path


class EmbeddedBroker:
    """Owns one data directory: Kafka's logs under `data/`, its settings, log and pid file.

    Any number of instances and processes may name the same directory: a lock and the process table ensure
    that at most one broker runs on it. The port is chosen at the first start and kept. `advertise` lists
    extra advertised ports, one listener each; a proxy listens there and forwards to
    `BrokerInfo.proxied[port]`. `settings` are further Kafka settings, `jvm_options` further JVM flags. A directory
    that was started with `tls` or `scram` keeps them.
    """

    def __init__(
        self,
        data_directory: Path | str,
        port: int | None = None,
        *,
        advertise: Iterable[int] = (),
        settings: Mapping[str, str] | None = None,
        jvm_options: Iterable[str] = (),
        progress: ProgressCallback | None = None,
        tls: bool = False,
        scram: bool = False,
    ) -> None:
        self._tls, self._scram = tls, scram
        self.directory = Path(data_directory).resolve()
        self._port = port
        self._advertise = tuple(advertise)
        self._settings = dict(settings or {})
        self._jvm_options = tuple(jvm_options)
        self._progress = progress

    def start(self, timeout_s: float = START_TIMEOUT_S) -> BrokerInfo:
        """Start the broker and return once it answers. Nothing stays running when this raises."""
        java = find_java()
        jars = resolve_jars(progress=self._progress)
        class_path = os.pathsep.join(str(jar) for jar in jars.broker)
        # A JVM cannot record an archive, for which callers pass flags, while it uses another recorded one.
        archive = [] if self._jvm_options else archive_options(broker_archive(jars, java))
        with self._locked():
            running = broker_process.find_broker(self.directory)
            if running is not None:
                raise BrokerAlreadyRunning(
                    f"a broker already runs on {self.directory} (pid {running.pid})",
                    action="use it, or stop it with: headrace broker stop",
                )
            return self._start_on_some_port([str(java), "-cp", class_path, *archive], timeout_s)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """End the broker, cleanly if it can within `timeout_s`. False when none was running."""
        process = broker_process.find_broker(self.directory)
        if process is None:
            self._pid_file.unlink(missing_ok=True)
            return False
        broker_process.end_process(process, timeout_s)
        self._pid_file.unlink(missing_ok=True)
        return True

    def status(self, timeout_s: float = 5.0) -> BrokerStatus:
        """Look for the process and request metadata.

        Raises `NotABrokerDirectory` when there never was a broker.
        """
        identity = broker_settings.load_identity(self.directory)
        if identity is None:
            raise NotABrokerDirectory(
                f"{self.directory} is not the data directory of a broker",
                action="name the directory it was started with",
            )
        process = broker_process.find_broker(self.directory)
        bootstrap = f"{HOST}:{identity.port}"
        return BrokerStatus(
            running=process is not None,
            answers=process is not None and self._answers(identity, timeout_s),
            bootstrap=bootstrap if process else None,
            pid=process.pid if process else None,
            data_directory=self.directory,
            log_file=self._log_file,
        )

    @property
    def _pid_file(self) -> Path:
        return self.directory / broker_settings.PID_FILE

    @property
    def _log_file(self) -> Path:
        return self.directory / broker_settings.LOG_FILE

    @property
    def _output_file(self) -> Path:
        return self.directory / broker_settings.OUTPUT_FILE

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude other starts in the directory. Once the broker runs, its process excludes them."""
        try:
            create_directories(self.directory)
            # Checked before the lock file is created: a mistyped path leaves no file in a foreign folder.
            broker_settings.load_identity(self.directory)
            handle = (self.directory / broker_settings.LOCK_FILE).open("a")
        except OSError as error:
            raise BrokerDirectoryUnusable(
                f"cannot write to {error.filename or self.directory}: {error.strerror}",
                action="name a directory that can be written",
            ) from error
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BrokerAlreadyRunning(
                    f"another process is starting a broker on {self.directory}", action="wait for it", retriable=True
                ) from None
            yield

    def _start_on_some_port(self, java: list[str], timeout_s: float) -> BrokerInfo:
        """Start on the requested port or the one of the last start; a port chosen here is chosen again when
        another process takes it.
        """
        known = broker_settings.load_identity(self.directory)
        # Clients know the port of an earlier start, so only the first start may choose again.
        drawn = known is None and self._port is None
        identity = known or BrokerIdentity.new(self._port or 0)
        if self._port is not None:
            identity = replace(identity, port=self._port)
        identity = replace(identity, tls=identity.tls or self._tls, scram=identity.scram or self._scram)
        for attempts_left in reversed(range(PORT_ATTEMPTS_MAX)):
            if drawn:
                identity = replace(identity, port=broker_process.free_port(self._advertise))
            identity = replace(identity, proxied=self._proxied_ports(identity))
            try:
                if not broker_process.port_is_free(identity.port):
                    raise BrokerPortInUse(
                        f"port {identity.port} is in use by another process",
                        action="name a free one with --port, or stop that process",
                    )
                return self._launch(java, identity, timeout_s)
            except BrokerPortInUse:
                if not attempts_left or (not drawn and not broker_process.port_is_free(identity.port)):
                    raise
        raise AssertionError("the loop returns or raises")

    def _proxied_ports(self, identity: BrokerIdentity) -> dict[int, int]:
        """For each advertised port the port behind it, that of the last start: a proxy survives restarts."""
        ports: dict[int, int] = {}
        for advertised in self._advertise:
            bound = identity.proxied.get(advertised)
            if bound is None or not broker_process.port_is_free(bound):
                bound = broker_process.free_port({identity.port, *self._advertise, *ports.values()})
            ports[advertised] = bound
        return ports

    def _launch(self, java: list[str], identity: BrokerIdentity, timeout_s: float) -> BrokerInfo:
        self._write_files(identity, Path(java[0]))
        self._format(java, identity)
        log_offset = broker_process.file_bytes(self._log_file)
        options = [*broker_settings.java_options(self.directory), *java_options_given(), *self._jvm_options]
        child: subprocess.Popen[bytes] | None = None
        try:
            with signals_held():
                child = self._spawn([*java, *options, "kafka.Kafka", broker_settings.PROPERTIES_FILE])
                broker_process.write_pid(self.directory, child.pid)
            self._wait_until_ready(child, identity, timeout_s, log_offset)
        except BaseException:
            if child is not None:
                child.kill()
                child.wait()
            self._pid_file.unlink(missing_ok=True)
            raise
        # The broker outlives this object. Without a return code Popen warns about a child that still runs.
        child.returncode = 0
        client_file = self.directory / broker_security.CLIENT_FILE if identity.is_secured else None
        return BrokerInfo(f"{HOST}:{identity.port}", child.pid, identity.proxied, client_file)

    def _write_files(self, identity: BrokerIdentity, java: Path) -> None:
        """The identity first, since it marks the directory as ours; then the files that Kafka reads."""
        taken = {identity.port, *identity.proxied, *identity.proxied.values()}
        controller_port = broker_process.free_port(taken)
        try:
            broker_settings.save_identity(self.directory, identity)
            security: dict[str, str] = {}
            if identity.is_secured:
                known = broker_security.prepare(self.directory, identity, java)
                security = broker_security.server_settings(identity, known)
            settings = broker_settings.server_properties(identity, controller_port, {**security, **self._settings})
            files = {
                broker_settings.PROPERTIES_FILE: broker_settings.render_properties(settings),
                broker_settings.LOGGING_FILE: broker_settings.logging_properties(),
            }
            for name, content in files.items():
                # The properties have passwords.
                broker_settings.replace_file(self.directory / name, content, broker_security.OWNER_ONLY)
        except OSError as error:
            raise BrokerDirectoryUnusable(
                f"cannot write to {self.directory}: {error.strerror}", action="free space, or name another directory"
            ) from error

    def _format(self, java: list[str], identity: BrokerIdentity) -> None:
        """Format Kafka's folder once."""
        data, jars = self.directory / broker_settings.DATA_FOLDER, resolve_jars(progress=self._progress)
        if storage_format.is_formatted(data):
            return
        # The tool also checks the settings, and names a wrong one: ours need no check.
        if not self._settings and storage_format.format_folder(data, identity.cluster_id, jars):
            return
        # An earlier format may have been killed: `--ignore-formatted` lets it run again.
        tool = [*java, "-XX:TieredStopAtLevel=1", broker_settings.LOGGING_OPTION, "kafka.tools.StorageTool", "format"]
        child: subprocess.Popen[bytes] | None = None
        try:
            with signals_held():
                child = self._spawn(
                    [*tool, "--ignore-formatted", "-t", identity.cluster_id, "-c", broker_settings.PROPERTIES_FILE]
                )
            if child.wait(FORMAT_TIMEOUT_S) != 0:
                raise explain_exit(broker_process.text_after(self._output_file, 0), self.directory)
            storage_format.keep_features(data, jars)
        except subprocess.TimeoutExpired:
            raise BrokerStartFailed(
                f"Kafka's format tool took more than {FORMAT_TIMEOUT_S:.0f} s",
                action="look at the load of this machine",
            ) from None
        finally:
            if child is not None and child.poll() is None:
                child.kill()
                child.wait()

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        """A child in its own session, with none of the caller's descriptors.

        A broker that inherits a captured pipe would keep it open, and whoever reads the caller's output would
        never see its end.
        """
        with self._output_file.open("wb") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.directory,
                # Java decodes its working directory by the locale, and fails on other letters under a bare C.
                env={**os.environ, "LC_ALL": "C.UTF-8"},
                close_fds=True,
                start_new_session=True,
            )

    def _wait_until_ready(
        self, child: subprocess.Popen[bytes], identity: BrokerIdentity, timeout_s: float, log_offset: int
    ) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if child.poll() is not None:
                output = broker_process.text_after(self._output_file, 0)
                raise explain_exit(output + broker_process.text_after(self._log_file, log_offset), self.directory)
            if (
                broker_process.port_answers(identity.port)
                and broker_security.ensure_user(self.directory, identity, timeout_s=5.0)
                and self._answers(identity, timeout_s=5.0)
            ):
                return
            time.sleep(READY_POLL_S)
        raise BrokerStartFailed(
            f"the broker did not answer within {timeout_s:.0f} s", action=f"look into {self._log_file}"
        )

    def _answers(self, identity: BrokerIdentity, timeout_s: float) -> bool:
        """Request metadata and compare the cluster id: another broker may have taken the port."""
        security = broker_security.client_settings(self.directory, identity)
        with AdminClient({"bootstrap.servers": f"{HOST}:{identity.port}", "log_level": 0, **security}) as client:
            try:
                return bool(client.list_topics(timeout=timeout_s).cluster_id == identity.cluster_id)
            except KafkaException:
                return False


def make_broker_archive(progress: ProgressCallback | None = None) -> Path:
    """Run a broker once and archive its classes; an archive that exists is kept.

    Returns its path; raises what a start raises.
    """
    archive = broker_archive(resolve_jars(progress=progress), find_java())
    if archive.exists():
        return archive
    if progress is not None:
        progress("starting a broker once, so that every later start is faster")

    def run_broker(partial: Path, directory: Path) -> None:
        recorded = EmbeddedBroker(directory / "broker", jvm_options=recording_options(partial))
        try:
            recorded.start()
        finally:
            # The JVM writes the archive while it exits, which takes longer than a plain stop.
            recorded.stop(ARCHIVE_STOP_TIMEOUT_S)

    record_archive(archive, run_broker)
    return archive
