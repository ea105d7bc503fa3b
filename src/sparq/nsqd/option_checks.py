"""Checks of nsqd's options at the start, in NSQ's order and with NSQ's error texts.

1. An operator who fixes one mistake gets the next one in the same order as with NSQ
   (docs/daemons.md).
2. The data path is locked before these checks, and the listeners are opened after them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import TypeVar

from sparq.nsqd.options import NODE_IDS, NsqdOptions
from sparq.program.lifecycle import StartError

DEFLATE_LEVELS = range(1, 10)
AUTH_METHODS = ("post", "get")

T = TypeVar("T")

logger = logging.getLogger(__name__)


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
