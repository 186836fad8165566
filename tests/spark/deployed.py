"""Spark as processes on this machine, outside of the driver: a standalone cluster, a Connect server, plain Pythons."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark

from headrace.connectors.kafka.broker_process import free_port
from headrace.connectors.kafka.jars import resolve_jars
from headrace.connectors.kafka.java import find_java

WAIT_S = 900
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SPARK = Path(pyspark.__file__).parent


def python_without_headrace(directory: Path) -> Path:
    """A Python with the dependencies of this project and without its packages: what an executor has."""
    venv.create(directory, symlinks=True, with_pip=False)
    python = directory / "bin" / "python"
    folder = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    # The files of that folder that name further folders, such as our source tree, are not read.
    Path(folder, "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    missing = subprocess.run([python, "-c", "import headrace"], capture_output=True, cwd=directory, check=False)
    assert missing.returncode, "executors would have the package without the archive"
    return python


def environment(directory: Path, **more: str) -> dict[str, str]:
    """That of Spark's processes: everything on loopback, nothing from a source tree."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "SPARK_"))}
    own = {
        "JAVA_HOME": str(find_java().resolve().parent.parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK,
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_HOME": str(SPARK),
        "SPARK_LOG_DIR": str(directory),
    }
    return {**plain, **own, **more}


@contextmanager
def started(directory: Path, name: str, *command: str | Path, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with its output in NAME.log, asked to end afterwards."""
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(part) for part in command],
            env=environment(directory, **more),
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            cwd=directory,
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for_line(directory: Path, name: str, text: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a process logs a text."""
    deadline = time.monotonic() + WAIT_S
    while text not in (log := (directory / f"{name}.log").read_text(errors="replace")):
        assert process.poll() is None, log
        assert time.monotonic() < deadline, log
        time.sleep(0.2)


@contextmanager
def standalone_cluster(directory: Path, cores: int = 2) -> Iterator[str]:
    """The address of a Spark cluster of one worker, as a master and a worker on loopback."""
    port, run = free_port(), SPARK / "bin" / "spark-class"
    address, web = f"spark://127.0.0.1:{port}", ("--host", "127.0.0.1", "--webui-port", "0")
    master = (run, "org.apache.spark.deploy.master.Master", "--port", str(port), *web)
    worker = (run, "org.apache.spark.deploy.worker.Worker", *web, "--cores", str(cores), "--memory", "1g")
    with started(directory, "master", *master) as leading:
        wait_for_line(directory, "master", "New state: ALIVE", leading)
        with started(directory, "worker", *worker, "--work-dir", directory / "work", address) as working:
            wait_for_line(directory, "worker", "Successfully registered", working)
            yield address


def submitted(
    directory: Path, python: Path, address: str, archive: Path, job: Path, *options: str
) -> subprocess.CompletedProcess[str]:
    """A job to its end through `spark-submit`, its package as one zip."""
    confs = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK,
        "spark.ui.enabled": "false",
    }
    line = [str(SPARK / "bin" / "spark-submit"), "--master", address, "--driver-java-options", QUICK]
    line += [part for name, value in confs.items() for part in ("--conf", f"{name}={value}")]
    line += ["--jars", connector_jars(), "--py-files", str(archive), str(job), *options]
    return subprocess.run(
        line,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env=environment(directory, PYSPARK_PYTHON=str(python), PYSPARK_DRIVER_PYTHON=str(python)),
        cwd=directory,
    )


def alone(directory: Path, python: Path, archive: Path, job: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A job to its end without a JVM, its package out of the zip."""
    return subprocess.run(
        [python, job, *options],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env=environment(directory, PYTHONPATH=str(archive)),
        cwd=directory,
    )


def connector_jars() -> str:
    """The jars of Spark's Kafka connector, as `--jars` takes them."""
    return ",".join(str(jar) for jar in resolve_jars().spark)


@contextmanager
def connect_server(directory: Path, settings: Mapping[str, str], **more: str) -> Iterator[str]:
    """The address of a Spark Connect server on loopback."""
    port = free_port()
    confs = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        **settings,
    }
    line = [str(SPARK / "bin" / "spark-submit"), "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    line += ["--master", "local[2]", "--driver-java-options", QUICK, "--jars", connector_jars()]
    line += [part for name, value in confs.items() for part in ("--conf", f"{name}={value}")]
    more = {"PYSPARK_PYTHON": sys.executable, **more}
    with started(directory, "connect", *line, "spark-internal", **more) as process:
        wait_for_line(directory, "connect", "Spark Connect server started", process)
        yield f"sc://127.0.0.1:{port}"
