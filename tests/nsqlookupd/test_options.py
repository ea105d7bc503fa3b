"""nsqlookupd's flags have NSQ's names and defaults."""

import socket

from sparq.daemon.options import LoggingOptions
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.program.flags import parse
from tests.support import log_flags

SECOND = 1_000_000_000
ONLY_IN_SPARQ = {
    *("allow-broadcast-address", "debug-routes", "http-request-timeout", "http-token"),
    *("audit-file", "token-file", "require-token"),
    *("max-connections", "max-connections-per-address", "max-names", "max-registrations"),
    *("go-compatible", *log_flags.NAMES),
}


def test_the_defaults_are_those_of_nsq() -> None:
    """The defaults are ports 4160 and 4161, and timeouts of 300 s and 45 s."""
    assert parse(NsqlookupdOptions, "nsqlookupd", []) == NsqlookupdOptions(
        tcp_address="0.0.0.0:4160",
        http_address="0.0.0.0:4161",
        broadcast_address=socket.gethostname(),
        inactive_producer_timeout_ns=300 * SECOND,
        tombstone_lifetime_ns=45 * SECOND,
        log=LoggingOptions(level=20, prefix="[nsqlookupd] ", verbose=False),
    )
