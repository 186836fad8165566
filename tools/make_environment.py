"""Make `.venv` with Headrace in it and fetch the Java archives, once; run by `make setup` with the machine's own Python.

Nothing but the standard library is there yet. What was made is written down in `.venv/headrace-setup.json` together with a hash of all
that decides it, so that a second run touches neither network nor disk. Every failure is one line.

With `--packages` it ends before the Java archives: checks that need none run beside the rest of the set-up. With `--jars` it
only fetches them, by the Ivy that the first part of the set-up put aside.
"""

from __future__ import annotations

import fcntl
import fnmatch
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from headrace.connectors.kafka.jars import JarsUnavailable, resolve_jars  # noqa: E402
from headrace.connectors.kafka.java import JavaUnusable, find_spark_java  # noqa: E402

ENVIRONMENT = ROOT / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
STAMP = ENVIRONMENT / "headrace-setup.json"
PACKAGES_STAMP = ENVIRONMENT / "headrace-packages.json"
LOG = ENVIRONMENT / "headrace-setup.log"
WHEELS = ENVIRONMENT / "headrace-wheels"
WHEELS_LOG = ENVIRONMENT / "headrace-wheels.log"
IVY = ENVIRONMENT / "headrace-ivy.jar"
DECIDES = ("pyproject.toml", "constraints.txt", "connectors/kafka/ivy.xml", "tools/make_environment.py")
FREE_BYTES_MIN = 3 * 2**30
# Each is compiled by a process of its own, so that every core has work.
KERNELS = ("kernel", "avro_kernel", "json_path_kernel", "json_document_kernel")
READY = "ready. To use it:  . .venv/bin/activate   (or call .venv/bin/headrace)"


class SetupFailed(Exception):
    """One line that says what is wrong and what to do."""


def main() -> int:
    """Exit code 0 when the environment is as it should be."""
    quiet, packages_only = ("--quiet" in sys.argv[1:]), ("--packages" in sys.argv[1:])
    if "--jars" in sys.argv[1:]:
        with suppress(JarsUnavailable, JavaUnusable):
            resolve_jars(ivy_jar=IVY)
        return 0
    try:
        with (ROOT / ".setup.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_made():
                make(packages_only)
    except SetupFailed as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except JavaUnusable as error:
        sys.stderr.write(f"error: {error.message}; {error.action}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"error: {error.filename or ROOT}: {error.strerror}; free space or fix its permissions\n")
        return 1
    except KeyboardInterrupt:
        return 130
    if not quiet:
        sys.stdout.write(f"headrace: {READY}\n")
    return 0


def is_made() -> bool:
    """Whether the environment was made from what the tree says now, and its jars are still in the cache."""
    try:
        return is_installed(STAMP) and Path(json.loads(STAMP.read_bytes())["jars"]).is_dir()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def packages_are_made() -> bool:
    """Whether the packages are those that the tree names now, whatever is there of Java's archives."""
    try:
        return is_installed(PACKAGES_STAMP)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def is_installed(stamp: Path) -> bool:
    """Whether the programs of the environment are there, and the stamp is of the tree as it is."""
    there = PYTHON.exists() and (ENVIRONMENT / "bin" / "headrace").exists()
    return bool(there and json.loads(stamp.read_bytes())["decided_by"] == decided_by())


def decided_by() -> str:
    """Hash of every file that decides what is installed, of where the tree is, and of the Python."""
    digest = hashlib.sha256(f"{ROOT}\n{sys.version_info[:2]}\n".encode())
    for name in DECIDES:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def make(packages_only: bool) -> None:
    """Check what can be checked at once, then do the long things, or those of Python alone."""
    find_spark_java()
    free_bytes = shutil.disk_usage(ROOT).free
    if free_bytes < FREE_BYTES_MIN and not STAMP.exists():
        raise SetupFailed(
            f"only {free_bytes // 2**20} MiB free in {ROOT}, the environment needs {FREE_BYTES_MIN // 2**20}"
        )
    STAMP.unlink(missing_ok=True)
    if not packages_are_made():
        PACKAGES_STAMP.unlink(missing_ok=True)
        make_virtual_environment()
        say("installing packages (a few minutes the first time)")
        install()
        PACKAGES_STAMP.write_text(json.dumps({"decided_by": decided_by()}) + "\n")
    if not packages_only:
        jars = fetch_jars()
        STAMP.write_text(json.dumps({"decided_by": decided_by(), "jars": jars}) + "\n")


def make_virtual_environment() -> None:
    """A `.venv` whose Python runs and is the version of this one; one that is broken or older is made anew."""
    wanted = f"{sys.version_info[0]}.{sys.version_info[1]}"
    probe = "import sys, pip; print('%d.%d' % sys.version_info[:2])"
    try:
        found = subprocess.run([str(PYTHON), "-c", probe], capture_output=True, text=True, check=False)
        if found.returncode == 0 and found.stdout.strip() == wanted:
            return
    except OSError:
        pass
    say(f"making .venv with Python {wanted}")
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        output = made.stdout + made.stderr
        if "ensurepip" in output:
            raise SetupFailed(
                f"{sys.executable} cannot make virtual environments; install its venv package (python3-venv)"
            )
        raise SetupFailed(explain(output, "the virtual environment cannot be made"))


def install() -> None:
    """Install what `pip install -e .[dev]` installs under the constraints, and compile all of it.

    PySpark comes as sources of 430 MB. Its wheel is built while everything else is installed and compiled, and Ivy, which
    is inside it, fetches the Java archives from then on.
    """
    spark, others = requirements()
    for log in (LOG, WHEELS_LOG):
        log.unlink(missing_ok=True)
    shutil.rmtree(WHEELS, ignore_errors=True)
    building: list[subprocess.Popen[bytes]] = []
    if not is_there(spark):
        building += [begin_pip("wheel", "--no-deps", "--wheel-dir", str(WHEELS), spark, log=WHEELS_LOG)]
    try:
        run_pip("install", "--no-compile", *others)
        compile_packages()
        say("compiling the parsers of raw data")
        compile_kernels()
        for each in building:
            # One that failed says why below, where pip tries it again.
            each.wait()
        if keep_ivy():
            fetch_jars_beside()
        whole = ["install", "--no-compile", "--no-build-isolation", "--find-links", str(WHEELS), "-e", f"{ROOT}[dev]"]
        run_pip(*whole)
        compile_packages()
    finally:
        for each in building:
            each.kill()
            each.wait()
        shutil.rmtree(WHEELS, ignore_errors=True)


def requirements() -> tuple[str, list[str]]:
    """What the project needs: PySpark of a version, and everything else with the tools of its developers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    [spark] = [each for each in needed if each.startswith("pyspark==")]
    return spark, [each for each in needed if each != spark]


def is_there(pinned: str) -> bool:
    """Whether a package of an exact version is installed."""
    return any(ENVIRONMENT.glob(f"lib/python*/site-packages/{pinned.replace('==', '-')}.dist-info"))


def begin_pip(*arguments: str, log: Path) -> subprocess.Popen[bytes]:
    """Start pip under the constraints, with everything that it says in a log."""
    command = [str(PYTHON), "-m", "pip", *arguments, "--progress-bar", "off", "-c", str(ROOT / "constraints.txt")]
    with log.open("ab") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=ROOT)


def run_pip(*arguments: str) -> None:
    """Run pip to its end. Raises SetupFailed."""
    if begin_pip(*arguments, log=LOG).wait() != 0:
        raise SetupFailed(explain(LOG.read_text(errors="replace"), f"packages cannot be installed, see {LOG}"))


def compile_packages() -> None:
    """Compile what was installed and is not compiled yet."""
    # pip compiles file after file, and the packages' own tests as well: half a minute on one core. The exit code counts
    # nothing: some packages have templates that are no Python.
    compiling = [str(PYTHON), "-m", "compileall", "-qq", "-j", "0", "-x", "/tests?/", str(ENVIRONMENT / "lib")]
    with LOG.open("ab") as output:
        subprocess.run(compiling, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False)


def compile_kernels() -> None:
    """Compile the loops that read raw data; the code is cached beside their sources."""
    imports = (f"import headrace.connectors.formats.{name}" for name in KERNELS)
    # The tree is not installed yet.
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = [subprocess.Popen([str(PYTHON), "-c", each], cwd=ROOT, env=environment) for each in imports]
    codes = [each.wait() for each in running]
    if any(codes):
        raise SetupFailed("the parsers of raw data cannot be compiled; see above")


def keep_ivy() -> bool:
    """Put the Ivy of the wheel aside; whether there is one."""
    for wheel in WHEELS.glob("pyspark-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in fnmatch.filter(archive.namelist(), "pyspark/jars/ivy-*.jar"):
                IVY.write_bytes(archive.read(name))
                return True
    return False


def fetch_jars_beside() -> None:
    """Let another process fetch the Java archives that are not in the cache.

    It may outlive this one: whoever needs the archives waits for its lock. What it cannot fetch is tried again there,
    with an error that says why.
    """
    nothing = subprocess.DEVNULL
    subprocess.Popen([sys.executable, __file__, "--jars"], stdin=nothing, stdout=nothing, stderr=nothing)


def fetch_jars() -> str:
    """Folder of the Java archives, resolved by the environment just made, which also starts each JVM once. Says what it does on stderr."""
    code = """if True:
        import sys
        from headrace.connectors.kafka.jars import resolve_jars
        from headrace.connectors.kafka.broker import make_broker_archive
        from headrace.schemas.errors import HeadraceError
        from headrace.terminal.stop_signals import interrupting_signals
        say = lambda text: print(f"headrace: {text}", file=sys.stderr)
        def begin():
            try:
                print(resolve_jars(progress=say).directory)
            except HeadraceError as error:
                sys.exit(f"error: {error.message}; {error.action}")
            try:
                make_broker_archive(say)
            except HeadraceError as error:
                say(f"note: the broker does not start on this machine yet: {error.message}; {error.action}")
            from headrace.pipeline.class_archive import make_spark_archive
            try:
                make_spark_archive(say)
            except Exception as error:
                say(f"note: Spark does not start on this machine yet: {error}")
        try:
            # Whatever ends it, the broker that it started has a session of its own.
            with interrupting_signals():
                begin()
        except KeyboardInterrupt:
            sys.exit(130)
    """
    # Each of these JVMs lives for seconds: the quick compiler is enough, and what they archive is the same.
    environment = {
        **os.environ,
        "JDK_JAVA_OPTIONS": f"-XX:TieredStopAtLevel=1 {os.environ.get('JDK_JAVA_OPTIONS', '')}",
    }
    command = [str(PYTHON), "-c", code]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT, env=environment)
    if answer.returncode != 0:
        sys.exit(1)
    return answer.stdout.strip()


def explain(log: str, otherwise: str) -> str:
    """The one line a failed installation comes down to."""
    if "No space left on device" in log:
        return f"the disk of {ROOT} is full; free about {FREE_BYTES_MIN // 2**30} GiB and run it again"
    unreachable = (
        "NewConnectionError",
        "Failed to establish a new connection",
        "Temporary failure in name resolution",
        "ConnectTimeoutError",
        "Read timed out",
        "ProxyError",
        "SSLError",
        "No such host",
        "Connection refused",
    )
    if any(sign in log for sign in unreachable):
        return "the Python package registry is not reachable; check the network or pip's settings and run it again"
    errors = [line.strip() for line in log.splitlines() if line.lstrip().lower().startswith("error:")]
    return f"{otherwise}: {errors[0][:200]}" if errors else otherwise


def say(text: str) -> None:
    """Progress for people."""
    sys.stderr.write(f"headrace: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
