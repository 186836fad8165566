"""A schema registry in memory, with the part of Confluent's API that serializers and readers use."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class SchemaRegistry:
    """Schemas by id, from 1. `status` other than 0 is the answer to every request; with a `login` (`user:password`)
    others are not let in.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.status = 0
        self.login = ""
        self.requests: list[str] = []
        self._schemas: list[dict[str, Any]] = []
        self._versions: dict[tuple[str, int], int] = {}

    def register(self, schema: object, subject: str = "s", **more: Any) -> int:
        """The id of a schema."""
        document = {"schema": schema if isinstance(schema, str) else json.dumps(schema), **more}
        if document not in self._schemas:
            self._schemas.append(document)
        number = self._schemas.index(document) + 1
        versions = [version for owner, version in self._versions if owner == subject]
        self._versions[(subject, len(versions) + 1)] = number
        return number

    def answer(self, path: str, document: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
        """(status, document) of one request."""
        self.requests.append(path)
        if self.status:
            return self.status, {"error_code": self.status}
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]
        if document is not None:
            more = {name: document[name] for name in ("schemaType", "references") if document.get(name)}
            return 200, {"id": self.register(document["schema"], parts[1], **more)}
        number = int(parts[-1]) if parts[0] in ("schemas", "subjects") and parts[-1].isdigit() else 0
        if parts[0] == "subjects":
            number = self._versions.get((parts[1], number), 0)
        if 0 < number <= len(self._schemas):
            return 200, self._schemas[number - 1]
        return 404, {"error_code": 40403, "message": "Schema not found"}


@contextmanager
def schema_registry() -> Iterator[SchemaRegistry]:
    """A registry on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply(None)

        def do_POST(self) -> None:
            self._reply(json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def log_message(self, *_: object) -> None:
            pass

        def _reply(self, document: dict[str, Any] | None) -> None:
            wanted = f"Basic {base64.b64encode(registry.login.encode()).decode()}"
            if registry.login and self.headers["authorization"] != wanted:
                status, answer = 401, {"error_code": 401}
            else:
                status, answer = registry.answer(self.path, document)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/vnd.schemaregistry.v1+json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry = SchemaRegistry(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()
