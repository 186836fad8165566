"""Our package in Spark's Python workers: as a folder or one zip, so that they run the driver's code."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import xxhash

PACKAGE = "headrace"
SUFFIXES = (".py", ".avsc", ".xml")
SOURCE_MODULES = "pyspark_headrace*.py"
"""The modules beside the package by which Spark finds its data sources."""
ARCHIVE_NAME = "headrace-{digest}.zip"
# The oldest time that a zip can hold. With the files' own times equal content would give other bytes, and
# Spark another file.
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build_package(directory: Path | str) -> Path:
    """Write the zip into `directory`, named by a digest of its content; equal content gives equal bytes."""
    files = list(_files())
    hasher = xxhash.xxh3_64()
    for name, content in files:
        hasher.update(f"{name}\0{len(content)}\0".encode())
        hasher.update(content)
    path = Path(directory) / ARCHIVE_NAME.format(digest=hasher.hexdigest())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
    return path


def package_folder() -> Path:
    """The folder (or archive) that holds our package."""
    return _package().parent


def _package() -> Path:
    spec = find_spec(PACKAGE)
    assert spec is not None, f"package {PACKAGE} is not importable"
    assert spec.submodule_search_locations, f"{PACKAGE} is no package"
    return Path(next(iter(spec.submodule_search_locations)))


def _files() -> Iterator[tuple[str, bytes]]:
    """(name in the zip, content) of every file that is code or that code reads."""
    package = _package()
    # In a source tree the subpackages are links to folders beside the package, which `os.walk` does not
    # follow by itself.
    for folder, subfolders, names in os.walk(package, followlinks=True):
        subfolders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            # An editor's lock is a link to nowhere with the name of a source file.
            if path.suffix in SUFFIXES and path.is_file():
                yield f"{PACKAGE}/{path.relative_to(package).as_posix()}", path.read_bytes()
    for path in sorted(package.parent.glob(SOURCE_MODULES)):
        yield path.name, path.read_bytes()


def write_jobs(directory: Path | str) -> list[Path]:
    """Copy the jobs for `spark-submit` into `directory`; with the zip they need nothing else of this package."""
    jobs = [path for path in sorted((_package() / "pipeline" / "jobs").glob("*.py")) if path.name != "__init__.py"]
    return [Path(shutil.copy(path, directory)) for path in jobs]


if __name__ == "__main__":
    _directory = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    _directory.mkdir(parents=True, exist_ok=True)
    write_jobs(_directory)
    sys.stdout.write(f"{build_package(_directory)}\n")
