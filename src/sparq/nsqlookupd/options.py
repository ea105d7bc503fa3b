"""nsqlookupd's options: one field a flag, with NSQ's names and defaults (reference: flags.md).

Durations are nanoseconds, and their field names say so.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from sparq.daemon.durations import SECOND
from sparq.daemon.flags import option
from sparq.daemon.kinds import BOOL, DURATION, LEVEL, STRING
from sparq.daemon.logging import LEVELS


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that nsqlookupd can be told."""

    tcp_address: str = option(
        "0.0.0.0:4160", "address for nsqds: host:port or a unix socket's path", kind=STRING
    )
    http_address: str = option(
        "0.0.0.0:4161", "address for HTTP: host:port or a unix socket's path", kind=STRING
    )
    broadcast_address: str = option(
        socket.gethostname, "address of this nsqlookupd that nsqds are told", kind=STRING
    )
    inactive_producer_timeout_ns: int = option(
        300 * SECOND,
        "an nsqd that has said nothing for so long is no longer listed",
        kind=DURATION,
        name="inactive-producer-timeout",
    )
    tombstone_lifetime_ns: int = option(
        45 * SECOND,
        "how long a tombstoned nsqd stays hidden from a topic's consumers",
        kind=DURATION,
        name="tombstone-lifetime",
    )
    log_level: int = option(LEVELS["info"], "debug, info, warn, error or fatal", kind=LEVEL)
    log_prefix: str = option("[nsqlookupd] ", "text before each log line", kind=STRING)
    verbose: bool = option(False, "deprecated: the same as --log-level=debug", kind=BOOL)
