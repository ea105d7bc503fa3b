"""nsqlookupd's options: one field a flag, with NSQ's names and defaults (reference: flags.md).

Durations are nanoseconds, and their field names say so.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from sparq.program.flags import option
from sparq.program.kinds import BOOL, DURATION, INT, LEVEL, LISTEN, STRING
from sparq.program.logging import LEVELS
from sparq.protocol.durations import MILLISECOND, SECOND


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that nsqlookupd can be told."""

    tcp_address: str = option(
        "0.0.0.0:4160", "address for nsqds: host:port or a unix socket's path", kind=LISTEN
    )
    http_address: str = option(
        "0.0.0.0:4161", "address for HTTP: host:port or a unix socket's path", kind=LISTEN
    )
    broadcast_address: str = option(
        socket.gethostname, "address of this nsqlookupd that nsqds are told", kind=STRING
    )
    inactive_producer_timeout_ns: int = option(
        300 * SECOND,
        "an nsqd that has said nothing for so long is no longer listed",
        kind=DURATION,
        name="inactive-producer-timeout",
        least=MILLISECOND,
    )
    tombstone_lifetime_ns: int = option(
        45 * SECOND,
        "how long a tombstoned nsqd stays hidden from a topic's consumers",
        kind=DURATION,
        name="tombstone-lifetime",
        least=0,
    )
    # What it allows
    allow_broadcast_addresses: tuple[str, ...] = option(
        (),
        "broadcast address that an nsqd may have: peer (the IP address that it connects from), an"
        " IP address, a network, a host name, or *.domain; without the flag any",
        kind=STRING,
        name="allow-broadcast-address",
        key="allow_broadcast_addresses",
    )
    max_connections: int = option(
        0, "nsqds that may be connected at a time; 0: any number, here and below", kind=INT, least=0
    )
    max_connections_per_address: int = option(
        0, "of these, how many from one IP address", kind=INT, least=0
    )
    # NSQ has no bound.
    max_registrations: int = option(
        1_000_000, "topics and channels that one nsqd may register", kind=INT, least=0
    )
    max_names: int = option(
        0, "topics and channels that nsqds may make known in all", kind=INT, least=0
    )
    http_request_timeout_ns: int = option(
        0,
        "time that the head of an HTTP request, and then its body, may take; 0: 75s for the head,"
        " 60s between two pieces of the body",
        kind=DURATION,
        name="http-request-timeout",
        least=0,
    )
    http_token: str = option(
        "",
        "bearer token that requests over HTTP must show to change something or to look inside;"
        " @FILE: the one in this file; empty: nobody is asked",
        kind=STRING,
    )
    debug_routes: bool = option(True, "answer /debug over HTTP", kind=BOOL)

    # How it starts, and what it says
    go_compatible: bool = option(
        False,
        "start wherever Go's nsqlookupd starts: mistakes that it passes over are logged as"
        " warnings",
        kind=BOOL,
    )
    log_level: int = option(LEVELS["info"], "debug, info, warn, error or fatal", kind=LEVEL)
    log_prefix: str = option("[nsqlookupd] ", "text before each log line", kind=STRING)
    verbose: bool = option(False, "deprecated: the same as --log-level=debug", kind=BOOL)
