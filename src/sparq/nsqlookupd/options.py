"""nsqlookupd's options: one field per flag, with NSQ's names and defaults (docs/daemons.md).

Durations are in nanoseconds; their field names end in `_ns`.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from sparq.daemon.options import HOST, AccessOptions, HttpOptions, LoggingOptions, go_compatible
from sparq.options.declare import group, option
from sparq.options.kinds import LISTEN
from sparq.options.units import MILLISECOND, SECOND


@dataclass(frozen=True, slots=True)
class NsqlookupdOptions:
    """All options of nsqlookupd."""

    tcp_address: str = option(
        "0.0.0.0:4160", "address for nsqds: host:port or a unix socket's path", kind=LISTEN
    )
    http_address: str = option(
        "0.0.0.0:4161", "address for HTTP: host:port or a unix socket's path", kind=LISTEN
    )
    broadcast_address: str = option(socket.gethostname, "address advertised to nsqds", kind=HOST)
    inactive_producer_timeout_ns: int = option(
        300 * SECOND,
        "time without a message from an nsqd after which it is no longer listed",
        least=MILLISECOND,
    )
    tombstone_lifetime_ns: int = option(
        45 * SECOND, "time that a tombstone hides an nsqd from a topic's consumers", least=0
    )
    # Limits
    allow_broadcast_addresses: tuple[str, ...] = option(
        (),
        "allowed broadcast address of nsqds: peer (the IP address that the nsqd connects from), an"
        " IP address, a network, a host name, or *.domain; default: any",
        name="allow-broadcast-address",
        key="allow_broadcast_addresses",
    )
    max_connections: int = option(0, "maximum number of connected nsqds (0: unlimited)", least=0)
    max_connections_per_address: int = option(
        0, "maximum number of connected nsqds per IP address (0: unlimited)", least=0
    )
    # NSQ has no limit.
    max_registrations: int = option(
        1_000_000, "maximum number of topics and channels per nsqd (0: unlimited)", least=0
    )
    max_names: int = option(
        0, "maximum number of topics and channels of all nsqds together (0: unlimited)", least=0
    )
    require_token: bool = option(
        False,
        "require nsqds to send a token with the role register (nsqd's --lookupd-token)",
    )
    http: HttpOptions = group(HttpOptions, "http-")
    access: AccessOptions = group(AccessOptions)

    # Start and log
    go_compatible: bool = go_compatible("nsqlookupd")
    log: LoggingOptions = group(lambda: LoggingOptions(prefix="[nsqlookupd] "), "log-")
