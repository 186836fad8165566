"""The Avro schemas of messages: files of a directory, or a schema registry with the API of Confluent.

A schema that does not exist is a fault of its messages. A registry that does not answer is none: it is waited for,
and then the whole input fails. A schema never changes under its id, so each process asks for it once. An id that
the registry does not have is asked for again after a moment: it may come.
"""

from __future__ import annotations

import base64
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from headrace.connectors.deadline import Deadline
from headrace.connectors.formats.avro_schema import Program, SchemaUnusable, compile_schema, parse_schema
from headrace.connectors.formats.interface import FormatError, OptionsError, SchemaPlace

T = TypeVar("T")

SUFFIX = ".avsc"
REGISTRY_WAIT_S = 60.0
REGISTRY_TIMEOUT_S = 10.0
REGISTRY_PAUSE_S = 1.0
ANSWER_BYTES_MAX = 16 << 20
REFERENCES_MAX = 1_000
UNKNOWN_AGE_S = 10.0
"""How long an id that the registry does not have is not asked for again."""
UNKNOWN_MAX = 10_000
"""So many such ids are kept, the newest. Damaged messages have any number of them."""
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_NOT_FOUND = {40401, 40402, 40403}
"""The registry's own codes for what it does not have; another 404 is of a server that is no registry."""


class SchemaUnknown(FormatError):
    """No schema has the id of a message."""


class RegistryUnavailable(FormatError):
    """The schema registry did not answer in time, or refused the request."""


class SchemaMissing(OptionsError):
    """The place of the schemas has none for the messages."""


@dataclass(slots=True)
class SchemaStore:
    """The schemas of one place."""

    place: SchemaPlace
    wait_s: float = REGISTRY_WAIT_S
    clock: Callable[[], float] = time.monotonic
    _unknown: dict[int, float] = field(default_factory=dict)
    _parsed: dict[int, tuple[Any, dict[str, Any]] | SchemaUnusable] = field(default_factory=dict)
    _programs: dict[tuple[int, tuple[tuple[str, ...], ...]], Program | SchemaUnusable] = field(default_factory=dict)

    def program(self, number: int, paths: tuple[tuple[str, ...], ...]) -> Program:
        """The program of the schema with an id, for these paths.

        Raises SchemaUnknown, SchemaUnusable, RegistryUnavailable.
        """
        key = (number, paths)
        if key not in self._programs:
            parsed = self._schema(number)
            try:
                self._programs[key] = compile_schema(*_usable(parsed), paths)
            except SchemaUnusable as error:
                self._programs[key] = error
        return _usable(self._programs[key])

    def _schema(self, number: int) -> tuple[Any, dict[str, Any]] | SchemaUnusable:
        if number not in self._parsed:
            try:
                self._parsed[number] = self._read(number)
            except SchemaUnusable as error:
                self._parsed[number] = error
        return self._parsed[number]

    def _read(self, number: int) -> tuple[Any, dict[str, Any]]:
        if self.place.registry is not None:
            return self._registered(number)
        assert self.place.directory is not None, "the options were checked"
        path = Path(self.place.directory, f"{number}{SUFFIX}")
        try:
            return parse_schema(path.read_text("utf-8-sig"))
        except FileNotFoundError:
            if not path.parent.is_dir():
                raise _no_directory(path.parent) from None
            raise SchemaUnknown(f"there is no schema {number} ({path.name})") from None
        except (OSError, UnicodeDecodeError) as error:
            raise SchemaMissing(f"{path} cannot be read: {error}") from None

    def _registered(self, number: int) -> tuple[Any, dict[str, Any]]:
        if self.clock() < self._unknown.get(number, 0.0):
            raise _unknown_schema(number)
        self._unknown.pop(number, None)
        try:
            return Registry(self.place, self.wait_s).schema(number)
        except SchemaUnknown:
            self._unknown[number] = self.clock() + UNKNOWN_AGE_S
            if len(self._unknown) > UNKNOWN_MAX:
                del self._unknown[next(iter(self._unknown))]
            raise


@dataclass(frozen=True, slots=True)
class Registry:
    """The schema registry of a place."""

    place: SchemaPlace
    wait_s: float = REGISTRY_WAIT_S

    @property
    def url(self) -> str:
        """Its address, without a slash at the end."""
        return (self.place.registry or "").rstrip("/")

    def schema(self, number: int) -> tuple[Any, dict[str, Any]]:
        """The schema with an id, and the types that it uses. Raises SchemaUnknown, SchemaUnusable, RegistryUnavailable."""
        answer = self._ask(f"/schemas/ids/{number}")
        if answer is None:
            raise _unknown_schema(number)
        kind = answer.get("schemaType", "AVRO")
        if kind != "AVRO":
            raise SchemaUnusable(f"schema {number} is {kind}, not Avro", action="give the --format of the messages")
        named: dict[str, Any] = {}
        self._add_references(answer, named, set())
        return parse_schema(answer["schema"], named)

    def _add_references(self, answer: dict[str, Any], named: dict[str, Any], seen: set[tuple[str, int]]) -> None:
        """Add the types of the schemas that a schema refers to, the innermost first."""
        for each in answer.get("references") or ():
            key = (each["subject"], each["version"])
            if key in seen or len(seen) >= REFERENCES_MAX:
                continue
            seen.add(key)
            referred = self._ask(f"/subjects/{quote(key[0], safe='')}/versions/{key[1]}")
            if referred is None:
                raise SchemaUnusable(f"the registry lacks version {key[1]} of {key[0]}, which a schema refers to")
            self._add_references(referred, named, seen)
            parse_schema(referred["schema"], named)

    def _ask(self, path: str) -> dict[str, Any] | None:
        """What the registry answers; None if it has no such thing. Waits while it does not answer."""
        deadline = Deadline(self.wait_s)
        while True:
            try:
                return self._asked_once(path)
            except _SilentError as silent:
                if deadline.passed():
                    raise RegistryUnavailable(
                        f"the schema registry at {self.url} gives no schema: {silent}",
                        action="check --registry and the registry; nothing was skipped",
                        retriable=True,
                    ) from None
            time.sleep(REGISTRY_PAUSE_S)

    def _asked_once(self, path: str) -> dict[str, Any] | None:
        request = urllib.request.Request(self.url + path, headers={"accept": _ACCEPT})
        if self.place.user:
            login = base64.b64encode(f"{self.place.user}:{self.place.password}".encode()).decode()
            # A server that this one refers to does not get the password.
            request.add_unredirected_header("authorization", f"Basic {login}")
        try:
            with urllib.request.urlopen(request, timeout=REGISTRY_TIMEOUT_S) as answer:
                document = json.loads(answer.read(ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as error:
            if error.code == http.client.NOT_FOUND and _code(error) in _NOT_FOUND:
                return None
            if error.code in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
                raise RegistryUnavailable(
                    f"the schema registry at {self.url} refuses access ({error.code})",
                    action="set ingest.registry_user and ingest.registry_password",
                ) from None
            raise _SilentError(f"HTTP {error.code}") from None
        except (OSError, http.client.HTTPException) as error:
            raise _SilentError(str(getattr(error, "reason", error)) or type(error).__name__) from None
        except ValueError:
            raise _SilentError("its answer is no JSON") from None
        if not _is_schema(document):
            # As of a page of a proxy, or of another server.
            raise _SilentError("its answer has no schema")
        return dict(document)


def _is_schema(document: Any) -> bool:
    """Whether an answer is one of a registry about a schema."""
    if not isinstance(document, dict) or not isinstance(document.get("schema"), str):
        return False
    references = document.get("references") or []
    return isinstance(references, list) and all(
        isinstance(each, dict) and isinstance(each.get("subject"), str) and isinstance(each.get("version"), int)
        for each in references
    )


class _SilentError(Exception):
    """No usable answer, for a reason that may pass."""


def _code(error: urllib.error.HTTPError) -> int:
    try:
        return int(json.loads(error.read(ANSWER_BYTES_MAX))["error_code"])
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        return 0


def _unknown_schema(number: int) -> SchemaUnknown:
    return SchemaUnknown(f"the registry has no schema {number}")


def _usable(found: T | SchemaUnusable) -> T:
    if isinstance(found, SchemaUnusable):
        raise found
    return found


def _no_directory(path: Path) -> SchemaMissing:
    return SchemaMissing(
        f"--schema-dir {path} is no directory", action=f"give the one with <id>{SUFFIX}, on each machine that parses"
    )


_stores: dict[SchemaPlace, SchemaStore] = {}


def schema_store(place: SchemaPlace) -> SchemaStore:
    """This process's schemas of a place."""
    if place not in _stores:
        _stores[place] = SchemaStore(place)
    return _stores[place]


def _has_port(place: str) -> bool:
    """Whether the port of a URL is a number, or there is none."""
    number = place.rpartition("]")[2].partition(":")
    return not number[1] or (number[2].isascii() and number[2].isdigit() and 0 < int(number[2]) < 1 << 16)


def check_place(place: SchemaPlace, *, numbered: bool) -> None:
    """Raise OptionsError unless the place can have the schemas: those by id, or the one of all messages."""
    if place.directory is not None and place.registry is not None:
        raise OptionsError("schemas come from a directory or from a registry, not from both")
    if place.registry is not None:
        if not numbered:
            raise OptionsError("plain Avro has no schema ids to ask a registry for", action="give its --schema-dir")
        parts = urlsplit(place.registry)
        # First, so that no message repeats the password. A URL is shown in plans and logs.
        if parts.username or parts.password:
            raise OptionsError(
                "the URL of a registry must not have a user or a password",
                action="set ingest.registry_user and ingest.registry_password",
            )
        if parts.scheme not in ("http", "https") or not parts.hostname or not _has_port(parts.netloc):
            raise OptionsError(f"{place.registry!r} is no URL of a registry", action="as http://registry:8081")
    elif place.directory is None:
        more = " or --registry URL" if numbered else ""
        raise OptionsError("Avro messages need their schemas", action=f"give --schema-dir D{more}")
    elif numbered and not Path(place.directory).is_dir():
        raise _no_directory(Path(place.directory))


def only_schema(place: SchemaPlace) -> tuple[Any, dict[str, Any]]:
    """The schema of all messages: a file, or the only one of a directory. Raises SchemaMissing, SchemaUnusable."""
    assert place.directory is not None, "the options were checked"
    path = Path(place.directory)
    if path.is_dir():
        files = sorted(path.glob(f"*{SUFFIX}"))
        if len(files) != 1:
            found = f"has {len(files)} schemas" if files else f"has no file *{SUFFIX}"
            raise SchemaMissing(f"--schema-dir {path} {found}", action="name the file: plain Avro has one schema")
        path = files[0]
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SchemaMissing(f"the schema {path} cannot be read: {error}") from None
    return parse_schema(text)
