"""The proxy of docs/nsqadmin_rights.md: a real nginx with the document's own lines.

Ports and certificates differ. A stand-in for oauth2-proxy answers nginx's requests as that does
with `--set-xauthrequest`: 202 and the user's address for a session, 401 without one.
"""

from __future__ import annotations

import http.client
import re
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import trustme

from sparq.program.supervised import SupervisedProcess
from tests.support.servers import free_port
from tests.support.waiting import wait_for

DOCUMENT: Final = Path(__file__).parents[3] / "docs" / "nsqadmin_rights.md"
SITE: Final = "nsq.example"
SESSION: Final = "_oauth2_proxy"
OUTSIDE: Final = "127.0.0.2"
"""The address of clients, which must differ from the proxy's."""


def blocks(language: str) -> list[str]:
    """The document's blocks of code in a language."""
    text = DOCUMENT.read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def nsqadmin_flags() -> list[str]:
    """The example's flags for nsqadmin, without addresses and files."""
    (command,) = (block for block in blocks("console") if "--allowed-host" in block)
    words = command.replace("\\\n", " ").split()
    own = ("--http-address", "--lookupd-http-address", "--audit-log")
    return [word for word in words if word.startswith("--") and not word.startswith(own)]


def configuration(folder: Path, port: int, admin: int, sign_in: int) -> str:
    """nginx's complete configuration around the example's `server`."""
    (server,) = blocks("nginx")
    places = {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "/etc/ssl/nsq.example.pem": str(folder / "site.pem"),
        "/etc/ssl/nsq.example.key": str(folder / "site.pem"),
        "http://127.0.0.1:4171": f"http://127.0.0.1:{admin}",
        "http://127.0.0.1:4180": f"http://127.0.0.1:{sign_in}",
    }
    for written, here in places.items():
        assert written in server, written
        server = server.replace(written, here)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    return (
        f"daemon off;\nmaster_process off;\npid {folder}/nginx.pid;\n"
        f"error_log {folder}/error.log;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}{server}}}\n"
    )


class SignIn(BaseHTTPRequestHandler):
    """Answers nginx whether a user is signed in: the session cookie is the user's name."""

    def do_GET(self) -> None:
        cookies = dict(
            part.strip().partition("=")[::2] for part in self.headers.get("Cookie", "").split(";")
        )
        user = cookies.get(SESSION, "")
        self.send_response(202 if user else 401)
        if user:
            self.send_header("X-Auth-Request-Email", f"{user}@example.com")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def sign_in() -> Iterator[int]:
    """Run the stand-in for oauth2-proxy; yields its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), SignIn) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            serving.join()


class Proxy:
    """nginx in front of an nsqadmin, and a client outside that sends requests."""

    def __init__(self, folder: Path, admin: int, sign_in: int) -> None:
        self.port = free_port()
        authority = trustme.CA()
        authority.issue_cert(SITE).private_key_and_cert_chain_pem.write_to_path(
            str(folder / "site.pem")
        )
        self.tls = ssl.create_default_context()
        authority.configure_trust(self.tls)
        self._folder = folder
        written = folder / "nginx.conf"
        written.write_text(configuration(folder, self.port, admin, sign_in))
        command = ["nginx", "-p", str(folder), "-c", str(written), "-e", str(folder / "error.log")]
        self._process = SupervisedProcess("nginx", command, folder / "nginx.log")
        self._process.start()

    def wait_ready(self) -> None:
        """Wait until it answers."""
        wait_for(self._answers)

    def _answers(self) -> bool:
        assert not self._process.has_ended(), (self._folder / "error.log").read_text()
        try:
            return self.ask("GET", "/ping", {})[0] == 302
        except OSError:
            return False

    def close(self) -> None:
        """Stop it."""
        self._process.stop()

    @contextmanager
    def answer(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request from outside with these headers; yields the response."""
        connection = _Connection(self.port, self.tls)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            sent = {"Host": SITE, "Content-Length": str(len(body)), **headers}
            for name, value in sent.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            yield connection.getresponse()
        finally:
            connection.close()

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> tuple[int, bytes]:
        """Send a request from outside; returns status and body."""
        with self.answer(method, path, headers, body) as answer:
            return answer.status, answer.read()


class _Connection(http.client.HTTPSConnection):
    """A connection from outside to the proxy, which has the site's certificate."""

    def __init__(self, port: int, tls: ssl.SSLContext) -> None:
        super().__init__("127.0.0.1", port, timeout=30, source_address=(OUTSIDE, 0))
        self._tls = tls

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=SITE)
