"""The installed package: a complete wheel of one top-level name, beside folders of any other name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.unit.test_tree import PACKAGES, ROOT

pytestmark = pytest.mark.slow(15)
COMMAND_TIMEOUT_S = 120
SPARK_MODULES = ("pyspark_headrace.py",)
CACHES = shutil.ignore_patterns("__pycache__", "*.egg-info")
USE = """
import headrace, pathlib, sys
from importlib.resources import files
import headrace.consumers.wal
from headrace.consumers.serve import app
from headrace.schemas.records import decode_status
print(pathlib.Path(headrace.__file__).parent.parent, callable(headrace.connect), headrace.consumers.wal.WriteAheadLog.__name__)
for package, name in (
    ("headrace.connectors.kafka", "ivy.xml"),
    ("headrace.consumers.serve", "static/index.html"),
    ("headrace.schemas", "forward.avsc"),
):
    assert (files(package) / name).read_text("utf-8").strip(), name
assert {"schemas", "pipeline", "connectors", "consumers", "producers"}.isdisjoint(sys.modules)
"""


def run(*command: str | Path, directory: Path, **environment: str) -> str:
    """The output of a command."""
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout.strip()


JOB = """
import runpy, sys
try:
    runpy.run_path(sys.argv[1] + "/headrace/pipeline/jobs/ingest.py", run_name="__main__")
except ModuleNotFoundError as error:
    print(error.name)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as pip does it, from a copy of the tree without anything else."""
    tree = tmp_path_factory.mktemp("tree")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tree / package, symlinks=True, ignore=CACHES)
    for name in ("pyproject.toml", "README.md", *SPARK_MODULES):
        shutil.copy(ROOT / name, tree)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    run(sys.executable, "-c", build, "dist", directory=tree)
    [built] = (tree / "dist").glob("*.whl")
    return built


def test_the_wheel_has_one_name_and_every_file(wheel: Path) -> None:
    """Only `headrace` is installed into site-packages, with files that are not Python, such as schemas and pages.

    Beside it are the modules by which Spark finds the data sources.
    """
    names = zipfile.ZipFile(wheel).namelist()
    assert {"headrace", *SPARK_MODULES} == {name.split("/")[0] for name in names if ".dist-info/" not in name}
    links = [link for package in PACKAGES if (link := ROOT / "headrace" / package).is_symlink()]
    found = {path for folder in (ROOT / "headrace", *links) for path in folder.rglob("*")}
    wanted = {str(path.relative_to(ROOT)) for path in found if path.is_file() and "__pycache__" not in path.parts}
    assert wanted | set(SPARK_MODULES) == {name for name in names if ".dist-info/" not in name}


def test_the_installed_wheel_works_beside_folders_of_all_our_names(wheel: Path, tmp_path: Path) -> None:
    """A user's script beside folders `schemas`, `connectors` and so on imports every module of ours, and its own."""
    target, place = tmp_path / "site", tmp_path / "script"
    run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"),
        *("--target", str(target), str(wheel)),
        directory=tmp_path,
    )
    installed = {path.name for path in target.iterdir() if not path.name.endswith(".dist-info")}
    assert {"headrace", "bin", *SPARK_MODULES} == (installed | {"bin"}) - {"__pycache__"}
    for package in PACKAGES:
        if package != "headrace":
            (place / package).mkdir(parents=True)
            (place / package / "__init__.py").write_text("raise ImportError('the folder beside the script')")
    printed = run(sys.executable, "-c", USE, directory=place, PYTHONPATH=str(target))
    assert f"{target} True WriteAheadLog" == printed
    # A Python that has neither headrace nor what it needs finds headrace by the place of the job's file.
    missing = run(sys.executable, "-I", "-S", "-c", JOB, str(target), directory=place)
    assert missing not in ("", "headrace")
    version = run(sys.executable, "-m", "headrace", "--version", directory=place, PYTHONPATH=str(target))
    assert "0.1.0" in version
