"""A real Apache Kafka broker (KRaft, one node) on loopback, started and stopped as a process of its own.

For tests, the demo and a laptop. It outlives the process that starts it; its data directory is all that start, stop and status share.
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

from connectors.kafka import broker_process, broker_settings
from connectors.kafka.broker_archive import archive_options
from connectors.kafka.broker_settings import HOST, BrokerIdentity, NotABrokerDirectory
from connectors.kafka.jars import Progress, resolve_jars
from connectors.kafka.java import OPTIONS_VARIABLE, find_java, java_options_given
from schemas.errors import HeadraceError

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
FORMAT_TIMEOUT_S = 60.0
READY_POLL_S = 0.05
PORT_ATTEMPTS_MAX = 3

__all__ = [
    "BrokerAlreadyRunning",
    "BrokerDirectoryUnusable",
    "BrokerInfo",
    "BrokerPortInUse",
    "BrokerStartFailed",
    "BrokerStatus",
    "EmbeddedBroker",
    "NotABrokerDirectory",
]


class BrokerAlreadyRunning(HeadraceError):
    """A broker runs on this directory, or is just being started there."""


class BrokerPortInUse(HeadraceError):
    """Another process listens on a port that this broker is to have."""


class BrokerDirectoryUnusable(HeadraceError):
    """The data directory cannot be made or written."""


class BrokerStartFailed(HeadraceError):
    """The broker's process ended, or did not answer in time."""


@dataclass(frozen=True)
class BrokerInfo:
    """A broker that answered. `proxied` maps each advertised extra port to the port the broker listens on behind it."""

    bootstrap: str
    pid: int
    proxied: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class BrokerStatus:
    """What is known of a directory's broker: `answers` tells whether it replied to a metadata request just now."""

    running: bool
    answers: bool
    bootstrap: str | None
    pid: int | None
    data_directory: Path
    log_file: Path


class EmbeddedBroker:
    """Owns one data directory: Kafka's logs under `data/`, its settings, log and pid file.

    Any number of instances and processes may name the same directory; a lock and the process table make sure that one broker at most runs on
    it. The port is chosen at the first start and kept. `advertise` lists extra ports that clients are told to use, one listener each: a
    proxy is to listen there and pass on to `BrokerInfo.proxied[port]`. `settings` are further Kafka settings, `jvm_options` further
    flags of its Java, verbatim.
    """

    def __init__(
        self,
        data_directory: Path | str,
        port: int | None = None,
        *,
        advertise: Iterable[int] = (),
        settings: Mapping[str, str] | None = None,
        jvm_options: Iterable[str] = (),
        progress: Progress | None = None,
    ) -> None:
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
        archive = [] if self._jvm_options else archive_options(jars, java)
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
        """Look at the process and ask it. Raises `NotABrokerDirectory` when there never was a broker."""
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
        """Hold the directory against other starts. Once the broker runs, its process is what keeps others out."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            # Checked before the lock file is made, so that nothing is left in a folder that is not ours.
            broker_settings.load_identity(self.directory)
            handle = (self.directory / broker_settings.LOCK_FILE).open("a")
        except OSError as error:
            raise BrokerDirectoryUnusable(
                f"cannot write to {self.directory}: {error.strerror}", action="name a directory that can be written"
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
        """Start on the port asked for or kept from before; ports nobody asked for are drawn again when somebody else was faster."""
        known = broker_settings.load_identity(self.directory)
        drawn = known is None and self._port is None
        identity = known or BrokerIdentity.new(self._port or 0)
        if self._port is not None:
            identity = replace(identity, port=self._port)
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
        """For each advertised port the one to listen on behind it: that of the last start, so that a proxy outlives restarts."""
        ports: dict[int, int] = {}
        for advertised in self._advertise:
            bound = identity.proxied.get(advertised)
            if bound is None or not broker_process.port_is_free(bound):
                bound = broker_process.free_port({identity.port, *self._advertise, *ports.values()})
            ports[advertised] = bound
        return ports

    def _launch(self, java: list[str], identity: BrokerIdentity, timeout_s: float) -> BrokerInfo:
        self._write_files(identity)
        self._format(java, identity)
        log_offset = broker_process.file_bytes(self._log_file)
        child = self._spawn(
            [
                *java,
                *broker_settings.java_options(self.directory),
                *java_options_given(),
                *self._jvm_options,
                "kafka.Kafka",
                broker_settings.PROPERTIES_FILE,
            ]
        )
        try:
            broker_process.write_pid(self.directory, child.pid)
            self._wait_until_ready(child, identity, timeout_s, log_offset)
        except BaseException:
            child.kill()
            child.wait()
            self._pid_file.unlink(missing_ok=True)
            raise
        # The broker outlives this object; its handle must not warn about that when it is collected.
        child.returncode = 0
        return BrokerInfo(f"{HOST}:{identity.port}", child.pid, identity.proxied)

    def _write_files(self, identity: BrokerIdentity) -> None:
        """Identity first, since it marks the directory as ours, then what Kafka reads."""
        taken = {identity.port, *identity.proxied, *identity.proxied.values()}
        controller_port = broker_process.free_port(taken)
        settings = broker_settings.server_properties(identity, controller_port, self._settings)
        files = {
            broker_settings.PROPERTIES_FILE: broker_settings.render_properties(settings),
            broker_settings.LOGGING_FILE: broker_settings.logging_properties(),
        }
        try:
            broker_settings.save_identity(self.directory, identity)
            for name, content in files.items():
                broker_settings.replace_file(self.directory / name, content)
        except OSError as error:
            raise BrokerDirectoryUnusable(
                f"cannot write to {self.directory}: {error.strerror}", action="free space, or name another directory"
            ) from error

    def _format(self, java: list[str], identity: BrokerIdentity) -> None:
        """Prepare Kafka's folder once; a format that was cut short is simply done again."""
        if (self.directory / broker_settings.DATA_FOLDER / "meta.properties").exists():
            return
        tool = [*java, "-XX:TieredStopAtLevel=1", broker_settings.LOGGING_OPTION, "kafka.tools.StorageTool", "format"]
        child = self._spawn(
            [*tool, "--ignore-formatted", "-t", identity.cluster_id, "-c", broker_settings.PROPERTIES_FILE]
        )
        try:
            if child.wait(FORMAT_TIMEOUT_S) != 0:
                raise self._explain(broker_process.text_after(self._output_file, 0))
        except subprocess.TimeoutExpired:
            raise BrokerStartFailed(
                f"Kafka's format tool took more than {FORMAT_TIMEOUT_S:.0f} s",
                action="look at the load of this machine",
            ) from None
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        """A child in its own session, with none of the caller's descriptors: a captured pipe of the caller ends when the caller does."""
        with self._output_file.open("wb") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.directory,
                # Java decodes the path it runs in by the locale, and fails on other letters under a bare C locale.
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
                raise self._explain(output + broker_process.text_after(self._log_file, log_offset))
            if broker_process.port_answers(identity.port) and self._answers(identity, timeout_s=5.0):
                return
            time.sleep(READY_POLL_S)
        raise BrokerStartFailed(
            f"the broker did not answer within {timeout_s:.0f} s", action=f"look into {self._log_file}"
        )

    @staticmethod
    def _answers(identity: BrokerIdentity, timeout_s: float) -> bool:
        """Ask for metadata; only the broker with our cluster id counts."""
        with AdminClient({"bootstrap.servers": f"{HOST}:{identity.port}", "log_level": 0}) as client:
            try:
                return bool(client.list_topics(timeout=timeout_s).cluster_id == identity.cluster_id)
            except KafkaException:
                return False

    def _explain(self, output: str) -> HeadraceError:
        """The reason of a broker that ended by itself, out of what it wrote."""
        if "Address already in use" in output or "java.net.BindException" in output:
            return BrokerPortInUse(
                "a port of the broker is in use by another process", action="name a free one with --port"
            )
        if "No space left on device" in output:
            return BrokerDirectoryUnusable(
                f"the disk of {self.directory} is full", action="free space, or name another directory"
            )
        if "Could not reserve enough space" in output or "Cannot allocate memory" in output:
            return BrokerStartFailed(
                f"not enough memory for a broker with {broker_settings.HEAP_MB} MB heap", action="free memory"
            )
        lines = [line.strip() for line in output.splitlines()]
        before, refused, _ = output.partition("Error: Could not create the Java Virtual Machine")
        if refused:
            # Java gives its reason in the line above.
            reason = before.strip().rpartition("\n")[2]
            return BrokerStartFailed(f"Java does not start: {reason}", action=f"look at {OPTIONS_VARIABLE}")
        cause = [line for line in lines if " ERROR " in line or " FATAL " in line or "Exception" in line] or lines[-1:]
        return BrokerStartFailed(
            f"the broker ended while starting: {cause[0][:300] if cause else 'no output'}",
            action=f"look into {self._log_file}",
        )
