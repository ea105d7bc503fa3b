"""What nsqd refuses to start with: NSQ's checks of its options, in NSQ's order, in NSQ's words.

1. An operator who fixes one thing is told of the next in the same order as with NSQ
   (reference: flags.md).
2. The data path is locked before, and the listeners are opened behind these checks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import TypeVar

from sparq.nsqd.options import NODE_IDS, Options
from sparq.program.lifecycle import StartError

DEFLATE_LEVELS = range(1, 10)
AUTH_METHODS = ("post", "get")

T = TypeVar("T")

logger = logging.getLogger(__name__)


def check(options: Options, build_tls: Callable[[Options], T | None]) -> T | None:
    """Refuse options that nsqd cannot run with.

    Args:
        options: what it is told.
        build_tls: makes what TLS needs from the certificates that the options name; None without
            any; raises StartError, `failed to build TLS config - ...`.
    Returns:
        What `build_tls` made.
    Raises:
        StartError: the first thing that is wrong.
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


def check_root_ca(options: Options) -> None:
    """Refuse a root CA that is not there: it would be missed only when TLS is first needed.

    NSQ starts without a word unless there is a certificate, too.
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


def check_tokens(options: Options) -> None:
    """Refuse a token file that is wrong: a start without it would let everybody in."""
    path = options.access.token_file
    if not path:
        return
    try:
        import_module("sparq.daemon.access.tokens").read(path)
    except ValueError as error:
        raise StartError(f"--token-file: {error}") from None
