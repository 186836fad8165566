"""Java archives of the broker and of Spark's connectors, resolved once by the Ivy inside PySpark and kept in
the user's cache.

Each `ivy*.xml` beside this file is one set of pins. Its jars are in
`${XDG_CACHE_HOME:-~/.cache}/headrace/jars/<hash of the file>/`: one folder per configuration, and
`complete.json` with every name and size. A set appears by one rename, so it is whole or absent.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from headrace.connectors.kafka.java import find_java
from headrace.schemas.errors import HeadraceError

IVY_FILES = {"runtime": "ivy.xml", "bench": "ivy-bench.xml"}
COMPLETE_FILE = "complete.json"
IVY_SETTINGS_VARIABLE = "HEADRACE_IVY_SETTINGS"
RESOLVE_TIMEOUT_S = 900
FREE_BYTES_MIN = 256 * 1024 * 1024

UNREACHABLE = "UnknownHost|ConnectException|Server access error|SSLHandshake|SocketTimeout|Host .* not found"

_IVY_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""

ProgressCallback = Callable[[str], None]


class JarsUnavailable(HeadraceError):
    """The jars are not in the cache and cannot be fetched into it."""


@dataclass(frozen=True)
class JarSet:
    """Jars of one `ivy*.xml` by configuration; `directory` holds one folder per configuration."""

    directory: Path
    by_configuration: Mapping[str, tuple[Path, ...]]

    @property
    def broker(self) -> list[Path]:
        """Class path of a Kafka broker."""
        return list(self.by_configuration["broker"])

    @property
    def spark(self) -> list[Path]:
        """Jars that a Spark session needs in addition to PySpark's own (`spark.jars`)."""
        return list(self.by_configuration["spark"])

    @property
    def nifi(self) -> list[Path]:
        """Class path of NiFi's write-ahead log, of the set `bench` only."""
        return list(self.by_configuration["nifi"])


def jar_cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Folder of all cached jar sets; a relative `XDG_CACHE_HOME` is ignored as the XDG specification says."""
    configured = environment.get("XDG_CACHE_HOME", "")
    base = Path(configured) if configured.startswith("/") else Path.home() / ".cache"
    return base / "headrace" / "jars"


def resolve_jars(
    name: str = "runtime", *, progress: ProgressCallback | None = None, ivy_jar: Path | None = None
) -> JarSet:
    """The jar set `runtime` (configurations broker, spark) or `bench` (nifi), from the cache or the registry.

    A cached set needs no network. Two processes that resolve at once fetch it once. `ivy_jar` is for set-up, where
    PySpark is not installed yet. Raises `JarsUnavailable`, `JavaUnusable`.
    """
    ivy_file = Path(__file__).with_name(IVY_FILES[name])
    key = hashlib.sha256(ivy_file.read_bytes()).hexdigest()[:16]
    directory = jar_cache_directory() / key
    cached = _load_complete(directory)
    if cached is not None:
        return cached
    notify = progress or (lambda _message: None)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with _exclusive(directory.parent / f"{key}.lock", notify):
            # The holder of the lock before us may have fetched the set.
            cached = _load_complete(directory)
            if cached is None:
                _fetch(ivy_file, directory, notify, ivy_jar)
                cached = _load_complete(directory)
    except OSError as error:
        raise JarsUnavailable(
            f"cannot keep jars in {directory.parent}: {error.strerror or error}",
            action="free space there, or let XDG_CACHE_HOME name a writable folder",
        ) from error
    if cached is None:
        raise JarsUnavailable(
            f"jars in {directory} are damaged right after they were fetched", action="remove it and try again"
        )
    return cached


def _load_complete(directory: Path) -> JarSet | None:
    """The set in `directory` when every listed jar exists with its size, else None."""
    try:
        listed: dict[str, dict[str, int]] = json.loads((directory / COMPLETE_FILE).read_bytes())
        jars: dict[str, tuple[Path, ...]] = {}
        for configuration, sizes in listed.items():
            jars[configuration] = tuple(directory / configuration / file for file in sizes)
            if any((directory / configuration / file).stat().st_size != size for file, size in sizes.items()):
                return None
    except (OSError, ValueError, AttributeError):
        return None
    return JarSet(directory, jars)


@contextmanager
def _exclusive(lock_file: Path, notify: ProgressCallback) -> Iterator[None]:
    with lock_file.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            notify("another process is fetching the jars; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _fetch(ivy_file: Path, directory: Path, notify: ProgressCallback, ivy_jar: Path | None) -> None:
    """Run Ivy into a folder beside `directory`, list what it fetched, and rename it into place."""
    free_bytes = shutil.disk_usage(directory.parent).free
    if free_bytes < FREE_BYTES_MIN:
        raise JarsUnavailable(
            f"only {free_bytes // 2**20} MiB free in {directory.parent}, the jars need {FREE_BYTES_MIN // 2**20} MiB",
            action="free space there, or let XDG_CACHE_HOME name another folder",
        )
    notify(f"fetching Java archives into {directory} (about a minute, once)")
    # Downloads outlive a failed run, so that the next one continues where the network broke.
    downloads = directory.with_suffix(".downloads")
    with tempfile.TemporaryDirectory(prefix=f"{directory.name}.", dir=directory.parent) as temporary:
        fetched = Path(temporary, "jars")
        _run_ivy(ivy_jar or _ivy_jar(), ivy_file, fetched, downloads, Path(temporary))
        sizes = {
            folder.name: {jar.name: jar.stat().st_size for jar in sorted(folder.glob("*.jar"))}
            for folder in sorted(fetched.iterdir())
        }
        _write_synced(fetched / COMPLETE_FILE, json.dumps(sizes, indent=1).encode())
        # A directory in the way was found incomplete above; a rename keeps the step atomic for readers.
        if directory.exists():
            directory.rename(Path(temporary, "damaged"))
        fetched.rename(directory)
    shutil.rmtree(downloads, ignore_errors=True)


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())


def _run_ivy(ivy_jar: Path, ivy_file: Path, target: Path, downloads: Path, work: Path) -> None:
    settings = os.environ.get(IVY_SETTINGS_VARIABLE, "")
    if not settings:
        settings = str(work / "ivysettings.xml")
        Path(settings).write_text(_IVY_SETTINGS)
    command = [
        str(find_java()),
        *proxy_options(os.environ),
        f"-Divy.default.ivy.user.dir={work}",
        "-jar",
        str(ivy_jar),
    ]
    command += ["-settings", settings, "-cache", str(downloads), "-ivy", str(ivy_file), "-types", "jar", "bundle"]
    command += ["-retrieve", f"{target}/[conf]/[artifact]-[revision].[ext]"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise JarsUnavailable(
            f"no end after {RESOLVE_TIMEOUT_S} s of fetching jars", action="check the network and run it again"
        ) from error
    if answer.returncode != 0 or not target.is_dir():
        raise explain_ivy_failure(answer.stdout + answer.stderr)


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")
    folders = list(spec.submodule_search_locations or []) if spec else []
    jars = sorted(jar for folder in folders for jar in Path(folder, "jars").glob("ivy-*.jar"))
    if not jars:
        raise JarsUnavailable(
            "PySpark with its Ivy jar is not installed", action="install the package again: pip install headrace"
        )
    return jars[-1]


def explain_ivy_failure(log: str) -> JarsUnavailable:
    """The cause of a failure of Ivy, out of its output, as one line with an action."""
    lines = [line.strip() for line in log.splitlines()]
    if "No space left on device" in log:
        return JarsUnavailable(
            "the disk is full while fetching jars", action="free space, or let XDG_CACHE_HOME name another folder"
        )
    refused = [line for line in lines if re.search(UNREACHABLE, line)]
    if refused:
        return JarsUnavailable(
            f"the registry of Java archives is not reachable: {refused[0][:200]}",
            action=f"check the network; set HTTPS_PROXY, or let {IVY_SETTINGS_VARIABLE} name an Ivy settings file with your mirror",
            retriable=True,
        )
    missing = [line.strip(":# ") for line in lines if line.endswith(": not found") or "not found" in line.lower()]
    cause = missing[0] if missing else next((line for line in reversed(lines) if line), "no output")
    return JarsUnavailable(
        f"Java archives cannot be resolved: {cause[:200]}",
        action=f"check the network, or let {IVY_SETTINGS_VARIABLE} name an Ivy settings file with your mirror",
        retriable=True,
    )


def proxy_options(environment: Mapping[str, str]) -> list[str]:
    """JVM flags for the proxy that `HTTPS_PROXY` or `HTTP_PROXY` name, which Java does not read by itself."""
    options: list[str] = []
    for scheme in ("https", "http"):
        proxy = environment.get(f"{scheme}_proxy") or environment.get(f"{scheme.upper()}_PROXY")
        if not proxy:
            continue
        parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
        if parts.hostname:
            options += [f"-D{scheme}.proxyHost={parts.hostname}", f"-D{scheme}.proxyPort={parts.port or 80}"]
    excluded = environment.get("no_proxy") or environment.get("NO_PROXY")
    if options and excluded:
        hosts = [f"*{host}" if host.startswith(".") else host for host in excluded.replace(" ", "").split(",") if host]
        options.append(f"-Dhttp.nonProxyHosts={'|'.join(hosts)}")
    return options
