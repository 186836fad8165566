"""Make `.venv` with Headrace in it and fetch the Java archives, once; run by `make setup` with the machine's own Python.

Nothing but the standard library is there yet. What was made is written down in `.venv/headrace-setup.json` together with a hash of all
that decides it, so that a second run touches neither network nor disk. Every failure is one line.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from headrace.connectors.kafka.java import JavaUnusable, find_java  # noqa: E402

ENVIRONMENT = ROOT / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
STAMP = ENVIRONMENT / "headrace-setup.json"
LOG = ENVIRONMENT / "headrace-setup.log"
DECIDES = ("pyproject.toml", "constraints.txt", "connectors/kafka/ivy.xml", "tools/make_environment.py")
FREE_BYTES_MIN = 3 * 2**30
READY = "ready. To use it:  . .venv/bin/activate   (or call .venv/bin/headrace)"


class SetupFailed(Exception):
    """One line that says what is wrong and what to do."""


def main() -> int:
    """Exit code 0 when the environment is as it should be."""
    quiet = "--quiet" in sys.argv[1:]
    try:
        with (ROOT / ".setup.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_made():
                make()
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
        stamp = json.loads(STAMP.read_bytes())
        whole = (ENVIRONMENT / "bin" / "headrace").exists() and PYTHON.exists() and Path(stamp["jars"]).is_dir()
        return bool(whole and stamp["decided_by"] == decided_by())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def decided_by() -> str:
    """Hash of every file that decides what is installed, of where the tree is, and of the Python."""
    digest = hashlib.sha256(f"{ROOT}\n{sys.version_info[:2]}\n".encode())
    for name in DECIDES:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def make() -> None:
    """Check what can be checked at once, then do the long things."""
    find_java()
    free_bytes = shutil.disk_usage(ROOT).free
    if free_bytes < FREE_BYTES_MIN and not STAMP.exists():
        raise SetupFailed(
            f"only {free_bytes // 2**20} MiB free in {ROOT}, the environment needs {FREE_BYTES_MIN // 2**20}"
        )
    STAMP.unlink(missing_ok=True)
    make_virtual_environment()
    say("installing packages (a few minutes the first time)")
    install()
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
    """`pip install -e .[dev]` under the constraints, everything it says in the log."""
    command = [str(PYTHON), "-m", "pip", "install", "--progress-bar", "off", "-e", f"{ROOT}[dev]"]
    command += ["-c", str(ROOT / "constraints.txt")]
    with LOG.open("w") as log:
        answer = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False, cwd=ROOT)
    if answer.returncode != 0:
        raise SetupFailed(explain(LOG.read_text(errors="replace"), f"packages cannot be installed, see {LOG}"))


def fetch_jars() -> str:
    """Folder of the Java archives, resolved by the environment just made, which also compiles what it can beforehand. Says what it does on stderr."""
    code = """if True:
        import sys
        from headrace.connectors.kafka.jars import resolve_jars
        from headrace.connectors.kafka.broker import make_broker_archive
        from headrace.schemas.errors import HeadraceError
        say = lambda text: print(f"headrace: {text}", file=sys.stderr)
        say("compiling the parser of raw lines")
        from headrace.connectors.formats import avro_kernel, json_path_kernel, kernel
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
    """
    answer = subprocess.run([str(PYTHON), "-c", code], stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    if answer.returncode != 0:
        sys.exit(1)
    return answer.stdout.strip()


def explain(log: str, otherwise: str) -> str:
    """The one line a failed installation comes down to."""
    if "No space left on device" in log:
        return f"the disk of {ROOT} is full; free about {FREE_BYTES_MIN // 2**30} GiB and run it again"
    unreachable = ("NewConnectionError", "Failed to establish a new connection", "Temporary failure in name resolution")
    unreachable += (
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
