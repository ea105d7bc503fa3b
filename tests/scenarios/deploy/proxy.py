"""The proxy of docs/nsqadmin_rights.md: a real nginx with the document's own lines.

Ports differ, and it speaks HTTP here. A stand-in for oauth2-proxy answers as that does
with `--set-xauthrequest`: 202 and the user's address for a session, 401 without one.
"""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

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
    """nginx's complete configuration around the example's `server`, which speaks HTTP here."""
    (server,) = blocks("nginx")
    server = re.sub(r"^ *ssl_certificate.*\n", "", server, flags=re.M)
    places = {
        "listen 443 ssl": f"listen 127.0.0.1:{port}",
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

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> tuple[int, str]:
        """Send a request from outside; returns the status and where it is redirected to."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=30, source_address=(OUTSIDE, 0)
        )
        with closing(connection):
            connection.request(method, path, body, {"Host": SITE, **headers})
            answer = connection.getresponse()
            return answer.status, answer.headers.get("Location", "")
