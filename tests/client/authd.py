"""An authd in a thread, for tests with real nsqds: it knows two secrets and can be made to fail."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

SECRET = "open sesame, really & truly"
READER = "may only subscribe"


class Authd:
    """A running authd.

    Attributes:
        address: ``host:port``, as nsqd's flag takes it.
        ttl: validity of its answers in seconds.
        in_order: while False, it answers with status 500.
        asked: the query parameters of each request.
    """

    def __init__(self) -> None:
        self.ttl = 3600
        self.in_order = True
        self.asked: list[dict[str, str]] = []
        self._permissions = {SECRET: ["subscribe", "publish"], READER: ["subscribe"]}
        authd = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = authd.answer(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def answer(self, path: str) -> tuple[int, bytes]:
        """Return the status and the body for one request."""
        given = {name: values[0] for name, values in parse_qs(urlsplit(path).query).items()}
        self.asked.append(given)
        permissions = self._permissions.get(given.get("secret", ""))
        if not self.in_order or permissions is None:
            return 403 if self.in_order else 500, b"{}"
        entry = {"topic": ".*", "channels": [".*"], "permissions": permissions}
        document = {"ttl": self.ttl, "identity": "somebody", "identity_url": ""}
        return 200, json.dumps({**document, "authorizations": [entry]}).encode()

    def stop(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def running_authd() -> Iterator[Authd]:
    """Run an authd during the block."""
    authd = Authd()
    try:
        yield authd
    finally:
        authd.stop()
