"""Flags of TLS, AUTH and nsqlookupd."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.scenarios.starting.effects.common import granted, identify, refused
from tests.support.authd import answer, entry
from tests.support.certificates import Certificates
from tests.support.flag_rows import FlagDaemons, FlagServer, Row
from tests.support.servers import Server, spawn_nsqlookupd
from tests.support.v2_client import OK, V2Client
from tests.support.waiting import wait_for

ATTEMPTS = 5
SECRET = b"s3cr3t"


# TLS


def client_context(server: FlagServer, name: str = "signed") -> ssl.SSLContext:
    """Return the context of a client that trusts the test's CA and has this certificate."""
    folder = Path(server.places["certificates"])
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    if name:
        context.load_cert_chain(str(folder / f"{name}.pem"))
    return context


def secured(server: FlagServer, context: ssl.SSLContext) -> dict[str, Any]:
    """Upgrade a V2 connection to TLS; return the server's certificate. Raises SSLError."""
    with V2Client(server) as plain:
        assert json.loads(plain.ask(identify(tls_v1=True))[1])["tls_v1"] is True
        with context.wrap_socket(plain.socket, server_hostname="localhost") as wrapped:
            if V2Client(wrapped, b"").frame() != OK:
                raise ssl.SSLError("no OK behind the handshake")
            return dict(wrapped.getpeercert() or {})


def fails(server: FlagServer, context: ssl.SSLContext) -> bool:
    """Whether nsqd refuses this client's TLS."""
    try:
        secured(server, context)
    except (ssl.SSLError, ConnectionError):
        return True
    return False


def https_ping(server: FlagServer, context: ssl.SSLContext) -> bytes:
    """Request GET /ping over HTTPS."""
    port = int(server.places["https"].rpartition(":")[2])
    connection = http.client.HTTPSConnection("localhost", port, timeout=15, context=context)
    with contextlib.closing(connection):
        connection.request("GET", "/ping")
        return connection.getresponse().read()


def certificate(server: FlagServer) -> None:
    """nsqd presents this certificate."""
    names = secured(server, client_context(server))["subjectAltName"]
    assert ("DNS", "localhost") in names


def https_address(server: FlagServer) -> None:
    """nsqd serves HTTPS on this address, with the same TLS policy."""
    assert https_ping(server, client_context(server)) == b"OK"


def policy(server: FlagServer) -> None:
    """nsqd accepts only client certificates that the root CA has signed."""
    assert fails(server, client_context(server, ""))
    assert fails(server, client_context(server, "foreign"))
    assert not fails(server, client_context(server))


def tls_min_version(server: FlagServer) -> None:
    """nsqd refuses older TLS versions."""
    old = client_context(server)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert fails(server, old)
    assert not fails(server, client_context(server))


def tls_required(server: FlagServer) -> None:
    """Without TLS, nsqd refuses TCP commands and HTTP requests."""
    text = "E_INVALID cannot SUB in current state (TLS required)"
    refused(server, text, b"SUB t c\n")
    status, body = server.request("GET", "/ping")
    port = server.places["https"].rpartition(":")[2]
    assert (status, body.decode()) == (403, f'{{"message": "TLS_REQUIRED", "https_port": {port}}}')


# AUTH


class Authd(http.server.ThreadingHTTPServer):
    """An auth server in a thread.

    Attributes:
        asked: the method and the secret of each request.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, bytes]] = []

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Authd

    def do_GET(self) -> None:
        self._answer(self.path.encode())

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, said: bytes) -> None:
        self.server.asked.append((self.command, SECRET if SECRET in said else said))
        body = answer(entry())
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing to stderr."""


@contextlib.contextmanager
def running_authd() -> Iterator[Authd]:
    """Run an auth server during the block."""
    authd = Authd()
    thread = threading.Thread(target=authd.serve_forever)
    thread.start()
    try:
        yield authd
    finally:
        authd.shutdown()
        thread.join()
        authd.server_close()


def auth_command() -> bytes:
    return b"AUTH\n" + struct.pack(">i", len(SECRET)) + SECRET


def auth_http_address(server: FlagServer) -> None:
    """Clients must send AUTH, and the auth server decides."""
    assert granted(server)["auth_required"] is True
    refused(server, "E_AUTH_FIRST AUTH required before SUB", b"SUB t c\n")
    with V2Client(server) as line:
        line.ask(identify())
        assert b'"permission_count"' in line.ask(auth_command())[1]
        assert line.ask(b"SUB t c\n") == OK


def auth_http_request_method(server: FlagServer) -> None:
    """nsqd uses this method for its requests to auth servers."""
    authd: Authd = server.helpers["authd"]
    seen = len(authd.asked)
    with V2Client(server) as line:
        line.ask(identify())
        line.ask(auth_command())
    assert authd.asked[seen:] == [("POST", SECRET)]


def gives_up_within(seconds: float) -> Callable[[FlagServer], None]:
    """Return a check that nsqd gives up on its auth server in this time, one of ATTEMPTS times."""

    def check(server: FlagServer) -> None:
        for _ in range(ATTEMPTS):
            began = time.monotonic()
            refused(server, "E_AUTH_FAILED AUTH failed", identify(), auth_command())
            if time.monotonic() - began < seconds:
                return
        raise AssertionError("it took as long as without the flag")

    return check


BEFORE_REQUEST_TIMEOUT = gives_up_within(4)
"""nsqd gives up on an auth server that does not respond, well before the default 5 s."""
BEFORE_CONNECT_TIMEOUT = gives_up_within(1.7)
"""nsqd gives up on an auth server that accepts no connection, well before the default 2 s."""


@contextlib.contextmanager
def mute() -> Iterator[str]:
    """Yield an address that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@contextlib.contextmanager
def deaf() -> Iterator[str]:
    """Yield an address that neither accepts nor refuses connections: its backlog is full."""
    with socket.socket() as listening, contextlib.ExitStack() as waiting:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            filler = waiting.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listening.getsockname())
        yield f"127.0.0.1:{listening.getsockname()[1]}"


# nsqlookupd


def node(server: FlagServer, lookupd: Server) -> dict[str, Any]:
    """Return this nsqd's entry in an nsqlookupd."""

    def found() -> dict[str, Any]:
        producers = lookupd.get_json("/nodes")["producers"]
        named = (each for each in producers if each["broadcast_address"] == server.places["name"])
        return next(named, {})

    return wait_for(found)


def lookupd_tcp_address(server: FlagServer) -> None:
    """nsqd is registered with each nsqlookupd."""
    for lookupd in server.helpers["lookupds"]:
        node(server, lookupd)


def broadcast(server: FlagServer) -> None:
    """nsqlookupd returns these ports, not the real ones."""
    facts = node(server, server.helpers["lookupds"][0])
    assert (facts["tcp_port"], facts["http_port"]) == (1111, 2222)


def topology(server: FlagServer) -> None:
    """nsqlookupd returns region and zone."""
    facts = node(server, server.helpers["lookupds"][0])
    assert (facts["topology_region"], facts["topology_zone"]) == ("north", "pole")


GROUPS = {
    "TLS": [
        Row("http-address", "{http}", tls_required),
        Row("https-address", "{https}", https_address),
        Row("tls-cert", "{certificates}/server.crt", certificate),
        Row("tls-key", "{certificates}/server.key", certificate),
        Row("tls-client-auth-policy", "require-verify", policy),
        Row("tls-root-ca-file", "{certificates}/ca.pem", policy),
        Row("tls-min-version", "tls1.3", tls_min_version),
        Row("tls-required", True, tls_required),
    ],
    "AUTH": [
        Row("auth-http-address", ["{authd}"], auth_http_address),
        Row("auth-http-request-method", "post", auth_http_request_method),
    ],
    "elsewhere": [
        Row(
            "auth-http-address",
            ["{mute}"],
            BEFORE_REQUEST_TIMEOUT,
        ),
        Row("http-client-request-timeout", "300ms", BEFORE_REQUEST_TIMEOUT),
        Row("broadcast-address", "{name}", broadcast),
        Row("broadcast-tcp-port", 1111, broadcast),
        Row("broadcast-http-port", 2222, broadcast),
        Row("topology-region", "north", topology),
        Row("topology-zone", "pole", topology),
        Row(
            "lookupd-tcp-address",
            ["{lookupd}", "{lookupd2}"],
            lookupd_tcp_address,
        ),
    ],
    "deaf": [
        Row(
            "auth-http-address",
            ["{deaf}"],
            BEFORE_CONNECT_TIMEOUT,
        ),
        Row("http-client-connect-timeout", "200ms", BEFORE_CONNECT_TIMEOUT),
    ],
}


@contextlib.contextmanager
def neighbours(daemons: FlagDaemons, folder: Path) -> Iterator[None]:
    """Set up what the daemons of the rows need: certificates, auth servers, nsqlookupds."""
    certificates = folder / "certificates"
    certificates.mkdir()
    Certificates.make(certificates)
    with (
        running_authd() as authd,
        deaf() as nobody,
        mute() as silent,
        spawn_nsqlookupd(folder, name="first") as first,
        spawn_nsqlookupd(folder, name="second") as second,
    ):
        daemons.helpers.update(authd=authd, lookupds=[first, second])
        daemons.places.update(
            certificates=str(certificates),
            authd=authd.place,
            deaf=nobody,
            mute=silent,
            lookupd=first.tcp,
            lookupd2=second.tcp,
        )
        yield
