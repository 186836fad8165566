"""Set-up: its messages when something is missing, and that it runs only when needed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import threading
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

from headrace.connectors.kafka import jars as jars_module
from headrace.connectors.kafka.jars import (
    JarsUnavailable,
    explain_ivy_failure,
    jar_cache_directory,
    proxy_options,
    resolve_jars,
)
from headrace.connectors.kafka.java import (
    OPTIONS_VARIABLE,
    JavaUnusable,
    find_java,
    find_spark_java,
    java_options_given,
    parse_java_version,
)

ROOT = Path(__file__).resolve().parents[3]

FAKE_JAVA = """#!{python}
import pathlib, sys
arguments = sys.argv[1:]
if "-version" in arguments:
    sys.stderr.write('openjdk version "{version}" 2025-04-15\\n')
    sys.exit()
with pathlib.Path({calls!r}).open("a") as calls:
    calls.write(" ".join(arguments) + "\\n")
if {output!r}:
    sys.exit({output!r})
target = arguments[arguments.index("-retrieve") + 1]
for configuration, name in (("broker", "kafka-1.jar"), ("spark", "connector-2.jar")):
    jar = pathlib.Path(target.replace("[conf]", configuration).replace("[artifact]-[revision].[ext]", name))
    jar.parent.mkdir(parents=True, exist_ok=True)
    jar.write_text(name)
"""


class FakeJava:
    """A fake `java` in the role of Ivy: creates two jars, or fails with `output`, and records its arguments."""

    def __init__(self, home: Path, *, version: str = "17.0.15", output: str = "") -> None:
        self.home = home
        self._calls = home / "calls"
        program = home / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(
            FAKE_JAVA.format(python=sys.executable, version=version, output=output, calls=str(self._calls))
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    @property
    def calls(self) -> list[str]:
        """One line per run that was not `-version`."""
        return self._calls.read_text().splitlines() if self._calls.exists() else []


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeJava:
    """A fake Java in JAVA_HOME and an empty cache."""
    fake = FakeJava(tmp_path / "java-home")
    monkeypatch.setenv("JAVA_HOME", str(fake.home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return fake


@pytest.fixture(scope="module")
def make_environment() -> ModuleType:
    """The script behind `make setup`, as a module."""
    spec = importlib.util.spec_from_file_location("make_environment", ROOT / "tools" / "make_environment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = path
    return module


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("command not found", None),
    ],
)
def test_java_versions_are_understood(text: str, expected: int | None) -> None:
    """The feature release is read from what old and new Javas print."""
    assert expected == parse_java_version(text)


def test_java_options_of_the_environment_are_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quotes group a word; an open quote is refused with the name of the variable."""
    monkeypatch.setenv(OPTIONS_VARIABLE, "-Xss1m '-Dplant=north hall'")
    assert ["-Xss1m", "-Dplant=north hall"] == java_options_given()
    monkeypatch.setenv(OPTIONS_VARIABLE, "'-Dplant=north")
    with pytest.raises(JavaUnusable, match=OPTIONS_VARIABLE):
        java_options_given()


def test_java_of_java_home_wins(java: FakeJava) -> None:
    """JAVA_HOME decides before PATH."""
    assert java.home / "bin" / "java" == find_java()


def test_missing_java_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without any Java the message lists the searched places, and the action what to install."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaUnusable, match="no Java found through PATH") as caught:
        find_java()
    assert "17" in caught.value.action
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(JavaUnusable, match="JAVA_HOME"):
        find_java()


@pytest.mark.parametrize("number", ["1.8.0_292", "11.0.2", "16"])
def test_old_java_is_refused(number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java below 17 is named with its version."""
    monkeypatch.setenv("JAVA_HOME", str(FakeJava(tmp_path / "old", version=number).home))
    with pytest.raises(JavaUnusable, match="too old"):
        find_java()


@pytest.mark.parametrize(("number", "runs_spark"), [("17.0.15", True), ("21", True), ("23.0.2", False), ("25", False)])
def test_java_that_is_too_new_for_spark_is_named(
    number: str, runs_spark: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka runs on it, and Spark would end in the middle of its start: the error has the versions that do."""
    java = FakeJava(tmp_path / "java", version=number).home / "bin" / "java"
    monkeypatch.setenv("JAVA_HOME", str(java.parent.parent))
    assert java == find_java()
    if runs_spark:
        assert java == find_spark_java()
        return
    with pytest.raises(JavaUnusable, match=f"Java {number[:2]}, too new for Spark") as caught:
        find_spark_java()
    assert "17 or 21" in caught.value.action


def test_jars_are_fetched_once(java: FakeJava) -> None:
    """The first call runs Ivy, every later one reads the cache and needs neither network nor Java."""
    first = resolve_jars()
    assert ["kafka-1.jar"] == [jar.name for jar in first.broker]
    assert ["connector-2.jar"] == [jar.name for jar in first.spark]
    shutil.rmtree(java.home / "bin")
    assert first == resolve_jars()
    assert 1 == len(java.calls)


def test_set_up_names_an_ivy_of_its_own(java: FakeJava, tmp_path: Path) -> None:
    """The jar that is named is run, and not the one of an installed PySpark."""
    resolve_jars(ivy_jar=tmp_path / "ivy.jar")
    assert f"-jar {tmp_path / 'ivy.jar'} " in java.calls[0]


def test_nothing_but_the_set_stays_in_the_cache(java: FakeJava) -> None:
    """Temporary folders and downloads are deleted once a set is complete."""
    found = resolve_jars()
    names = {entry.name for entry in jar_cache_directory().iterdir()}
    assert {found.directory.name, f"{found.directory.name}.lock"} == names
    assert java.calls


@pytest.mark.parametrize("damage", ["truncate", "remove", "unlist"])
def test_damaged_cache_is_fetched_again(damage: str, java: FakeJava) -> None:
    """A jar of another size, a missing jar or a damaged list causes another fetch of the set."""
    found = resolve_jars()
    if damage == "truncate":
        found.broker[0].write_text("")
    elif damage == "remove":
        found.spark[0].unlink()
    else:
        (found.directory / jars_module.COMPLETE_FILE).write_text("{")
    again = resolve_jars()
    assert "kafka-1.jar" == again.broker[0].read_text()
    assert again.spark[0].exists()
    assert 2 == len(java.calls)


def test_concurrent_callers_fetch_once(java: FakeJava) -> None:
    """Of several that find no cache one fetches and the others wait for it."""
    found = []
    threads = [threading.Thread(target=lambda: found.append(resolve_jars())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 4 == len(found)
    assert 1 == len(java.calls)


def test_unreachable_registry_leaves_no_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch that fails raises an error of one line and leaves no part of a cache."""
    fake = FakeJava(tmp_path / "home", output="WARN: Host not found\njava.net.UnknownHostException: somewhere")
    monkeypatch.setenv("JAVA_HOME", str(fake.home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(JarsUnavailable, match="not reachable") as caught:
        resolve_jars()
    assert caught.value.retriable
    assert [".lock"] == [entry.suffix for entry in jar_cache_directory().iterdir()]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("java.io.IOException: No space left on device", "disk is full"),
        ("Server access error at url https (javax.net.ssl.SSLHandshakeException: PKIX)", "not reachable"),
        ("java.net.ConnectException: Connection refused", "not reachable"),
        ("Host somewhere.example not found. url=x", "not reachable"),
        (":: org.apache.kafka#kafka_2.13;4.1.1: not found", "kafka_2.13;4.1.1"),
        ("", "no output"),
    ],
)
def test_failures_of_ivy_are_one_line(log: str, expected: str) -> None:
    """The error has the relevant line of Ivy's output."""
    assert expected in explain_ivy_failure(log).message


def test_full_disk_is_detected_before_a_fetch(java: FakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without space for the jars Ivy is not started."""
    monkeypatch.setattr(jars_module, "FREE_BYTES_MIN", 2**80)
    with pytest.raises(JarsUnavailable, match="MiB free"):
        resolve_jars()
    assert [] == java.calls


def test_unwritable_cache_is_one_line(java: FakeJava, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file where the cache folder should be is named."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(JarsUnavailable, match="cannot keep jars"):
        resolve_jars()
    assert [] == java.calls


def test_own_settings_of_ivy_are_used(java: FakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    """HEADRACE_IVY_SETTINGS names Ivy's settings file, for machines behind a mirror."""
    monkeypatch.setenv(jars_module.IVY_SETTINGS_VARIABLE, "/etc/mirror.xml")
    resolve_jars()
    assert "-settings /etc/mirror.xml" in java.calls[0]


def test_cache_follows_xdg() -> None:
    """XDG_CACHE_HOME counts when it is absolute, as its specification requires."""
    assert Path("/c/headrace/jars") == jar_cache_directory({"XDG_CACHE_HOME": "/c"})
    assert Path.home() / ".cache" / "headrace" / "jars" == jar_cache_directory({"XDG_CACHE_HOME": "c"})
    assert Path.home() / ".cache" / "headrace" / "jars" == jar_cache_directory({})


def test_proxies_of_the_environment_reach_java() -> None:
    """HTTPS_PROXY, which pip follows, is passed to the JVM, which would not."""
    options = proxy_options({"HTTPS_PROXY": "http://proxy.example:3128", "NO_PROXY": "localhost, .example"})
    expected = ["-Dhttps.proxyHost=proxy.example", "-Dhttps.proxyPort=3128", "-Dhttp.nonProxyHosts=localhost|*.example"]
    assert expected == options
    assert [] == proxy_options({"NO_PROXY": "localhost"})


def test_old_python_is_refused_in_one_line(tmp_path: Path) -> None:
    """A Python that is too old, or none, ends `make setup` with one line and a code other than 0."""
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2" && exit\nexit 1\n')
    old.chmod(0o755)
    for python, named in ((str(old), "Python 3.9.2"), (str(tmp_path / "none"), "none")):
        environment = {**os.environ, "PYTHON": python}
        answer = subprocess.run(
            ["sh", ROOT / "tools" / "setup"], env=environment, capture_output=True, text=True, check=False
        )
        assert 1 == answer.returncode
        assert [True] == [named in line for line in answer.stderr.splitlines()]


def test_a_python_that_was_named_once_is_used_again(tmp_path: Path) -> None:
    """`make demo` behind `make setup PYTHON=…` keeps the environment, and one whose Python is gone gets another."""
    tools, named = tmp_path / "tools", tmp_path / "python3.13"
    tools.mkdir()
    shutil.copy(ROOT / "tools" / "setup", tools)
    (tools / "make_environment.py").write_text("import os\nprint(os.environ.get('NAMED', 'another'))\n")
    named.write_text(f'#!/bin/sh\nNAMED=named exec "{sys.executable}" "$@"\n')
    named.chmod(0o755)
    made = tmp_path / ".venv" / "bin" / "python"
    made.parent.mkdir(parents=True)
    made.symlink_to(named)

    def used() -> str:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHON"}
        return subprocess.check_output(["sh", tools / "setup"], env=environment, text=True, timeout=60)

    assert "named\n" == used()
    named.unlink()
    assert "another\n" == used()


def test_warnings_about_packages_are_for_the_log(
    make_environment: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What a newer Python finds odd in code that is not ours stays out of the terminal."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "odd.py").write_text("found = 1 is 1\n")
    monkeypatch.setattr(make_environment, "ENVIRONMENT", tmp_path)
    monkeypatch.setattr(make_environment, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(make_environment, "LOG", tmp_path / "log")
    make_environment.compile_packages()
    assert ("", "") == capfd.readouterr()
    assert "SyntaxWarning" in (tmp_path / "log").read_text()
    assert list((tmp_path / "lib").rglob("*.pyc"))


def test_no_java_stops_setup_before_anything_is_installed(tmp_path: Path) -> None:
    """`make setup` without Java prints one line and creates no environment."""
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "headrace", tree / "headrace", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tools", tree / "tools")
    environment = {**os.environ, "JAVA_HOME": str(tmp_path / "none"), "PYTHON": sys.executable}
    answer = subprocess.run(["sh", tree / "tools/setup"], env=environment, capture_output=True, text=True, check=False)
    assert 1 == answer.returncode
    assert 1 == len(answer.stderr.splitlines())
    assert answer.stderr.startswith("error: no Java found")
    assert not (tree / ".venv").exists()


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk"),
        (
            "WARNING: Retrying ... NewConnectionError('Failed to establish a new connection')",
            "registry is not reachable",
        ),
        ("ERROR: No matching distribution found for pyspark==4.1.1", "No matching distribution found for pyspark"),
        ("", "something else"),
    ],
)
def test_failures_of_pip_are_one_line(make_environment: ModuleType, log: str, expected: str) -> None:
    """A failed installation names its cause."""
    assert expected in make_environment.explain(log, "something else")


def test_setup_runs_again_only_when_something_changed(
    make_environment: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stamp is valid for the same pins, a complete environment and existing jars.

    Anything else repeats the set-up.
    """
    for name in make_environment.DECIDES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("one")
    environment = tmp_path / ".venv"
    (environment / "bin").mkdir(parents=True)
    (tmp_path / "jars").mkdir()
    for name in ("python", "headrace"):
        (environment / "bin" / name).write_text("")
    places = {"ROOT": tmp_path, "ENVIRONMENT": environment, "PYTHON": environment / "bin" / "python"}
    for name, value in {**places, "STAMP": environment / "stamp"}.items():
        monkeypatch.setattr(make_environment, name, value)
    assert not make_environment.is_made()
    stamp = json.dumps({"decided_by": make_environment.decided_by(), "jars": str(tmp_path / "jars")})
    (environment / "stamp").write_text(stamp)
    assert make_environment.is_made()
    for name in make_environment.DECIDES:
        (tmp_path / name).write_text("two")
        assert not make_environment.is_made()
        (tmp_path / name).write_text("one")
    assert make_environment.is_made()
    (tmp_path / "jars").rmdir()
    assert not make_environment.is_made()


def test_the_packages_come_first_and_once(
    make_environment: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--packages` ends before the Java archives; the rest of the set-up then installs nothing again."""
    done: list[str] = []
    for step in ("make_virtual_environment", "install"):
        monkeypatch.setattr(make_environment, step, lambda step=step: done.append(step))

    def fetch_jars() -> str:
        done.append("fetch_jars")
        return str(tmp_path)

    monkeypatch.setattr(make_environment, "fetch_jars", fetch_jars)
    monkeypatch.setattr(make_environment, "find_spark_java", lambda: None)
    monkeypatch.setattr(make_environment, "FREE_BYTES_MIN", 0)
    environment = tmp_path / ".venv"
    (environment / "bin").mkdir(parents=True)
    for name in ("python", "headrace"):
        (environment / "bin" / name).write_text("")
    stamps = {"STAMP": environment / "whole", "PACKAGES_STAMP": environment / "packages"}
    for name, value in {**stamps, "ENVIRONMENT": environment, "PYTHON": environment / "bin" / "python"}.items():
        monkeypatch.setattr(make_environment, name, value)
    packages = ["make_virtual_environment", "install"]
    make_environment.make(True)
    assert packages == done
    assert not make_environment.is_made()
    make_environment.make(False)
    assert [*packages, "fetch_jars"] == done
    assert make_environment.is_made()
    (environment / "bin" / "headrace").unlink()
    make_environment.make(True)
    assert [*packages, "fetch_jars", *packages] == done


FAKE_PYTHON = """#!{python}
import pathlib, sys, zipfile
arguments = sys.argv[1:]
with open({calls!r}, "a") as calls:
    calls.write(" ".join(arguments) + "\\n")
if "wheel" in arguments:
    if {fails!r}:
        sys.exit(1)
    folder = pathlib.Path(arguments[arguments.index("--wheel-dir") + 1])
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "pyspark-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("pyspark/jars/ivy-2.jar", "Ivy")
"""


@pytest.mark.parametrize(("there", "fails"), [(False, False), (False, True), (True, False)])
def test_spark_is_built_beside_the_other_packages(
    there: bool, fails: bool, make_environment: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All requirements are installed, PySpark from the wheel that was built meanwhile, and its Ivy begins to fetch.

    Where the wheel cannot be built, the last call of pip has to do it, and Ivy waits. One that is installed is not built.
    """
    if there:
        (tmp_path / "lib/python3.11/site-packages/pyspark-4.1.1.dist-info").mkdir(parents=True)
    calls, python, fetched = tmp_path / "calls", tmp_path / "python", []
    calls.touch()
    python.write_text(FAKE_PYTHON.format(python=sys.executable, calls=str(calls), fails=fails))
    python.chmod(0o755)
    places = {"ENVIRONMENT": tmp_path, "PYTHON": python, "LOG": tmp_path / "log", "WHEELS": tmp_path / "wheels"}
    for name, value in {**places, "WHEELS_LOG": tmp_path / "wheels.log", "IVY": tmp_path / "ivy.jar"}.items():
        monkeypatch.setattr(make_environment, name, value)
    monkeypatch.setattr(make_environment, "compile_kernels", lambda: None)
    monkeypatch.setattr(make_environment, "fetch_jars_beside", lambda: fetched.append(places["WHEELS"].exists()))
    make_environment.install()
    spark, others = make_environment.requirements()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "pyspark==4.1.1" == spark
    assert {*project["dependencies"], *project["optional-dependencies"]["dev"]} == {spark, *others}
    pips = [line for line in calls.read_text().splitlines() if line.startswith("-m pip")]
    assert all(f"-c {ROOT / 'constraints.txt'}" in line for line in pips)
    assert [not there] * (not there) == ["pyspark==4.1.1" in line for line in pips if "pip wheel" in line]
    first, last = (line for line in pips if "pip install" in line)
    assert all(each in first for each in others)
    assert f"--find-links {places['WHEELS']} -e {ROOT}[dev]" in last
    assert ([] if fails or there else [True]) == fetched
    assert not fetched or b"Ivy" == (tmp_path / "ivy.jar").read_bytes()
    assert not places["WHEELS"].exists()


def test_every_dependency_is_pinned() -> None:
    """Each direct dependency has an exact pin, and what is installed here is what is pinned."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.]+", line) for line in lines)
    pins = dict(line.split("==") for line in lines)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    direct = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.split(r"[<>=\[; ]", requirement)[0] for requirement in direct}
    assert names - pins.keys() == set()
    assert {name: pins[name] for name in names} == {name: version(name) for name in names}


def test_every_dependency_is_used() -> None:
    """Every installed dependency is imported, except those that others import without installing them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=\[; ]", requirement)[0].replace("-", "_") for requirement in project["dependencies"]}
    rooms = ("schemas", "connectors", "producers", "consumers", "pipeline", "headrace")
    sources = "\n".join(path.read_text() for room in rooms for path in (ROOT / room).rglob("*.py"))
    imported = set(re.findall(r"^\s*(?:import|from) (\w+)", sources, re.MULTILINE))
    # By pyspark, and by uvicorn.
    assert {"pandas", "uvloop"} == names - imported


def test_make_help_lists_every_target() -> None:
    """`make help` lists every target for users."""
    answer = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = re.findall(r"make (\w+)", answer.stdout)
    assert {"setup", "demo", "test", "sim", "bench", "lint", "type", "soak", "clean", "help"} <= set(listed)


def test_help_is_fast_because_nothing_heavy_is_imported() -> None:
    """The command line imports no engine and no client, so that `headrace --help` answers at once."""
    code = "import sys; from headrace.cli.main import build_app; build_app(); print(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    heavy = {"pyspark", "duckdb", "pyarrow", "polars", "pandas", "numpy", "confluent_kafka", "fastavro", "rocksdict"}
    heavy |= {"pydantic", "pydantic_settings", "rich.table"}
    assert heavy & set(answer.stdout.split()) == set()
