"""The program `nsqd`: command line, lock on the data path, checks of the options, listeners.

Everything that can prevent a start is checked here; `serving.serve` does the rest. The options are
checked in NSQ's order and with NSQ's error texts, so that an operator who fixes one mistake gets
the next one as with NSQ (docs/daemons.md): after the lock, before the listeners are opened.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from sparq.daemon import address, files, start
from sparq.log.disk import DiskError, RealDisk, RealFile
from sparq.nsqd.options import NODE_IDS, NsqdOptions
from sparq.program.lifecycle import StartError

if TYPE_CHECKING:
    from sparq.nsqd.tls import Certificates


DEFLATE_LEVELS = range(1, 10)
AUTH_METHODS = ("post", "get")
RARELY_USED = ("numpy.ma", "ctypes", "encodings.ascii", "encodings.idna")
"""Modules that a library loads at the moment of need, when files may not be opened any more."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


def lock(disk: RealDisk, data_path: Path) -> RealFile:
    """Lock the data path against a second nsqd, including Go's: both lock the folder itself.

    Raises:
        StartError: the lock cannot be taken.
    """
    if not data_path.is_dir():
        reason = "not a directory" if data_path.exists() else "no such file or directory"
        raise StartError(f"failed to lock data-path: open {data_path}: {reason}")
    try:
        return disk.lock(str(data_path))
    except DiskError as error:
        if error.number in (errno.EACCES, errno.EPERM):
            raise StartError(
                f"failed to lock data-path: open {data_path}: {error.reason}"
                f" (nsqd runs as user {os.geteuid()}, which must be able to read and write it)"
            ) from error
        raise StartError(
            f"failed to lock data-path: cannot flock directory {data_path} - {error.reason}"
            " (possibly in use by another instance of nsqd)"
        ) from error


class Listeners(NamedTuple):
    """The listening sockets; None for a port that the flags turn off."""

    tcp: address.Listener
    http: address.Listener | None
    https: address.Listener | None


def listen(options: NsqdOptions, *, has_tls: bool = False) -> Listeners:
    """Open all listeners.

    Raises:
        ListenError: an address cannot be bound.
    """
    tcp, http = options.listen.tcp_address, options.listen.http_address
    https = options.listen.https if has_tls else ""
    return Listeners(
        address.listen(tcp),
        address.listen(http) if http else None,
        address.listen(https) if https else None,
    )


class EarlyResources(NamedTuple):
    """Resources acquired before the rest of nsqd is loaded; `certificates` is None without TLS."""

    data_path: Path
    share: files.FileShares
    held: RealFile
    certificates: Certificates | None
    listeners: Listeners


def begin(options: NsqdOptions) -> EarlyResources:
    """Lock the data path, check the options, then listen, in NSQ's order.

    Raises:
        StartError: one of these steps failed.
    """
    os.umask(0o077)
    data_path = Path(options.data_path or ".").resolve()
    share = files.shares(files.raise_limit())
    held = lock(RealDisk(), data_path)
    certificates = check(options, build_tls)
    listeners = listen(options, has_tls=certificates is not None)
    return EarlyResources(data_path, share, held, certificates, listeners)


def check(options: NsqdOptions, build_tls: Callable[[NsqdOptions], T | None]) -> T | None:
    """Refuse options that nsqd cannot run with.

    Args:
        options: the options from the command line and the configuration file.
        build_tls: loads the certificates that the options name; returns None if they name none;
            raises StartError, `failed to build TLS config - ...`.
    Returns:
        The result of `build_tls`.
    Raises:
        StartError: the first mistake found.
    """
    if options.broker.limits.max_deflate_level not in DEFLATE_LEVELS:
        raise StartError("--max-deflate-level must be [1,9]")
    if options.node_id is not None and options.node_id not in range(NODE_IDS):
        raise StartError(f"--node-id must be [0,{NODE_IDS})")
    tls = build_tls(options)
    if tls is None and options.tls.required != "false":
        raise StartError("cannot require TLS client connections without TLS key and cert")
    if options.auth.http_request_method not in AUTH_METHODS:
        raise StartError("--auth-http-request-method must be post or get")
    for value in options.broker.e2e_percentiles:
        if not 0 < value <= 1:
            text = repr(value).removesuffix(".0")
            raise StartError(f"invalid E2E processing latency percentile: {text}")
    check_root_ca(options)
    check_tokens(options)
    return tls


def check_root_ca(options: NsqdOptions) -> None:
    """Refuse a root CA file that cannot be opened, at the start and not at the first use of TLS.

    NSQ starts without an error or a warning, unless a certificate is configured, too.
    """
    path = options.tls.root_ca_file
    if not path:
        return
    try:
        with open(path, "rb"):
            return
    except OSError as error:
        sentence = f"--tls-root-ca-file={path}: {(error.strerror or str(error)).lower()}"
    if not options.go_compatible:
        raise StartError(sentence)
    logger.warning("%s (ignored because of --go-compatible)", sentence)


def check_tokens(options: NsqdOptions) -> None:
    """Refuse an invalid token file: a start without it would give every client access."""
    path = options.access.token_file
    if not path:
        return
    try:
        import_module("sparq.daemon.access.tokens").read(path)
    except ValueError as error:
        raise StartError(f"--token-file: {error}") from None


def build_tls(options: NsqdOptions) -> Certificates | None:
    """Load the certificates; the TLS module is imported only if the flags name a certificate.

    Raises:
        StartError: `failed to build TLS config - ...`
    """
    if not (options.tls.cert or options.tls.key):
        return None
    made: Certificates = import_module("sparq.nsqd.tls").build(options)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status."""
    return start.main("nsqd", NsqdOptions, begin, "sparq.nsqd.serving", arguments)
