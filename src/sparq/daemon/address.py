"""Addresses to listen on: `host:port` or the path of a unix socket, distinguished as in NSQ.

A socket is bound here before slow modules are loaded, so that port 0 becomes one real port (even if
a host has several addresses) and a failed start gives the reason in NSQ's words at once. A TCP port
accepts connections from `serve` on, when they are answered; until then clients are refused.

As in Go, an address without a host, `0.0.0.0` and `[::]` all listen on both IP families: an IPv6
socket that accepts IPv4 clients, too. `peer_host` shows their addresses as IPv4.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from sparq.options.kinds import port_of
from sparq.program.lifecycle import StartError

if TYPE_CHECKING:
    import asyncio
    import ssl

BACKLOG = 1024
HANDSHAKE_SECONDS = 5.0
"""How long a TLS handshake may take."""

CLOSE_SECONDS = 1.0
"""How long the TLS shutdown of a connection may take."""

_WILDCARDS = ("", "0.0.0.0", "::")
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


class ListenError(StartError):
    """A daemon cannot listen; the text is NSQ's: `listen (<address>) failed - <reason>`."""


def split(address: str) -> tuple[str, int] | None:
    """Split `host:port` or `[host]:port`; None: it is the path of a unix socket."""
    host, _, port = address.rpartition(":")
    number = port_of(port)
    if number is None or port == address:
        return None
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], number
    return None if ":" in host or "/" in host else (host, number)


def join(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def peer_host(peer: object) -> str:
    """Return a peer's IP address; empty for a unix socket.

    An IPv4 client of an IPv6 socket has an address such as `::ffff:10.0.0.1`: its IPv4 address.
    """
    host = str(peer[0]) if isinstance(peer, tuple) and len(peer) >= 2 else ""
    return host.removeprefix("::ffff:") if "." in host else host


def peer_text(peer: object) -> str:
    """Format a peer's address as NSQ prints it; empty for a unix socket."""
    host = peer_host(peer)
    return join(host, cast("tuple[str, int]", peer)[1]) if host else ""


class Listener:
    """A bound socket, and its server once there is one.

    `port` is the port actually bound, -1 for a unix socket; `text` is the address as a text.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._server: asyncio.AbstractServer | None = None
        name = sock.getsockname()
        self._path = str(name) if sock.family == socket.AF_UNIX else ""
        self.port = -1 if self._path else int(name[1])
        self.text = self._path or peer_text(name)

    async def serve(
        self, factory: Callable[[], asyncio.BaseProtocol], tls: ssl.SSLContext | None = None
    ) -> None:
        """Accept connections, each with its own protocol from `factory`; with `tls`, over TLS.

        Raises:
            ListenError: another process listens at the address.
        """
        # Imported here, because sockets are bound before the event loop's modules are loaded.
        loop: asyncio.AbstractEventLoop = import_module("asyncio").get_running_loop()
        listen_on = loop.create_unix_server if self._path else loop.create_server
        try:
            self._sock.listen(BACKLOG)  # uvloop would only log an error
        except OSError as error:  # another process, which was starting, too, listens by now
            raise ListenError(_failed(self.text, error)) from error
        secure: dict[str, Any] = {}
        if tls is not None:
            secure = {
                "ssl": tls,
                "ssl_handshake_timeout": HANDSHAKE_SECONDS,
                "ssl_shutdown_timeout": CLOSE_SECONDS,
            }
        self._server = await listen_on(factory, sock=self._sock, backlog=BACKLOG, **secure)

    def close(self) -> None:
        """Stop accepting connections; a unix socket's file is deleted."""
        if self._server is not None:
            self._server.close()
        self._sock.close()
        if self._path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)


def listen(address: str) -> Listener:
    """Bind a socket to listen at an address.

    Args:
        address: `host:port` (no host, `0.0.0.0` or `[::]`: every address of both IP families;
            port 0: a free one) or a unix socket's path. A socket file that no process listens on
            any more is replaced.
    Raises:
        ListenError: the address cannot be bound.
    """
    host_port = split(address)
    try:
        sock = _listen_unix(address) if host_port is None else _bind_tcp(*host_port)
    except OSError as error:
        raise ListenError(_failed(address, error)) from error
    except ValueError as error:  # a host with an empty label (UnicodeError), or a null character
        raise ListenError(f"listen ({address}) failed - invalid address") from error
    sock.setblocking(False)
    return Listener(sock)


def _failed(address: str, error: OSError) -> str:
    number = error.errno or 0
    reason = os.strerror(number).lower() if number > 0 else error.strerror or str(error)
    return f"listen ({address}) failed - {reason}"


def _bind_tcp(host: str, port: int) -> socket.socket:
    if host in _WILDCARDS:
        if socket.has_dualstack_ipv6():
            try:
                return _bound(socket.AF_INET6, "::", port)
            except OSError as error:
                if error.errno not in _NO_IPV6:
                    raise
        host = "0.0.0.0"  # a machine without IPv6
    # The first address only: with port 0, a socket for each address would get a port of its own.
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, where = found[0]
    return _bound(family, str(where[0]), port)


def _bound(family: int, host: str, port: int) -> socket.socket:
    sock = socket.socket(family)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


def _listen_unix(path: str) -> socket.socket:
    if not path:
        raise OSError("missing address")
    listener = socket.socket(socket.AF_UNIX)
    try:
        if _is_stale_socket(path):
            os.unlink(path)
        listener.bind(path)
        # At once: another daemon that starts would take a socket that does not listen for stale.
        listener.listen(BACKLOG)
    except (OSError, ValueError):
        listener.close()
        raise
    return listener


def _is_stale_socket(path: str) -> bool:
    """Whether the path is a socket file that no process listens on."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return False
    except FileNotFoundError:
        return False
    # The file outlives a process that was killed: only connecting shows whether one listens.
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
    return False
