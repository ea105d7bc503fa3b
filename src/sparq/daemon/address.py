"""Addresses to listen on: `host:port`, or else the path of a unix socket, as NSQ tells them apart.

A listening socket is bound here, before any server is built around it, so that port 0 has one real
port (also where a host has several addresses) and a start that fails says why in NSQ's words.
"""

from __future__ import annotations

import os
import socket
import stat

BACKLOG = 1024
_PORTS = range(65536)


class ListenError(Exception):
    """A daemon cannot listen; the text is NSQ's: `listen (<address>) failed - <reason>`."""


def split(address: str) -> tuple[str, int] | None:
    """Host and port of `host:port` or `[host]:port`; None for the path of a unix socket."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port[:6]) not in _PORTS:
        return None
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port)
    return None if ":" in host or "/" in host else (host, int(port))


def join(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def peer_text(peer: object) -> str:
    """A socket's other end as NSQ prints it; empty for a unix socket."""
    if isinstance(peer, tuple) and len(peer) >= 2:
        return join(str(peer[0]), int(peer[1]))
    return ""


def port_of(listener: socket.socket) -> int:
    """The real port of a listening socket; -1 for a unix socket."""
    return -1 if listener.family == socket.AF_UNIX else int(listener.getsockname()[1])


def listen(address: str) -> socket.socket:
    """Open a listening socket.

    Args:
        address: `host:port` (no host: every address; port 0: a free one) or a unix socket's path.
            A socket file that nobody listens on any more is replaced.
    Raises:
        ListenError: it cannot be done.
    """
    host_port = split(address)
    try:
        listener = _listen_unix(address) if host_port is None else _listen_tcp(*host_port)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ListenError(f"listen ({address}) failed - {reason.lower()}") from error
    listener.setblocking(False)
    return listener


def close(listener: socket.socket) -> None:
    """Close a listening socket; a unix socket's file goes with it."""
    path = listener.getsockname() if listener.family == socket.AF_UNIX else ""
    listener.close()
    if path:
        _unlink(path)


def _listen_tcp(host: str, port: int) -> socket.socket:
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
        )
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, where = found[0]
    return socket.create_server((str(where[0]), port), family=family, backlog=BACKLOG)


def _listen_unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        if _is_left_over(path):
            _unlink(path)
        listener.bind(path)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _is_left_over(path: str) -> bool:
    """Whether a socket file lies there that no process answers at."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return False
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
    return False


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
