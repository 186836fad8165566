"""Our own packages, also as one zip, so that Spark's Python workers run the code of the driver, wherever they are."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import xxhash

PACKAGES = ("schemas", "connectors", "consumers", "pipeline")
SUFFIXES = (".py", ".avsc", ".xml")
PACKAGE_NAME = "headrace-{digest}.zip"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build_package(directory: Path | str) -> Path:
    """Write the zip into `directory`; its name carries a digest of the content, and equal content gives equal bytes."""
    files = list(_files())
    hasher = xxhash.xxh3_64()
    for name, content in files:
        hasher.update(f"{name}\0{len(content)}\0".encode())
        hasher.update(content)
    path = Path(directory) / PACKAGE_NAME.format(digest=hasher.hexdigest())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
    return path


def package_folder() -> Path:
    """The folder (or archive) that holds our packages."""
    return _folder(PACKAGES[0]).parent


def _folder(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None, f"package {package} is not importable"
    assert spec.submodule_search_locations, f"{package} is no package"
    return Path(spec.submodule_search_locations[0])


def _files() -> Iterator[tuple[str, bytes]]:
    """(name in the zip, content) of every file that is code or is read by code."""
    for package in PACKAGES:
        folder = _folder(package)
        for path in sorted(folder.rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                yield f"{package}/{path.relative_to(folder).as_posix()}", path.read_bytes()


if __name__ == "__main__":
    sys.stdout.write(f"{build_package(sys.argv[1] if len(sys.argv) > 1 else '.')}\n")
