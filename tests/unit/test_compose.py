"""The deployment files: they parse, name what exists, and open nothing to the outside."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from headrace.cli.main import build_app
from headrace.connectors.kafka.broker_settings import MESSAGE_BYTES_MAX
from headrace.consumers.node.http_address import HttpAddress
from headrace.consumers.serve.origin_check import objection
from headrace.settings import Settings, load_settings
from tools.make_environment import KERNELS

ROOT = Path(__file__).resolve().parents[2]
NODES = {"n1", "n2", "n3"}
PROCESS_BYTES = 400 << 20
"""What a Python process of ours has with all libraries, caches of the index included."""


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The compose file, variables replaced by their defaults."""
    text = (ROOT / "docker-compose.yml").read_text()
    document = yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))
    assert isinstance(document, dict)
    return document


def options_of(service: dict[str, Any]) -> dict[str, str]:
    """`--name=value` arguments of a service's command."""
    pairs = (argument.removeprefix("--").split("=", 1) for argument in service["command"] if argument.startswith("--"))
    return dict(pairs)


def node_services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The services that run a node."""
    return {
        name: service
        for name, service in compose["services"].items()
        if service.get("command", [])[:2] == ["node", "run"]
    }


def has_compose() -> bool:
    """Whether this machine's docker has the compose plugin."""
    docker = shutil.which("docker")
    return (
        docker is not None
        and not subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode
    )


@pytest.mark.skipif(not has_compose(), reason="docker compose is not installed")
def test_docker_accepts_the_file() -> None:
    """`docker compose config` finds nothing wrong."""
    answer = subprocess.run(
        ["docker", "compose", "config", "-q"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert 0 == answer.returncode, answer.stderr


def test_three_nodes_form_one_cluster(compose: dict[str, Any]) -> None:
    """Each node has its own id, volume and address, and all agree on everything else."""
    services = node_services(compose)
    options = {name: options_of(service) for name, service in services.items()}
    assert NODES == {each["id"] for each in options.values()}
    assert {f"{name}:8080" for name in services} == {each["advertise"] for each in options.values()}
    assert 3 == len({service["volumes"][0] for service in services.values()})
    shared = {
        tuple(sorted((key, value) for key, value in each.items() if key not in ("id", "advertise")))
        for each in options.values()
    }
    assert 1 == len(shared)
    assert NODES == set(next(iter(options.values()))["nodes"].split(","))


def test_data_survives_its_container(compose: dict[str, Any]) -> None:
    """Every data directory and checkpoint is in a named volume, and no two services share one."""
    mounted: dict[str, str] = {}
    for name, service in compose["services"].items():
        volume, folder = service["volumes"][0].split(":")
        assert volume not in mounted, f"{name} shares a volume with {mounted[volume]}"
        mounted[volume] = name
        written = [service.get("environment", {}).get("KAFKA_LOG_DIRS")]
        if "command" in service:
            written = [value for key, value in options_of(service).items() if key in ("data-dir", "checkpoint")]
        assert written
        assert all(str(path).startswith(folder) for path in written)
    assert mounted.keys() == compose["volumes"].keys()


def test_ports_stay_on_this_machine(compose: dict[str, Any]) -> None:
    """Published ports are bound to the loopback interface, each once."""
    published = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert len(published) == len(set(published))


def test_dependencies_exist_and_report_their_health(compose: dict[str, Any]) -> None:
    """Every dependency is a service with a health check; that of a node is its readiness."""
    services = compose["services"]
    for service in services.values():
        for name, how in service.get("depends_on", {}).items():
            assert "service_healthy" == how["condition"]
            assert "healthcheck" in services[name]
    assert all("/health/ready" in str(service["healthcheck"]["test"]) for service in node_services(compose).values())


def settings_of(service: dict[str, Any], directory: Path) -> Settings:
    """The settings that a service's node would have, of its options and its environment."""
    names = {"cluster": "cluster.name", "bootstrap": "cluster.bootstrap"}
    flags: dict[str, object] = {
        names.get(option, f"node.{option.replace('-', '_')}"): int(value) if value.isdigit() else value
        for option, value in options_of(service).items()
    }
    flags["node.nodes"] = tuple(str(flags["node.nodes"]).split(","))
    return load_settings(flags, environment=service["environment"], directory=directory)


def test_kubernetes_settings_of_the_page_give_usable_addresses(tmp_path: Path) -> None:
    """The environment on the page for operators gives each pod its name, which it advertises and answers."""
    page = (ROOT / "docs/operating/cluster.md").read_text()
    [block] = re.findall(r"^```yaml\n(env:.*?)^```", page, re.MULTILINE | re.DOTALL)
    variables = {each["name"]: each["value"] for each in yaml.safe_load(block)["env"] if "value" in each}
    for number in range(3):
        pod = f"headrace-{number}"
        environment = {name: value.replace("$(POD)", pod) for name, value in variables.items()}
        node = load_settings(environment=environment, directory=tmp_path).node
        address = HttpAddress.of(node, machine_name=lambda: "unused")
        assert pod == node.id
        assert pod in node.members
        assert f"http://{pod}.headrace:8080" == address.advertised_url(8080)
        for host in (f"{pod}.headrace:8080", "headrace:8080", "10.1.2.3:8080"):
            assert "" == objection({"host": host}, loopback=address.loopback, names=address.names)


def bytes_of(size: str) -> int:
    """A size of compose, such as `1536m`."""
    return int(size[:-1]) * {"m": 1 << 20, "g": 1 << 30}[size[-1]]


def test_nodes_answer_under_their_own_names_only(compose: dict[str, Any], tmp_path: Path) -> None:
    """What a node advertises is an address that it answers, as are its published port and its health check.

    The names of its neighbours and of strangers are refused.
    """
    for name, service in node_services(compose).items():
        address = HttpAddress.of(settings_of(service, tmp_path).node)
        assert f"http://{service['hostname']}:8080" == address.advertised_url(8080)
        assert name == service["hostname"]
        published = service["ports"][0].rpartition(":")[0]
        checked = re.findall(r"http://([^/]+)/health/ready", service["healthcheck"]["test"][-1])
        for host in (f"{name}:8080", published, *checked):
            assert "" == objection({"host": host}, loopback=address.loopback, names=address.names)
        for host in ("evil.example:8080", "node9:8080"):
            assert objection({"host": host}, loopback=address.loopback, names=address.names)


def test_memory_limits_hold_what_the_settings_allow(compose: dict[str, Any], tmp_path: Path) -> None:
    """Every service has a limit, above all that its own settings let it use."""
    services = compose["services"]
    assert all("mem_limit" in service for service in services.values())
    for service in node_services(compose).values():
        settings = settings_of(service, tmp_path)
        # Each group has rows in memory, and as many in a frozen memtable while they are sealed.
        rows = 2 * len(settings.node.members) * settings.store.seal_bytes
        used = rows + settings.query.memory_limit_mb * 1_000_000 + settings.store.apply_queue_bytes + PROCESS_BYTES
        assert used <= bytes_of(service["mem_limit"])
    heap = re.fullmatch(r"-Xmx(\w+)", services["kafka"]["environment"]["KAFKA_HEAP_OPTS"])
    assert heap is not None
    assert bytes_of(heap[1]) * 5 // 4 <= bytes_of(services["kafka"]["mem_limit"])
    ingest = load_settings(environment=services["ingest"]["environment"], directory=tmp_path).ingest
    used = (ingest.driver_memory_mb << 20) * 5 // 4 + (1 + ingest.threads) * PROCESS_BYTES
    assert used <= bytes_of(services["ingest"]["mem_limit"])


def test_health_checks_start_no_java_and_fail_where_nothing_listens(compose: dict[str, Any]) -> None:
    """Each check runs here as it is, first at a port that listens and then at one that does not."""
    for service in compose["services"].values():
        test = service.get("healthcheck", {}).get("test", ["CMD"])
        assert "CMD" == test[0]
        assert not any("java" in word or word.endswith(".sh") for word in test)
    node = node_services(compose)["node1"]["healthcheck"]["test"]
    kafka = compose["services"]["kafka"]["healthcheck"]["test"]
    with running_server(200) as port:
        assert 0 == run_check(node, "127.0.0.1:8080", f"127.0.0.1:{port}")
        assert 0 == run_check(kafka, "kafka/9092", f"127.0.0.1/{port}")
    with running_server(503) as port:
        assert 0 != run_check(node, "127.0.0.1:8080", f"127.0.0.1:{port}")
    assert 0 != run_check(node, "127.0.0.1:8080", f"127.0.0.1:{port}")
    assert 0 != run_check(kafka, "kafka/9092", f"127.0.0.1/{port}")


def run_check(test: list[str], address: str, replacement: str) -> int:
    """The exit code of a health check with another address."""
    assert address in test[-1]
    program = {"python": sys.executable}.get(test[1], test[1])
    command = [program, *test[2:-1], test[-1].replace(address, replacement)]
    return subprocess.run(command, capture_output=True, check=False).returncode


@contextmanager
def running_server(status: int) -> Iterator[int]:
    """A server on loopback that answers every GET with a status; its port."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            """Nothing: the test's output is not a log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_broker_accepts_the_same_messages_as_the_embedded_one(compose: dict[str, Any]) -> None:
    """Sizes agree with the broker that all tests run against.

    Topics are not created automatically; the cluster id is one.
    """
    environment = compose["services"]["kafka"]["environment"]
    assert str(MESSAGE_BYTES_MAX) == environment["KAFKA_MESSAGE_MAX_BYTES"]
    assert "false" == environment["KAFKA_AUTO_CREATE_TOPICS_ENABLE"]
    assert 16 == len(base64.urlsafe_b64decode(environment["CLUSTER_ID"] + "=="))


def test_commands_are_those_of_the_command_line(compose: dict[str, Any]) -> None:
    """Each service runs a command that exists, with options that it has, and all that it requires."""
    app = get_command(build_app())
    for service in compose["services"].values():
        if "command" not in service:
            continue
        noun, verb = service["command"][:2]
        command = app.commands[noun].commands[verb]  # type: ignore[attr-defined]
        known = {name for parameter in command.params for name in parameter.opts}
        required = {name for parameter in command.params if parameter.required for name in parameter.opts}
        given = {f"--{name}" for name in options_of(service)}
        assert given - known == set()
        assert required - given == set()


def test_the_kernels_of_the_image_are_compiled_by_its_user() -> None:
    """All of them, into a directory of that user: Numba takes no cache that it may not write to."""
    text = (ROOT / "Dockerfile").read_text()
    before, _, behind = text.partition("USER headrace")
    [directory] = re.findall(r"NUMBA_CACHE_DIR=(\S+)", before)
    [owned] = re.findall(r"install --directory --owner headrace (.+)", before)
    assert directory in owned.split()
    [kernels] = re.findall(r"for kernel in (.+); do", behind)
    assert kernels.split() == list(KERNELS)
    assert 'import headrace.connectors.formats.$kernel"' in behind
    assert "formats.kernel" not in before


def test_image_holds_every_package() -> None:
    """The Dockerfile copies all parts of the distribution, and `.dockerignore` excludes none of them."""
    packages = {"headrace", *(path.name for path in (ROOT / "headrace").iterdir() if path.is_symlink())}
    assert len(packages) == 6
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    # A module that is absent is left out of the wheel without an error.
    modules = {f"{each}.py" for each in project["tool"]["setuptools"]["py-modules"]}
    text = (ROOT / "Dockerfile").read_text()
    copied = set(re.findall(r"^COPY (\w+) \w+$", text, re.MULTILINE))
    files = set(" ".join(re.findall(r"^COPY (.+) \./$", text, re.MULTILINE)).split())
    passed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert packages == copied
    assert modules | {"pyproject.toml", "constraints.txt", "README.md"} == files
    assert packages | files == passed
