"""The tree itself: floors, pure rooms, sizes, and what must never be committed."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Mapping, Set
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("schemas", "connectors", "producers", "consumers", "pipeline", "headrace")

# From the ground up; docs/internals/architecture.md has the same order.
ROOMS = (
    ("schemas",),
    ("connectors",),
    ("producers",),
    ("consumers.wal",),
    ("consumers.local_log", "consumers.store"),
    ("consumers.replication",),
    ("consumers.recovery",),
    ("consumers.integrity",),
    ("consumers.membership",),
    ("consumers.migration",),
    ("consumers.sync",),
    ("consumers.scheduling",),
    ("consumers.query", "pipeline"),
    ("consumers.serve",),
    ("consumers.node",),
    ("headrace",),
)
TOP = "headrace"
FLOORS = {room if room == TOP else f"{TOP}.{room}": floor for floor, rooms in enumerate(ROOMS) for room in rooms}
LINKED = tuple(f"{TOP}.{package}" for package in PACKAGES if package != TOP)

PURE_MODULES = (
    "consumers/integrity/divergence.py",
    "consumers/integrity/verify.py",
    "consumers/local_log/topic_records.py",
    "consumers/membership/balancer.py",
    "consumers/membership/changes.py",
    "consumers/membership/cluster_report.py",
    "consumers/membership/ending.py",
    "consumers/membership/group_changes.py",
    "consumers/membership/groups.py",
    "consumers/membership/metadata_leader.py",
    "consumers/membership/placement.py",
    "consumers/membership/requests.py",
    "consumers/membership/ring.py",
    "consumers/membership/running_change.py",
    "consumers/membership/slot_table.py",
    "consumers/membership/slot_table_bytes.py",
    "consumers/migration/barriers.py",
    "consumers/migration/cut_listing.py",
    "consumers/migration/file_bundle.py",
    "consumers/migration/cut_scan.py",
    "consumers/migration/slot_pull.py",
    "consumers/query/aggregates.py",
    "consumers/query/distribution.py",
    "consumers/query/hand_overs.py",
    "consumers/query/intervals.py",
    "consumers/query/newest_rows.py",
    "consumers/query/parameter_types.py",
    "consumers/query/partial_plan.py",
    "consumers/query/planner.py",
    "consumers/query/predicates.py",
    "consumers/query/rollup_plan.py",
    "consumers/query/row_fragments.py",
    "consumers/query/scope.py",
    "consumers/query/series_answers.py",
    "consumers/query/series_plan.py",
    "consumers/query/sql_nodes.py",
    "consumers/query/table_names.py",
    "consumers/query/templates.py",
    "consumers/query/top_rows.py",
    "consumers/query/touched_slots.py",
    "consumers/recovery/plan.py",
    "consumers/replication/actions.py",
    "consumers/replication/change_records.py",
    "consumers/replication/change_state.py",
    "consumers/replication/cut_memory.py",
    "consumers/replication/election.py",
    "consumers/replication/failure_detector.py",
    "consumers/replication/founding.py",
    "consumers/replication/group_health.py",
    "consumers/replication/group_state.py",
    "consumers/replication/hand_over.py",
    "consumers/replication/hash_chain.py",
    "consumers/replication/holdings.py",
    "consumers/replication/kept_deletes.py",
    "consumers/replication/log_witness.py",
    "consumers/replication/process_runs.py",
    "consumers/replication/producer_section.py",
    "consumers/replication/replica.py",
    "consumers/replication/sync_rules.py",
    "consumers/replication/transfers.py",
    "consumers/replication/write_slots.py",
    "consumers/scheduling/capacity.py",
    "consumers/scheduling/memory_pool.py",
    "consumers/scheduling/multilevel_queue.py",
    "consumers/scheduling/task_states.py",
    "consumers/scheduling/timeout_queue.py",
    "consumers/scheduling/unbounded_slots.py",
    "consumers/serve/flight_catalog.py",
    "consumers/serve/flight_sql.py",
    "consumers/serve/flight_sql_info.py",
    "consumers/store/brought_deletes.py",
    "consumers/store/compaction.py",
    "consumers/store/encoding.py",
    "consumers/store/rollup_columns.py",
    "consumers/store/row_order.py",
    "consumers/store/slots.py",
    "consumers/store/synced.py",
    "consumers/store/tombstone_match.py",
    "consumers/store/tombstone_set.py",
    "consumers/sync/centre_status.py",
    "consumers/sync/chunk_states.py",
    "consumers/sync/delete_cover.py",
    "consumers/sync/file_states.py",
    "consumers/sync/manifest_rules.py",
    "consumers/sync/owners.py",
    "consumers/sync/pages.py",
    "consumers/sync/partition_files.py",
    "consumers/sync/rate.py",
    "consumers/sync/receiver_metrics.py",
    "consumers/sync/selection.py",
    "consumers/sync/send_round.py",
    "consumers/sync/send_status.py",
    "consumers/sync/sender_state.py",
    "consumers/sync/verdicts.py",
    "consumers/wal/frames.py",
    "consumers/wal/prefix.py",
    "consumers/wal/record_encoding.py",
    "pipeline/partition_folders.py",
    "pipeline/raw_offsets.py",
    "pipeline/log_ranges.py",
    "pipeline/rebatch.py",
    "pipeline/schema_match.py",
    "pipeline/segment_files.py",
    "pipeline/time_ranges.py",
    "producers/line_requests.py",
    "producers/router.py",
    "schemas/group_changes.py",
    "schemas/message_rules.py",
    "schemas/tables.py",
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
SOURCE_LINES_MAX = 400
FUNCTION_LINES_MAX = 50
COMMENT_SHARE_MIN = 1 / 40


def source_files() -> list[Path]:
    """Every Python file of the packages."""
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return sorted(path for path in found if not path.parent.is_symlink())


def module_name(path: Path) -> str:
    """`consumers/wal/frames.py` → `headrace.consumers.wal.frames`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[0] == "headrace" else ("headrace", *parts))


MODULES = {module_name(path): path for path in source_files()}


def is_inside(module: str, room: str) -> bool:
    """Whether a module is a package or inside it."""
    return module == room or module.startswith(room + ".")


def floor_of(module: str) -> tuple[str, int] | None:
    """The room of a module and its floor; None for packages that only hold rooms, and for modules in no room."""
    # The target of a link in `headrace/` is in a room of its own or in none: it is never part of the top floor.
    rooms = [room for room in FLOORS if room != TOP] if any(is_inside(module, link) for link in LINKED) else [TOP]
    found = [room for room in rooms if is_inside(module, room)]
    return (found[0], FLOORS[found[0]]) if found else None


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file's syntax tree, the module first. Each file is parsed once for all tests."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def typing_only(nodes: Iterable[ast.AST]) -> set[ast.AST]:
    """All nodes under `if TYPE_CHECKING:`."""
    blocks = (node for node in nodes if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    return {inner for block in blocks for statement in block.body for inner in ast.walk(statement)}


@cache
def imported_modules(path: Path, *, at_load: bool = False) -> frozenset[str]:
    """Modules of this project that a file imports; with `at_load` only those that its own import runs."""
    nodes = nodes_of(path)
    skipped = typing_only(nodes)
    if at_load:
        functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        skipped |= {inner for function in functions for inner in ast.walk(function)}
    names: set[str] = set()
    for node in nodes:
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
    return frozenset(names)


def test_there_are_modules_to_look_at() -> None:
    """The walk finds the packages, so the other tests here do not pass for lack of files."""
    assert {name.split(".")[1] for name in MODULES if "." in name} >= set(PACKAGES) - {"headrace"}


def test_every_module_is_in_a_room_and_every_room_has_modules() -> None:
    """Every module has a floor, and every room of the order exists; a package that only holds rooms is empty."""
    outside = {name: path for name, path in MODULES.items() if floor_of(name) is None}
    assert [] == [name for name, path in outside.items() if path.name != "__init__.py" or imported_modules(path)]
    assert set(FLOORS) == {floor[0] for name in MODULES if (floor := floor_of(name)) is not None}


def test_imports_point_down() -> None:
    """A floor imports only floors below it, also inside of functions.

    Two rooms of one floor do not import each other.
    """
    upward = []
    for module, path in sorted(MODULES.items()):
        own = floor_of(module)
        for imported in sorted(imported_modules(path)):
            other = floor_of(imported)
            if own is not None and other is not None and own[0] != other[0] and other[1] >= own[1]:
                upward.append(f"{module} → {imported}")
    assert upward == []


def cycle_in(graph: Mapping[str, Set[str]]) -> str:
    """The first cycle of a graph, as text; empty when there is none."""
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> str:
        if name in trail:
            return " → ".join((*trail[trail.index(name) :], name))
        if name in done:
            return ""
        for imported in sorted(graph[name] - {name}):
            if cycle := visit(imported, (*trail, name)):
                return cycle
        done.add(name)
        return ""

    return next((cycle for name in sorted(graph) if (cycle := visit(name, ()))), "")


def test_no_import_cycles_between_modules() -> None:
    """No chain of imports at load time is a cycle."""
    graph = {name: imported_modules(path, at_load=True) & MODULES.keys() for name, path in MODULES.items()}
    assert "" == cycle_in(graph)


def test_no_import_cycles_between_packages() -> None:
    """Nor is one from folder to folder, whenever the imports run. No module imports the entry point: it is left out."""
    graph: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        if name == f"{TOP}.__main__":
            continue
        imported = imported_modules(path) & MODULES.keys()
        graph.setdefault(package_of(name), set()).update(package_of(each) for each in imported)
    assert "" == cycle_in(graph)


def package_of(module: str) -> str:
    """The folder of a module."""
    return module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]


def test_a_cycle_is_found() -> None:
    """The search finds a cycle of three modules, and accepts two paths to one module."""
    assert "a → b → c → a" == cycle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert "" == cycle_in({"a": {"b", "c"}, "b": {"c"}, "c": set()})


@pytest.mark.parametrize("name", PURE_MODULES)
def test_decisions_have_no_clock_chance_or_io(name: str) -> None:
    """Decision code imports no clock, no randomness and no I/O."""
    nodes = nodes_of(ROOT / name)
    skipped = typing_only(nodes)
    imported: set[str] = set()
    for node in nodes:
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    calls = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert imported & IMPURE_IMPORTS == set()
    assert calls & {"open", "input", "print", "exec", "eval"} == set()


STARTS_SPARK = "pipeline/session.py"
"""Starts and ends Spark's JVM, for which PySpark has no public call."""


USES_SPARK = (*sorted((ROOT / "pipeline").rglob("*.py")), ROOT / "headrace" / "spark.py", ROOT / "pyspark_headrace.py")


@pytest.mark.parametrize("path", USES_SPARK, ids=lambda path: path.name)
def test_planning_reading_and_writing_use_the_public_calls_of_spark(path: Path) -> None:
    """No private attribute of another object, and of py4j only its errors: another Spark must not read nothing."""
    nodes = nodes_of(path)
    attributes = (node for node in nodes if isinstance(node, ast.Attribute))
    private = {
        f"{ast.unparse(node.value)}.{node.attr}"
        for node in attributes
        if node.attr.startswith("_")
        and not node.attr.startswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "KafkaError"))
    }
    imports = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    assert not private or path == ROOT / STARTS_SPARK, private
    assert {"py4j.protocol"} >= {module for module in imports if module.startswith("py4j")}


def documented_as_pure() -> set[str]:
    """Files that their own docstrings, or a page, call pure."""
    found = set()
    for path in source_files():
        documented = (node for node in nodes_of(path) if isinstance(node, ast.Module | ast.ClassDef))
        if any(PURE.search(ast.get_docstring(node) or "") for node in documented):
            found.add(str(path.relative_to(ROOT)))
    for page in (ROOT / "docs").rglob("*.md"):
        for sentence in re.split(r"(?<=[.:])\s", page.read_text("utf-8")):
            if PURE.search(sentence):
                found |= set(re.findall(r"`((?:\w+/)+\w+\.py)`", sentence))
    return found


PURE = re.compile(r"\bpure\b", re.IGNORECASE)


def test_modules_that_are_called_pure_are_checked() -> None:
    """Every module that a docstring or a page calls pure is checked above, and every checked module exists."""
    assert set() == documented_as_pure() - set(PURE_MODULES)
    assert [] == [name for name in PURE_MODULES if not (ROOT / name).is_file()]


def committed_files() -> list[Path]:
    """Every file under version control; in a copy without git, every source file."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in names if path.is_file()] if listed.returncode == 0 else source_files()


def test_no_file_has_a_conflict_of_a_merge() -> None:
    """No committed file has the marks that git leaves where two branches changed the same lines."""
    marks = re.compile(rb"^(<{7}|>{7}) ", re.MULTILINE)
    assert [] == [str(path.relative_to(ROOT)) for path in committed_files() if marks.search(path.read_bytes())]


def test_no_file_is_too_long() -> None:
    """A Python file has 600 lines at most."""
    python = [path for path in committed_files() if path.suffix == ".py"]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in python}
    assert {name: lines for name, lines in lengths.items() if lines > LINES_MAX} == {}


def test_no_source_file_is_too_long() -> None:
    """A file of the packages has 400 lines at most."""
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in source_files()}
    assert {name: lines for name, lines in lengths.items() if lines > SOURCE_LINES_MAX} == {}


def test_no_function_is_too_long() -> None:
    """A function of the packages has 50 lines at most, its docstring among them."""
    long = {}
    for path in source_files():
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    long[f"{path.relative_to(ROOT)}: {node.name}"] = lines
    assert long == {}


NARROW_ROOMS = tuple(f"consumers/{room}/" for room in ("replication", "recovery", "integrity", "node"))
PARAMETERS_MAX = 8
CALLABLES_MAX = 2


def test_constructors_are_narrow() -> None:
    """A constructor of a node's parts has 8 parameters at most, and 2 callables among them.

    What a part asks of others, or orders, is a protocol with a name.
    """
    wide = {}
    for path in source_files():
        name = str(path.relative_to(ROOT))
        if not name.startswith(NARROW_ROOMS):
            continue
        for kind in (node for node in nodes_of(path) if isinstance(node, ast.ClassDef)):
            for function in kind.body:
                if isinstance(function, ast.FunctionDef) and function.name == "__init__":
                    taken = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs][1:]
                    callables = sum("Callable" in ast.dump(each.annotation) for each in taken if each.annotation)
                    if len(taken) > PARAMETERS_MAX or callables > CALLABLES_MAX:
                        wide[f"{name}: {kind.name}"] = (len(taken), callables)
    assert wide == {}


def test_comments_say_why_often_enough() -> None:
    """Of forty lines of the packages that are not empty at least one has a comment.

    Those that silence a tool do not count.
    """
    lines = comments = 0
    for path in source_files():
        text = path.read_text()
        lines += sum(1 for line in text.splitlines() if line.strip())
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        found = (token for token in tokens if token.type == tokenize.COMMENT)
        comments += len({token.start[0] for token in found if not token.string.startswith(("# noqa", "# type:"))})
    assert comments / lines >= COMMENT_SHARE_MIN, f"{comments} of {lines} lines"


def test_every_test_has_a_docstring() -> None:
    """Every test function and method has a docstring."""
    undocumented = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in nodes_of(path):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
                continue
            if not ast.get_docstring(node):
                undocumented.append(f"{path.relative_to(ROOT)}::{node.name}")
    assert undocumented == []


WHOLE_TREE = {
    "test_alert_rules.py",
    "test_compose.py",
    "test_docs.py",
    "test_golden.py",
    "test_prose.py",
    "test_schema_formats.py",
    "test_tree.py",
    "test_wheel.py",
}
"""Unit tests that are about the repository, not about one folder of it."""


def test_unit_tests_mirror_the_source_folders() -> None:
    """`tests/unit/wal` is about `consumers/wal`, `tests/unit/connectors/log` about `connectors/log`, and so on."""
    unit = ROOT / "tests" / "unit"
    misplaced = []
    for path in sorted(unit.rglob("test_*.py")):
        folder = path.parent.relative_to(unit)
        found = (
            path.name in WHOLE_TREE
            if path.parent == unit
            else any((ROOT / up / folder).is_dir() for up in ("", "consumers"))
        )
        misplaced += [] if found else [str(path.relative_to(ROOT))]
    assert misplaced == []


def test_every_file_with_tests_is_collected() -> None:
    """Files with tests begin with `test_`, so that pytest collects them."""
    misplaced = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.name.startswith("test_"):
            continue
        names = [node.name for node in ast.iter_child_nodes(nodes_of(path)[0]) if isinstance(node, ast.FunctionDef)]
        misplaced += [f"{path.relative_to(ROOT)}::{name}" for name in names if name.startswith("test_")]
    assert misplaced == []


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
    """No file names a directory that exists on one developer's machine only."""
    assert offending_lines(MACHINE_PATHS) == []


def test_nothing_is_left_unfinished() -> None:
    """Code has no open note and no missing implementation."""
    assert offending_lines(UNFINISHED, {".py", ".sh", ".js", ".html", ".css"}) == []


def test_the_distribution_is_one_package() -> None:
    """What is installed has one name; the rooms are links in it to the folders at the top of the repository."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["tool"]["setuptools"]["packages"]["find"]["include"] == ["headrace*"]
    links = {path.name: path.readlink() for path in (ROOT / "headrace").iterdir() if path.is_symlink()}
    assert links == {package: Path("..", package) for package in PACKAGES if package != "headrace"}


def test_no_module_is_imported_under_a_second_name() -> None:
    """Code imports the rooms as parts of `headrace`: under their folder's name they would be loaded a second time."""
    twice = []
    for path in committed_files():
        if path.suffix == ".py":
            names = {name.split(".")[0] for name in imported_modules(path)}
            twice += [f"{path.relative_to(ROOT)}: {name}" for name in names & (set(PACKAGES) - {"headrace"})]
    assert twice == []


def test_no_module_is_loaded_under_two_names() -> None:
    """An import of every module loads each file once, through any link."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOAD_EVERYTHING, *MODULES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stdout), done.stdout + done.stderr


LOAD_EVERYTHING = """
import importlib, os, sys
for name in sys.argv[1:]:
    if not name.endswith("__main__"):
        importlib.import_module(name)
names = {}
for name, module in list(sys.modules.items()):
    file = getattr(module, "__file__", None)
    if file and name != "__main__":
        names.setdefault(os.path.realpath(file), set()).add(getattr(module, "__name__", name))
here = os.getcwd() + os.sep
print(*(f"{file}: {sorted(each)}" for file, each in names.items() if len(each) > 1 and file.startswith(here)), sep="\\n", end="")
"""
