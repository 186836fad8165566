"""The Spark session of every job: small, offline, quiet, and the same wherever it is opened.

Under `spark-submit` the submitter's settings hold and only what the jobs depend on is added; elsewhere a JVM of our own is started.
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
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from connectors.kafka.jars import Progress, resolve_jars
from connectors.kafka.java import OPTIONS_VARIABLE, find_java, java_options_given
from pipeline.package import build_package, package_folder
from pipeline.spark_archive import archive_options
from schemas.errors import HeadraceError

SUBMITTED_VARIABLE = "PYSPARK_GATEWAY_PORT"
DRIVER_MEMORY = "1g"
PARALLELISM = 2
END_TIMEOUT_S = 30.0

# What the jobs rely on, whoever starts the session.
JOB_SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": str(PARALLELISM),
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "32",
    "spark.sql.streaming.stopTimeout": "20s",
}

# A Python worker takes apart batch after batch of the same size: it keeps the memory of one for the next instead of giving it back.
WORKER_ENVIRONMENT: Mapping[str, str] = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MIMALLOC_PURGE_DELAY": "-1",
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1",
    # One worker a thread of Spark: threads of its own would only take turns with it.
    "POLARS_MAX_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}

# What a JVM of our own is started with besides.
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
    progress: Progress | None = None,
) -> SparkSession:
    """The process's session, opened now if there is none; `settings` win over ours.

    Whatever the JVM and its Python workers print goes to `log_file` (None: to this process's stderr). A JVM that is started now keeps the
    descriptors `keep_open`, and with them the locks they hold, until it ends. Needs no network once the jars are in the cache. Raises
    SparkUnavailable, JarsUnavailable, JavaUnusable.
    """
    if SparkContext._gateway is None and not is_submitted():
        _launch(name, log_file, dict(settings or {}), keep_open, progress)
    builder = SparkSession.builder.appName(name)
    for key, value in {**JOB_SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    with _own_interrupts():
        session = builder.getOrCreate()
    _hush_ended_accumulators(session)
    _hush_py4j()
    _check_connector(session)
    _lend_packages(session)
    return session


def is_submitted() -> bool:
    """Whether `spark-submit` started this process, and with it the JVM."""
    return SUBMITTED_VARIABLE in os.environ


def local_settings(jars: list[Path], logging_file: Path, java_options: str = "") -> dict[str, str]:
    """The settings a JVM of our own starts with; `jars` are on the class path of driver and executors alike."""
    return {
        **LOCAL_SETTINGS,
        **JOB_SETTINGS,
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging_file.as_uri()} -XX:+UseParallelGC{java_options}",
    }


def close_session(session: SparkSession, timeout_s: float = END_TIMEOUT_S) -> None:
    """Stop the session, and the JVM too when it is our own: returns when that has ended. A JVM that is gone already is no error.

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
        # The JVM ends when its standard input does.
        process.stdin.close()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def end_session(session: SparkSession) -> Iterator[None]:
    """Close the session when the context ends. Whoever interrupts it may have cut a call to the JVM in two: that JVM is killed, not asked."""
    try:
        yield
    except Exception:
        close_session(session)
        raise
    except BaseException:
        process = getattr(SparkContext._gateway, "proc", None)
        if process is not None:
            process.kill()
            process.wait()
        raise
    else:
        close_session(session)


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep the handler of SIGINT: PySpark puts its own in place, which cancels all jobs and raises in the middle of whatever runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _hush_py4j() -> None:
    """No tracebacks of py4j when Java ends under a call, or our function fails in a query: who waits for the query hears of it by exception."""
    logging.getLogger("py4j").propagate = False
    logging.getLogger().addFilter(_not_of_py4j)


def _not_of_py4j(record: logging.LogRecord) -> bool:
    """What py4j says of a broken connection, it says by the root logger."""
    return Path(record.pathname).parent.name != "py4j"


def _hush_ended_accumulators(session: SparkSession) -> None:
    """When the JVM ends before us, PySpark prints a traceback because no more counts come; the call that fails then says it better."""
    server = session.sparkContext._accumulatorServer
    loud = server.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            loud(request, address)

    server.handle_error = handle_error  # type: ignore[assignment]


def _launch(
    name: str,
    log_file: Path | None,
    settings: Mapping[str, str],
    keep_open: Sequence[int],
    progress: Progress | None,
) -> None:
    """Start the JVM and connect the process to it."""
    java = find_java()
    jars = resolve_jars(progress=progress)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    logging_file = Path(_scratch_directory()) / "log4j2.properties"
    logging_file.write_text(_LOGGING)
    conf = SparkConf(loadDefaults=False).setAppName(name)
    own = local_settings(jars.spark, logging_file, archive_options(jars, java) + _java_options())
    conf.setAll(list({**own, **settings}.items()))
    child: dict[str, Any] = {"pass_fds": tuple(keep_open)}
    with log_file.open("ab") if log_file else nullcontext() as output:
        if output is not None:
            child |= {"stdout": output, "stderr": output}
        try:
            gateway = launch_gateway(conf, child)  # type: ignore[no-untyped-call]
        except PySparkRuntimeError as error:
            where = f"look into {log_file}" if log_file else "its own words stand above"
            raise SparkUnavailable("Spark's Java process ended while starting", action=where) from error
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def _java_options() -> str:
    """The flags that the environment has for our JVM. Raises SparkUnavailable for one that Spark refuses, with a page of text."""
    given = java_options_given()
    for option in given:
        if option.startswith("-Xmx"):
            raise SparkUnavailable(
                f"Spark does not take {option} of {OPTIONS_VARIABLE}", action="set ingest.driver_memory_mb instead"
            )
    return "".join(f" {shlex.quote(option)}" for option in given)


def _check_connector(session: SparkSession) -> None:
    """Raises SparkUnavailable when the Kafka connector is missing, as under a `spark-submit` without its jars."""
    jvm = session.sparkContext._jvm
    assert jvm is not None, "a session without a JVM"
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    if loader.getResource("org/apache/spark/sql/kafka010/KafkaSourceProvider.class") is None:
        raise SparkUnavailable(
            "this Spark has no Kafka connector", action='start it with --jars "$(python -m pipeline.session)"'
        )


def is_local(session: SparkSession) -> bool:
    """Whether tasks run on this machine: its folders, and a local checkpoint, are within their reach."""
    return (session.sparkContext.master or "").startswith("local")


def _lend_packages(session: SparkSession) -> None:
    """Let the Python workers run this very code: on this machine as it lies here, where what is compiled is kept, elsewhere as an archive."""
    context = session.sparkContext
    # Else a folder of ours' name, where the command is started, would be imported in our place.
    context.environment["PYTHONSAFEPATH"] = "1"
    if is_local(session):
        folders = [str(package_folder()), *filter(None, context.environment.get("PYTHONPATH", "").split(os.pathsep))]
        context.environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(folders))
    elif not any(Path(include).name.startswith("headrace-") for include in context._python_includes or ()):
        context.addPyFile(str(build_package(_scratch_directory())))


_scratch: list[tempfile.TemporaryDirectory[str]] = []


def _scratch_directory() -> str:
    """A folder that lives as long as the process."""
    if not _scratch:
        _scratch.append(tempfile.TemporaryDirectory(prefix="headrace-spark-"))
        atexit.register(_scratch[0].cleanup)
    return _scratch[0].name


if __name__ == "__main__":
    sys.stdout.write(",".join(str(jar) for jar in resolve_jars().spark) + "\n")
