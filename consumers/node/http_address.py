"""The address that a node listens on, the one that others use, and its names in requests."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address
from urllib.parse import urlsplit

from headrace.consumers.node.settings import NodeSettings
from headrace.consumers.serve.origin_check import LOOPBACK_NAMES
from headrace.schemas.addresses import USER_IN_ADDRESS, has_user
from headrace.schemas.errors import HeadraceError

WILDCARDS = frozenset({"0.0.0.0", "::"})
PORT_MAX = 65_535


class AddressInvalid(HeadraceError):
    """An address that is not HOST:PORT."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where one node is reached. `advertised_port` 0 is the port that the node listens on.

    `names` are the hosts under which requests reach the node; it is empty where any may.
    """

    host: str
    port: int
    advertised_host: str
    advertised_port: int
    names: frozenset[str]

    @classmethod
    def of(cls, settings: NodeSettings, machine_name: Callable[[], str] = socket.gethostname) -> HttpAddress:
        """The address that settings give. Raises AddressInvalid.

        A node that listens on every address of its machine and advertises none is advertised under the
        machine's name: others cannot connect to 0.0.0.0.
        """
        host, port = parse_address(settings.http, "node.http", "--http 127.0.0.1:8080")
        advertised_host, advertised_port = machine_name() if host in WILDCARDS else host, 0
        names = {name.strip("[]").lower() for name in settings.allowed_hosts}
        if settings.advertise:
            advertised_host, advertised_port = parse_address(
                settings.advertise, "node.advertise", "--advertise node1:8080"
            )
        if advertised_host in WILDCARDS:
            raise AddressInvalid(
                f"node.advertise {settings.advertise} is no address that others can use",
                action="give the name or the address of this machine, such as --advertise node1:8080",
            )
        if settings.advertise or names:
            names |= {advertised_host.lower()} | ({host.lower()} - WILDCARDS)
        return cls(host, port, advertised_host, advertised_port, frozenset(names))

    def flight_url(self, host: str, port: int) -> str:
        """The URL that others use for Arrow Flight, which listens on an address of its own."""
        name = self.advertised_host if host in WILDCARDS else host
        return f"grpc://{f'[{name}]' if ':' in name else name}:{port}"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in LOOPBACK_NAMES

    def advertised_url(self, bound_port: int) -> str:
        """The URL that others use, once the node listens on a port."""
        host = f"[{self.advertised_host}]" if ":" in self.advertised_host else self.advertised_host
        return f"http://{host}:{self.advertised_port or bound_port}"


def parse_address(text: str, setting: str, example: str) -> tuple[str, int]:
    """Host without brackets and port of HOST:PORT, also as a URL. Raises AddressInvalid, which names the setting."""
    # Without its text where that may have a password.
    shown = USER_IN_ADDRESS if has_user(text) else f"{text} is not HOST:PORT"
    invalid = AddressInvalid(f"{setting} {shown}", action=f"for example {example}")
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
    except ValueError:
        # A bracket without the other one.
        raise invalid from None
    if parts.scheme not in ("", "http") or parts.path not in ("", "/") or parts.query or "@" in parts.netloc:
        raise invalid
    host, _, port = parts.netloc.rpartition(":")
    # An IPv6 address needs no brackets here: what follows the last colon is the port.
    host = host.removeprefix("[").removesuffix("]")
    if not _is_host(host) or not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
        raise invalid
    return host, int(port)


def _is_host(text: str) -> bool:
    """Whether others could ask for it in a URL: a name, or an address of either kind."""
    try:
        return bool(IPv6Address(text)) if ":" in text else bool(text) and not any(map(str.isspace, text))
    except ValueError:
        return False
