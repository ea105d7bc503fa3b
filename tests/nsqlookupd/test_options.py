"""nsqlookupd's flags have NSQ's names and defaults."""

import socket
from pathlib import Path

import pytest

from sparq.daemon.options import LoggingOptions
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.options.declare import flags_of
from sparq.program.flags import parse

SECOND = 1_000_000_000
ONLY_IN_SPARQ = {
    *("allow-broadcast-address", "debug-routes", "http-request-timeout", "http-token"),
    *("audit-file", "token-file", "require-token"),
    *("max-connections", "max-connections-per-address", "max-names", "max-registrations"),
    *("go-compatible", "log-format", "log-utc", "log-repeats"),
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


@pytest.mark.behaviour("nsqlookupd.TestConfigFlagParsing")
def test_flags_and_keys_have_nsqs_names(tmp_path: Path) -> None:
    """Flags have NSQ's names, and keys in the file the same names with underscores."""
    flags = {flag.name: flag.key for flag in flags_of(NsqlookupdOptions)}
    nsqs = {name: key for name, key in flags.items() if name not in ONLY_IN_SPARQ}
    assert list(nsqs) == [
        "broadcast-address",
        "http-address",
        "inactive-producer-timeout",
        "log-level",
        "log-prefix",
        "tcp-address",
        "tombstone-lifetime",
        "verbose",
    ]
    assert all(key == name.replace("-", "_") for name, key in nsqs.items())
    config = tmp_path / "c.toml"
    config.write_text('inactive_producer_timeout = "1m"\nlog_level = "debug"\n')
    options = parse(NsqlookupdOptions, "nsqlookupd", [f"-config={config}", "-log-level=warn"])
    assert (options.inactive_producer_timeout_ns, options.log.level) == (60 * SECOND, 30)
