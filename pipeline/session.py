"""The Spark session of every job: small, offline and quiet; and its JVM, with the class-data archive it uses.

Under `spark-submit` the submitter's settings apply and only what the jobs depend on is added; elsewhere this
process starts a JVM.
"""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.core import context
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from headrace.connectors.kafka.class_data_archive import archive_digest, archive_options
from headrace.connectors.kafka.jars import JarSet, ProgressCallback, resolve_jars
from headrace.connectors.kafka.java import OPTIONS_VARIABLE, find_spark_java, java_options_given
from headrace.pipeline.package import build_package, package_folder
from headrace.pipeline.spark_home import environment_directory, launched_from, spark_home
from headrace.schemas.errors import HeadraceError

SUBMITTED_VARIABLE = "PYSPARK_GATEWAY_PORT"
DRIVER_MEMORY = "1g"
PARALLELISM = 2
END_TIMEOUT_S = 30.0
# G1 runs threads of its own beside the program, on processors that the Python workers need. Also for
# recording an archive: it is made under the collector that will use it.
COLLECTOR_OPTION = "-XX:+UseParallelGC"
# What the class-data archive is recorded from. It is in the name of the archive: one of another run or another class
# path is useless.
RECORDED = "headrace_raw to Kafka"

# What the jobs rely on, whoever starts the session.
JOB_SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": str(PARALLELISM),
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "32",
    "spark.sql.streaming.stopTimeout": "20s",
}

# A Python worker parses batch after batch of the same size. It keeps the memory of one for the next: what
# allocators return to the system comes back as pages that the kernel has to zero.
WORKER_ENVIRONMENT: Mapping[str, str] = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MIMALLOC_PURGE_DELAY": "-1",
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1",
    # Spark runs one worker per core: further threads in each would compete with the other workers.
    "POLARS_MAX_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}

# Further settings of a JVM that this process starts.
LOCAL_SETTINGS: Mapping[str, str] = {
    "spark.master": f"local[{PARALLELISM}]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": DRIVER_MEMORY,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.worker.reuse": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.catalogImplementation": "in-memory",
    **{f"spark.executorEnv.{name}": value for name, value in WORKER_ENVIRONMENT.items()},
}

_LOGGING = """status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1}: %m%n%ex
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
logger.util.name = org.apache.spark.util.Utils
logger.util.level = error
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.kafkaconsumer.name = org.apache.spark.sql.kafka010.KafkaDataConsumer
logger.kafkaconsumer.level = error
logger.clients.name = org.apache.kafka.clients
logger.clients.level = error
"""


class SparkUnavailable(HeadraceError):
    """Spark's JVM did not start, or was started without what the jobs need."""


def open_session(
    name: str,
    *,
    log_file: Path | None = None,
    settings: Mapping[str, str] | None = None,
    keep_open: Sequence[int] = (),
    progress: ProgressCallback | None = None,
) -> SparkSession:
    """The process's session, opened if there is none; `settings` override ours.

    Output of the JVM and its Python workers goes to `log_file` (None: to this process's stderr). A JVM that
    is started here keeps the descriptors `keep_open`, and the locks on them, until it ends. Needs no network
    once the jars are cached. Raises SparkUnavailable, JarsUnavailable, JavaUnusable.
    """
    _silence_py4j()
    if SparkContext._gateway is None and not is_submitted():
        _launch(name, log_file, dict(settings or {}), keep_open, progress)
    builder = SparkSession.builder.appName(name)
    for key, value in {**JOB_SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    with _without_handler_of_pyspark():
        session = builder.getOrCreate()
    _silence_accumulator_server(session)
    _check_connector(session)
    _provide_package(session)
    return session


def is_submitted() -> bool:
    """Whether `spark-submit` started this process, and with it the JVM."""
    return SUBMITTED_VARIABLE in os.environ


def local_settings(jars: list[Path], logging_file: Path, java_options: str = "") -> dict[str, str]:
    """The settings of a JVM that this process starts; `jars` are on its class path, and with a local master its tasks
    run in it.
    """
    return {
        **LOCAL_SETTINGS,
        **JOB_SETTINGS,
        # Of `spark.jars` Spark would make copies, and load their classes without an archive.
        "spark.driver.extraClassPath": os.pathsep.join(str(jar) for jar in jars),
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={logging_file.as_uri()} {COLLECTOR_OPTION}{java_options}"
        ),
    }


def close_session(session: SparkSession, timeout_s: float = END_TIMEOUT_S) -> None:
    """Stop the session, and the JVM if this process started it; returns once the JVM has ended. One that
    ended before is no error.

    A JVM that has not ended after `timeout_s` is killed.
    """
    with suppress(Py4JError, ConnectionError):
        session.stop()
    gateway = SparkContext._gateway
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    if process.stdin is not None:
        # PySpark's gateway exits when its standard input ends.
        process.stdin.close()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _remove_scratch()


@contextmanager
def end_session(session: SparkSession) -> Iterator[None]:
    """Close the session when the context ends; an interrupt kills the JVM."""
    try:
        yield
    except Exception:
        close_session(session)
        raise
    except BaseException:
        # An interrupt may have cut a call to the JVM in two: another call could wait for ever.
        process = getattr(SparkContext._gateway, "proc", None)
        if process is not None:
            process.kill()
            process.wait()
            _remove_scratch()
        raise
    else:
        close_session(session)


@contextmanager
def _without_handler_of_pyspark() -> Iterator[None]:
    """Keep PySpark from handling SIGINT: its handler calls the JVM, perhaps in the middle of another call to it."""
    # Setting ours back comes too late, and a mask does not help: the signal reaches another thread, and Python runs the
    # handler in this one all the same.
    nothing = SimpleNamespace(SIGINT=signal.SIGINT, signal=lambda _number, _handler: None)
    names = vars(context)
    names["signal"], theirs = nothing, names["signal"]
    try:
        yield
    finally:
        names["signal"] = theirs


def _silence_py4j() -> None:
    """Suppress py4j's tracebacks, when Java ends during a call or our function fails in a query: the caller
    gets the exception.
    """
    logging.getLogger("py4j").propagate = False
    logging.getLogger().addFilter(_is_not_py4j)


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """Whether a log record is from other code than py4j."""
    # py4j logs broken connections with the root logger, so a level for its own logger does not help.
    return Path(record.pathname).parent.name != "py4j"


def _silence_accumulator_server(session: SparkSession) -> None:
    """Suppress PySpark's traceback about a closed connection when the JVM ends first: the call that fails
    then raises an error.
    """
    server = session.sparkContext._accumulatorServer
    report = server.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            report(request, address)

    server.handle_error = handle_error  # type: ignore[assignment]


def _launch(
    name: str,
    log_file: Path | None,
    settings: Mapping[str, str],
    keep_open: Sequence[int],
    progress: ProgressCallback | None,
) -> None:
    """Start the JVM and connect this process to it."""
    java = find_spark_java()
    jars = resolve_jars(progress=progress)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    logging_file = Path(_scratch_directory()) / "log4j2.properties"
    logging_file.write_text(_LOGGING)
    conf = SparkConf(loadDefaults=False).setAppName(name)
    archive = "".join(f" {option}" for option in archive_options(spark_archive(jars, java)))
    conf.setAll(list({**local_settings(jars.spark, logging_file, archive + _java_options()), **settings}.items()))
    # A group of its own: a signal to the process group is for the driver, which lets the micro-batch finish and
    # then stops the JVM. A JVM that got it too could end between a task's rows and their count. It ends with its
    # standard input when the driver is killed.
    child: dict[str, Any] = {"pass_fds": tuple(keep_open), "process_group": 0}
    with log_file.open("ab") if log_file else nullcontext() as output, _no_orphan(logging_file.as_uri()):
        if output is not None:
            child |= {"stdout": output, "stderr": output}
        try:
            with launched_from(spark_home()):
                gateway = launch_gateway(conf, child)  # type: ignore[no-untyped-call]
        except PySparkRuntimeError as error:
            where = f"look into {log_file}" if log_file else "its output is above"
            raise SparkUnavailable("Spark's Java process ended while starting", action=where) from error
        SparkContext._ensure_initialized(gateway=gateway, conf=conf)


@contextmanager
def _no_orphan(mark: str) -> Iterator[None]:
    """Kill the JVM of a start that fails or is interrupted; its command line has the mark."""
    # PySpark takes the folder away in which the JVM leaves its address. One that comes later fails at that, before it
    # waits for the end of its standard input, and its other threads would live on for ever, with the lock of the
    # checkpoint.
    try:
        yield
    except BaseException:
        import psutil

        for child in psutil.Process().children():
            with suppress(psutil.Error, OSError):
                if any(mark in word for word in child.cmdline()):
                    # With the programs by which its script finds Java.
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
        raise


def _java_options() -> str:
    """Flags for the JVM from the environment.

    Raises SparkUnavailable for one that Spark refuses, which it does with a page of text.
    """
    given = java_options_given()
    for option in given:
        if option.startswith("-Xmx"):
            raise SparkUnavailable(
                f"Spark does not take {option} of {OPTIONS_VARIABLE}", action="set ingest.driver_memory_mb instead"
            )
    return "".join(f" {shlex.quote(option)}" for option in given)


def _check_connector(session: SparkSession) -> None:
    """Raises SparkUnavailable without the Kafka connector, as under a `spark-submit` without its jars."""
    jvm = session.sparkContext._jvm
    assert jvm is not None, "a session without a JVM"
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    if loader.getResource("org/apache/spark/sql/kafka010/KafkaSourceProvider.class") is None:
        raise SparkUnavailable(
            "this Spark has no Kafka connector", action='start it with --jars "$(python -m headrace.pipeline.session)"'
        )


def is_local(session: SparkSession) -> bool:
    """Whether tasks run on this machine, with access to its folders and to a local checkpoint."""
    return (session.sparkContext.master or "").startswith("local")


def _provide_package(session: SparkSession) -> None:
    """Let the Python workers run this very code: from its folder where the driver is, else from an archive."""
    context = session.sparkContext
    # Without it a folder named `headrace` where the command is started would be imported instead.
    context.environment["PYTHONSAFEPATH"] = "1"
    # Compiled code is cached beside the sources: out of an archive each worker would compile again. On a cluster the
    # driver's workers that plan a stream need the path too: Spark 4.1 gives its Python files to no other workers.
    folders = [str(package_folder()), *filter(None, context.environment.get("PYTHONPATH", "").split(os.pathsep))]
    context.environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(folders))
    if is_local(session):
        return
    if not any(Path(include).name.startswith("headrace-") for include in context._python_includes or ()):
        context.addPyFile(str(build_package(_scratch_directory())))


_scratch: list[tempfile.TemporaryDirectory[str]] = []


def _scratch_directory() -> str:
    """A folder that is removed with the JVM of this process, or when the process exits."""
    # Spark reads the logging settings and the archive at any later time, so they cannot go with the session.
    if not _scratch:
        _scratch.append(tempfile.TemporaryDirectory(prefix="headrace-spark-"))
        atexit.register(_remove_scratch)
    return _scratch[0].name


def _remove_scratch() -> None:
    # Not at the exit alone: a command that Ctrl-C has ended skips what Python does there.
    while _scratch:
        _scratch.pop().cleanup()


def spark_archive(jars: JarSet, java: Path) -> Path:
    """Path of the class-data archive of this Spark and this Java; it need not exist."""
    # Of the home too: the archive is valid for one class path.
    digest = archive_digest(java, spark_home(), jars.directory.name, RECORDED)
    return environment_directory() / f"{digest}.jsa"


if __name__ == "__main__":
    sys.stdout.write(",".join(str(jar) for jar in resolve_jars().spark) + "\n")
