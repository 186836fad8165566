"""The deployment files: they parse, name what exists, and open nothing to the outside."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from headrace.cli.main import build_app
from headrace.connectors.kafka.broker_settings import MESSAGE_BYTES_MAX

ROOT = Path(__file__).resolve().parents[2]
NODES = {"n1", "n2", "n3"}


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
    assert {f"{name}:8080" for name in services} == {each["http"] for each in options.values()}
    assert 3 == len({service["volumes"][0] for service in services.values()})
    shared = {
        tuple(sorted((key, value) for key, value in each.items() if key not in ("id", "http")))
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


def test_health_check_of_a_node_is_a_program(compose: dict[str, Any]) -> None:
    """The check that runs in the container is Python without errors, and fails where no server listens."""
    test = node_services(compose)["node1"]["healthcheck"]["test"]
    assert ["CMD", "python", "-c"] == test[:3]
    program = re.sub(r"\{os.uname\(\).nodename\}:8080", "127.0.0.1:1", test[3])
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "URLError" in answer.stderr
    assert 0 != answer.returncode


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


def test_image_holds_every_package() -> None:
    """The Dockerfile copies all parts of the distribution, and `.dockerignore` excludes none of them."""
    packages = {"headrace", *(path.name for path in (ROOT / "headrace").iterdir() if path.is_symlink())}
    assert len(packages) == 6
    copied = set(re.findall(r"^COPY (\w+) \w+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    passed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert packages == copied
    assert packages | {"pyproject.toml", "constraints.txt", "README.md"} == passed
