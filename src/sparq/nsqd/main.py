"""The program `nsqd`: its command line, the data path that it holds, the sockets that listen.

All that can be wrong with a start is looked at here, before anything heavy is loaded (event loop,
arrays, HTTP): a mistake is told at once, and the ports are open within a tenth of a second.
`serving.serve` does the rest.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sparq.daemon import address, files
from sparq.log.disk import DiskError, File, RealDisk
from sparq.nsqd import checks
from sparq.nsqd.options import Options
from sparq.program import flags, lifecycle
from sparq.program import logging as log_lines
from sparq.program.version import version_line

if TYPE_CHECKING:
    from sparq.nsqd.tls import Tls

PROGRAM = "nsqd"

logger = logging.getLogger(__name__)


def lock(disk: RealDisk, data_path: Path) -> File:
    """Hold the data path against a second nsqd, also against Go's: both lock the folder itself.

    Raises:
        StartError: it cannot be held.
    """
    if not data_path.is_dir():
        reason = "not a directory" if data_path.exists() else "no such file or directory"
        raise lifecycle.StartError(f"failed to lock data-path: open {data_path}: {reason}")
    try:
        return disk.lock(str(data_path))
    except DiskError as error:
        if error.number in (errno.EACCES, errno.EPERM):
            raise lifecycle.StartError(
                f"failed to lock data-path: open {data_path}: {error.reason}"
                f" (nsqd runs as user {os.geteuid()}, which must be able to read and write it)"
            ) from error
        raise lifecycle.StartError(
            f"failed to lock data-path: cannot flock directory {data_path} - {error.reason}"
            " (possibly in use by another instance of nsqd)"
        ) from error


class Listeners(NamedTuple):
    """The listening sockets; None where the flags say that there is none."""

    tcp: address.Listener
    http: address.Listener | None
    https: address.Listener | None


def listen(options: Options, *, has_tls: bool = False) -> Listeners:
    """Open all listeners.

    Raises:
        StartError: an address cannot be had.
    """
    try:
        return Listeners(
            address.listen(options.tcp_address),
            address.listen(options.http_address) if options.http_address else None,
            address.listen(options.https_address) if has_tls and options.https_address else None,
        )
    except address.ListenError as error:
        raise lifecycle.StartError(str(error)) from error


class Beginning(NamedTuple):
    """What nsqd has before it loads the rest of itself; `certificates` is None without TLS."""

    data_path: Path
    share: files.Shares
    held: File
    certificates: Tls | None
    listeners: Listeners


def begin(options: Options) -> Beginning:
    """Hold the data path, check the options, listen: in NSQ's order.

    Raises:
        StartError: one of these cannot be done.
    """
    data_path = Path(options.data_path or ".").resolve()
    share = files.shares(files.raise_limit())
    held = lock(RealDisk(), data_path)
    certificates = checks.check(options, build_tls)
    listeners = listen(options, has_tls=certificates is not None)
    return Beginning(data_path, share, held, certificates, listeners)


def build_tls(options: Options) -> Tls | None:
    """What TLS needs, which is loaded only where the flags name a certificate.

    Raises:
        StartError: `failed to build TLS config - ...`
    """
    if not (options.tls_cert or options.tls_key):
        return None
    made: Tls = import_module("sparq.nsqd.tls").build(options)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    version = version_line(PROGRAM)
    options = flags.parse(Options, PROGRAM, version, words)
    log_lines.set_up(options.log_prefix, log_lines.chosen_level(options.log_level, options.verbose))
    logger.info("%s", version)
    os.umask(0o077)
    lifecycle.end_on_signals()
    try:
        beginning = begin(options)
    except lifecycle.StartError as error:
        lifecycle.say_why(PROGRAM, error)
        return 1
    serve = import_module("sparq.nsqd.serving").serve
    read_again = partial(flags.parse_again, Options, PROGRAM, words)
    return lifecycle.run(PROGRAM, lambda stop: serve(options, beginning, read_again, stop))
