"""The site: three nsqds that require TLS and tokens, two nsqlookupds, nsqadmin, and the programs.

Each nsqd answers only over TLS, on TCP and on HTTPS. Everything needs a token, and the nsqds show
the nsqlookupds one of their own. nsqlookupd and nsqadmin have no TLS themselves; they listen on
loopback.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.support.certificates import Certificates
from tests.support.servers import (
    AdminServer,
    NsqdServer,
    Server,
    free_port,
    spawn_nsqlookupd,
    start_first,
)

from proofs.workload import python_path, wait_until
from sparq.client import Config
from sparq.daemon.access import tokens
from sparq.program.supervised import HOST

NSQDS, LOOKUPDS = 3, 2
REQUEST_SECONDS = 10.0
PROGRAM_SECONDS = 90.0
PROGRAMS_MAX = 3
STARTED_SECONDS = 30.0

OPERATOR, NSQADMIN, NODES = "operator", "nsqadmin", "nodes"
PUBLISHER, CONSUMER = "publisher", "consumer"
ROLES = {
    OPERATOR: "administer,bodies,publish,consume",
    NSQADMIN: "administer,bodies,publish",
    NODES: "register",
    PUBLISHER: "publish",
    CONSUMER: "consume",
}


class Ran(NamedTuple):
    """How a program ended, and what it wrote."""

    words: tuple[str, ...]
    status: int
    output: str
    errors: str

    @property
    def json(self) -> Any:
        """Its output as JSON."""
        return json.loads(self.output)


class TokenFile:
    """A token file that the script changes; each token itself is in a file of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[str, str] = {}
        self.shown: dict[str, str] = {}
        self.apart = path.with_name(f"{path.name}.shown")
        self.apart.mkdir()

    def give(self, name: str, roles: str) -> str:
        """Make a token, add its line and return it."""
        self.shown[name], self.lines[name] = tokens.make(name, roles)
        self.own_file(name).write_text(f"{self.shown[name]}\n")
        self.write()
        return self.shown[name]

    def own_file(self, name: str) -> Path:
        return self.apart / name

    def write(self) -> None:
        self.path.write_text("".join(f"{line}\n" for line in self.lines.values()))


class SecureNsqd(NsqdServer):
    """An nsqd that requires TLS; its requests go to its HTTPS port, with a token."""

    def __init__(
        self, module: str, folder: Path, flags: tuple[str, ...], tls: ssl.SSLContext, token: str
    ) -> None:
        super().__init__(module, folder, flags)
        self.tls, self.token = tls, token

    def choose_ports(self) -> None:
        """Take free ports; only before the first start."""
        super().choose_ports()
        self.https_port = free_port()

    def address_flags(self) -> tuple[str, ...]:
        """Return the flags that set the addresses where it listens."""
        return (*super().address_flags(), f"--https-address={HOST}:{self.https_port}")

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Send one request with the operator's token."""
        return self.request_as(self.token, method, path, body)

    def request_as(
        self, token: str, method: str, path: str, body: bytes | None = None
    ) -> tuple[int, bytes]:
        """Send one request with a token; "": without one."""
        return ask(self.https_port, token, method, path, body, tls=self.tls)


def ask(
    port: int,
    token: str,
    method: str,
    path: str,
    body: bytes | None = None,
    *,
    tls: ssl.SSLContext | None = None,
) -> tuple[int, bytes]:
    """Send one request to a daemon of this machine, on a connection of its own.

    Args:
        port: the port of the daemon.
        token: "": none.
        method: the HTTP method.
        path: path and query.
        body: of the request.
        tls: for HTTPS; None: plain HTTP.
    """
    if tls is None:
        connection = http.client.HTTPConnection(HOST, port, timeout=REQUEST_SECONDS)
    else:
        connection = http.client.HTTPSConnection(HOST, port, timeout=REQUEST_SECONDS, context=tls)
    with closing(connection):
        connection.request(
            method, path, body, {"Authorization": f"Bearer {token}"} if token else {}
        )
        answer = connection.getresponse()
        return answer.status, answer.read()


class Site:
    """All daemons; a context manager that starts them and ends them.

    Args:
        folder: where their data, logs and tokens are.
        module: the nsqd's module: sparq's, or a control.
    """

    def __init__(self, folder: Path, module: str) -> None:
        certificates = folder / "certificates"
        certificates.mkdir()
        self.folder, self.module = folder, module
        self.certificates = Certificates.make(certificates)
        self.authority = str(certificates / "ca.pem")
        self.tls = self.certificates.client()
        self.tokens = TokenFile(folder / "tokens")
        for name, roles in ROLES.items():
            self.tokens.give(name, roles)
        self.admin_tokens = TokenFile(folder / "admin_tokens")
        self.admin_tokens.give(OPERATOR, "administer,bodies,publish")
        self.lookupds: list[Server] = []
        self.nsqds: list[SecureNsqd] = []
        self._programs = asyncio.Semaphore(PROGRAMS_MAX)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        os.environ["PYTHONPATH"] = python_path()
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, stack: ExitStack) -> None:
        asks = (f"--token-file={self.tokens.path}", "--require-token")
        with ThreadPoolExecutor() as threads:
            names = [f"lookupd-{number}" for number in range(LOOKUPDS)]
            for lookupd in threads.map(partial(self._nsqlookupd, asks), names):
                self.lookupds.append(stack.enter_context(lookupd))
            for nsqd in threads.map(self._nsqd, range(NSQDS)):
                self.nsqds.append(stack.enter_context(nsqd))
        own = self.tokens.own_file(NSQADMIN)
        folder = self.folder / "nsqadmin"
        folder.mkdir()
        flags = [f"--lookupd-http-address={each.http}" for each in self.lookupds]
        flags += [f"--upstream-token=@{own}", f"--token-file={self.admin_tokens.path}"]
        flags += [f"--http-client-tls-root-ca-file={self.authority}", "--default-role=none"]
        self.nsqadmin = AdminServer("sparq.nsqadmin", folder, tuple(flags))
        stack.enter_context(self.nsqadmin)
        start_first(self.nsqadmin)
        wait_until(self.all_are_listed, "all nsqds are listed", STARTED_SECONDS)

    def _nsqlookupd(self, flags: tuple[str, ...], name: str) -> Server:
        return spawn_nsqlookupd(self.folder, *flags, name=name)

    def _nsqd(self, number: int) -> SecureNsqd:
        folder = self.folder / f"nsqd-{number}"
        folder.mkdir()
        paths = self.certificates.folder
        flags = [f"--data-path={folder}", f"--broadcast-address={HOST}", f"--node-id={number}"]
        flags += [f"--lookupd-tcp-address={each.tcp}" for each in self.lookupds]
        flags += [f"--tls-cert={paths / 'server.crt'}", f"--tls-key={paths / 'server.key'}"]
        flags += ["--tls-required=true", f"--token-file={self.tokens.path}"]
        flags += [f"--lookupd-token=@{self.tokens.own_file(NODES)}"]
        token = self.tokens.shown[OPERATOR]
        nsqd = SecureNsqd(self.module, folder, tuple(flags), self.tls, token)
        start_first(nsqd)
        return nsqd

    def all_are_listed(self) -> bool:
        """Return whether each nsqlookupd lists every nsqd."""
        wanted = {each.tcp_port for each in self.nsqds}
        listed = [self.look_up(each, "/nodes")["producers"] for each in self.lookupds]
        return all(wanted == {each["tcp_port"] for each in nodes} for nodes in listed)

    def look_up(self, lookupd: Server, path: str) -> Any:
        """Return the answer of an nsqlookupd."""
        token = self.tokens.shown[OPERATOR]
        status, body = ask(lookupd.http_port, token, "GET", path)
        assert status == 200, (path, status, body)
        return json.loads(body)

    def create(self, topic: str, channel: str) -> None:
        """Create a topic and a channel through nsqadmin."""
        body = json.dumps({"topic": topic, "channel": channel}).encode()
        shown = self.admin_tokens.shown[OPERATOR]
        assert ask(self.nsqadmin.http_port, shown, "POST", "/api/topics", body)[0] == 200

    def from_nsqadmin(self, path: str) -> Any:
        """Return what nsqadmin's API answers to the operator."""
        return json.loads(self.page(path))

    def page(self, path: str) -> str:
        """Return a page of nsqadmin, as the operator sees it."""
        shown = self.admin_tokens.shown[OPERATOR]
        status, body = ask(self.nsqadmin.http_port, shown, "GET", path)
        assert status == 200, (path, status, body)
        return body.decode()

    def read_tokens_again(self) -> None:
        """Write the token files, and tell all daemons to read them."""
        for file in (self.tokens, self.admin_tokens):
            file.write()
        for server in (*self.nsqds, *self.lookupds, self.nsqadmin):
            assert server.pid, f"{server.name} does not run"
            os.kill(server.pid, signal.SIGHUP)

    # Clients and programs

    def config(self, token: str, **options: Any) -> Config:
        """Return options of a client with this token."""
        return Config(
            tls_root_ca_file=self.authority,
            auth_secret=self.tokens.shown[token],
            auth_without_tls=True,  # for the nsqlookupds: they have no TLS
            lookupd_poll_interval=2.0,
            max_reconnect_delay=0.5,
            max_attempts=0,
            **options,
        )

    @property
    def lookupd_addresses(self) -> list[str]:
        return [each.http for each in self.lookupds]

    async def admin(self, *words: str, token: str = OPERATOR) -> Ran:
        """Run `sparq admin` with a token."""
        return await self.sparq("admin", *words, token=token)

    async def done(self, *words: str) -> Ran:
        """Run `sparq admin` as the operator; it must succeed."""
        ran = await self.admin(*words)
        assert ran.status == 0, ran
        return ran

    async def sparq(self, *words: str, token: str = OPERATOR) -> Ran:
        """Run a program of sparq with the flags that name the cluster."""
        flags = [f"--lookupd-http-address={each}" for each in self.lookupd_addresses]
        flags += [f"--http-client-tls-root-ca-file={self.authority}"]
        flags += [f"--token=@{self.tokens.own_file(token)}"]
        command = [sys.executable, "-m", "sparq.cli", *words, *flags]
        async with self._programs:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                async with asyncio.timeout(PROGRAM_SECONDS):
                    output, errors = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
        return Ran(words, process.returncode or 0, output.decode(), errors.decode())
