"""The tree itself: floors, pure rooms, sizes, and what must never be committed."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("schemas", "connectors", "consumers", "pipeline", "headrace")

FLOORS = {
    "schemas": 0,
    "connectors": 1,
    "consumers.wal": 2,
    "consumers.store": 3,
    "consumers.replication": 4,
    "consumers.membership": 5,
    "consumers.query": 6,
    "consumers.sync": 6,
    "pipeline": 6,
    "consumers.serve": 7,
    "consumers.node": 8,
    "headrace": 9,
}

PURE_MODULES = (
    "consumers/membership/ring.py",
    "consumers/membership/slots.py",
    "consumers/membership/groups.py",
    "consumers/membership/cut.py",
    "consumers/membership/changes.py",
    "consumers/replication/roles.py",
    "consumers/replication/replica.py",
    "consumers/replication/chain.py",
    "consumers/sync/selection.py",
    "consumers/sync/owners.py",
    "consumers/wal/frames.py",
    "consumers/query/queue.py",
    "consumers/query/scheduler.py",
    "consumers/query/planner.py",
)
IMPURE_IMPORTS = {
    "asyncio",
    "confluent_kafka",
    "datetime",
    "duckdb",
    "glob",
    "io",
    "multiprocessing",
    "os",
    "pathlib",
    "psutil",
    "random",
    "rocksdict",
    "secrets",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
}
LINES_MAX = 600


def source_files() -> list[Path]:
    """Every Python file of the packages."""
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    """`consumers/wal/frames.py` → `consumers.wal.frames`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in source_files()}


def floor_of(module: str) -> tuple[str, int] | None:
    """The room a module belongs to and how high it lies; None for packages that only hold rooms."""
    for room in sorted(FLOORS, key=len, reverse=True):
        if module == room or module.startswith(room + "."):
            return room, FLOORS[room]
    return None


def typing_only(tree: ast.AST) -> set[ast.AST]:
    """All nodes under `if TYPE_CHECKING:`."""
    blocks = (node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    return {inner for block in blocks for statement in block.body for inner in ast.walk(statement)}


def imported_modules(path: Path, *, at_load: bool = False) -> set[str]:
    """Modules of this project that a file imports; with `at_load` only those that its own import runs."""
    tree = ast.parse(path.read_text())
    skipped = typing_only(tree)
    if at_load:
        functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        skipped |= {inner for function in functions for inner in ast.walk(function)}
    names: set[str] = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module_name(path).split(".")
                package = package if path.name == "__init__.py" else package[:-1]
                base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
            # `from package import name` loads the submodule when there is one, and the package else.
            names |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base for alias in node.names}
    return names


def test_there_are_modules_to_look_at() -> None:
    """The walk finds the packages, so the other tests here do not pass over nothing."""
    assert {name.split(".")[0] for name in MODULES} == set(PACKAGES)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_down(module: str) -> None:
    """A floor imports only floors below it; two rooms beside each other do not know each other."""
    own = floor_of(module)
    upward = []
    for imported in sorted(imported_modules(MODULES[module])):
        other = floor_of(imported)
        if own is not None and other is not None and own[0] != other[0] and other[1] >= own[1]:
            upward.append(imported)
    assert upward == []


def test_no_import_circles() -> None:
    """No chain of imports at load time leads back to where it began."""
    graph = {name: imported_modules(path, at_load=True) & MODULES.keys() for name, path in MODULES.items()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " → ".join((*trail[trail.index(name) :], name))
        if name in done:
            return
        for imported in sorted(graph[name] - {name}):
            visit(imported, (*trail, name))
        done.add(name)

    for name in sorted(graph):
        visit(name, ())


@pytest.mark.parametrize("name", [name for name in PURE_MODULES if (ROOT / name).exists()])
def test_decisions_have_no_clock_chance_or_io(name: str) -> None:
    """Decision code imports no clock, no randomness and nothing that reaches outside the process."""
    tree = ast.parse((ROOT / name).read_text())
    skipped = typing_only(tree)
    imported: set[str] = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert imported & IMPURE_IMPORTS == set()
    assert calls & {"open", "input", "print", "exec", "eval"} == set()


def committed_files() -> list[Path]:
    """Every file under version control; in a copy without git, every source file."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in names if path.is_file()] if listed.returncode == 0 else source_files()


def test_no_file_is_too_long() -> None:
    """A Python file has 600 lines at most."""
    python = [path for path in committed_files() if path.suffix == ".py"]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in python}
    assert {name: lines for name, lines in lengths.items() if lines > LINES_MAX} == {}


def test_every_test_says_what_it_shows() -> None:
    """Every test function and method has a docstring."""
    silent = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
            if named and not ast.get_docstring(node):
                silent.append(f"{path.relative_to(ROOT)}::{node.name}")
    assert silent == []


def test_every_test_file_name_is_unique_and_found() -> None:
    """Files with tests begin with `test_`, so that pytest collects them."""
    lost = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.name.startswith("test_"):
            continue
        names = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
        lost += [f"{path.relative_to(ROOT)}::{name}" for name in names if name.startswith("test_")]
    assert lost == []


REGISTRIES = re.compile(
    r"https?://[^\s\"'<>]*(?:repo1?\.maven|/maven2|pypi\.org/simple|pythonhosted|registry\.npmjs|index-url|artifactory|nexus)"
    r"|--(?:extra-)?index-url|<mirror>",
    re.IGNORECASE,
)
MACHINE_PATHS = re.compile(r"(?<![\w.$}])/(?:work|root)/(?!\s)[\w.]")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX)\b|raise NotImplementedError")


def offending_lines(pattern: re.Pattern[str], suffixes: set[str] | None = None) -> list[str]:
    """Committed lines that match, as `file:line: text`. This file holds the patterns and is left out."""
    found = []
    for path in committed_files():
        if path == Path(__file__) or (suffixes is not None and path.suffix not in suffixes):
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        numbered = enumerate(text.splitlines(), 1)
        found += [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()}" for number, line in numbered if pattern.search(line)
        ]
    return found


def test_no_registry_address_is_committed() -> None:
    """Package managers find their registries by the machine's settings, never by an address in the tree."""
    assert offending_lines(REGISTRIES) == []


def test_no_path_of_one_machine_is_committed() -> None:
    """Nothing in the tree names a directory that exists on one developer's machine only."""
    assert offending_lines(MACHINE_PATHS) == []


def test_nothing_is_left_unfinished() -> None:
    """No note to self and no missing implementation in code."""
    assert offending_lines(UNFINISHED, {".py", ".sh", ".js", ".html", ".css"}) == []


def test_tests_are_not_in_the_distribution() -> None:
    """The distribution has the five packages and nothing else."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    include = settings["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {pattern.removesuffix("*") for pattern in include} == set(PACKAGES)
    assert not any(fnmatch("tests", pattern) for pattern in include)
