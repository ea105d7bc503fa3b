"""The program `nsqd`: command line, lock on the data path, and listening sockets.

Everything that can prevent a start is checked here; `serving.serve` does the rest.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sparq.daemon import address, files, start
from sparq.log.disk import DiskError, RealDisk, RealFile
from sparq.nsqd import option_checks
from sparq.nsqd.options import NsqdOptions
from sparq.program.lifecycle import StartError

if TYPE_CHECKING:
    from sparq.nsqd.tls import Certificates


RARELY_USED = ("numpy.ma", "ctypes", "encodings.ascii", "encodings.idna")
"""Modules that a library loads at the moment of need, when files may not be opened any more."""


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
    certificates = option_checks.check(options, build_tls)
    listeners = listen(options, has_tls=certificates is not None)
    return EarlyResources(data_path, share, held, certificates, listeners)


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
