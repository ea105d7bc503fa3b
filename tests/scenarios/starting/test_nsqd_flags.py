"""Every flag of nsqd has its effect.

The checks are in tests/scenarios/starting/effects, by theme. A flag without an effect in sparq is
accepted, and `--help` says so.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparq.nsqd.options import NsqdOptions
from sparq.options.declare import flags_of
from tests.scenarios.overload import test_low_rates
from tests.scenarios.starting.effects import known, limits, listeners, statsd, storage, strict, wire
from tests.support import log_flags
from tests.support.flag_rows import FlagDaemons, Row, each_row, flag_daemons

GROUPS = {
    **{**wire.GROUPS, **storage.GROUPS, **listeners.GROUPS, **statsd.GROUPS},
    **{**limits.GROUPS, **strict.GROUPS, **known.GROUPS},
}

NSQS = """
version config log-level log-prefix verbose node-id worker-id tcp-address http-address
https-address broadcast-address broadcast-tcp-port broadcast-http-port lookupd-tcp-address
auth-http-address auth-http-request-method http-client-connect-timeout http-client-request-timeout
topology-region topology-zone data-path mem-queue-size max-bytes-per-file sync-every sync-timeout
queue-scan-worker-pool-max queue-scan-selection-count msg-timeout max-msg-timeout max-msg-size
max-req-timeout max-body-size max-heartbeat-interval max-rdy-count max-output-buffer-size
max-output-buffer-timeout min-output-buffer-timeout output-buffer-timeout max-channel-consumers
statsd-address statsd-interval statsd-mem-stats statsd-prefix statsd-udp-packet-size
statsd-exclude-ephemeral e2e-processing-latency-percentile e2e-processing-latency-window-time
tls-cert tls-key tls-client-auth-policy tls-root-ca-file tls-required tls-min-version deflate
max-deflate-level snappy enable-experiment
"""
"""The flags of NSQ's nsqd (docs/daemons.md); the first two have tests in tests/daemon."""

OURS = {
    *("requeue-on-disconnect", "retention-bytes", "retention-time"),
    "max-attempts",
    *("max-topic-messages", "drop-oldest", "max-publish-rate", "max-client-publish-rate"),
    *("max-channel-lag-bytes", "max-channel-lag-time", "message-ttl"),
    *("max-topics", "max-channels", "max-topic-bytes", "max-connections"),
    *("go-compatible", "http-token", "debug-routes", "max-line-size", "first-command-timeout"),
    *("min-receive-rate", "http-request-timeout", "require-heartbeats", "strict-identify"),
    *("policies", "token-file", "audit-file", "lookupd-token"),
    *log_flags.NAMES,
}


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlagDaemons]:
    """The daemons that get the rows' flags."""
    folder = tmp_path_factory.mktemp("nsqd")
    with (
        flag_daemons("sparq.nsqd", folder, GROUPS) as running,
        listeners.neighbours(running, folder),
        limits.neighbours(running, folder),
        known.neighbours(running, folder),
        statsd.neighbours(running),
    ):
        yield running


@pytest.mark.behaviour("nsqd.TestConfigFlagParsing")
@each_row(GROUPS)
def test_a_flag_has_its_effect(daemons: FlagDaemons, group: str, row: Row) -> None:
    """A flag has its effect in a running daemon."""
    row.check(daemons.server(group))


def test_no_flag_is_missing() -> None:
    """Every flag, NSQ's and sparq's, has a row; those of a topic are in `test_low_rates`."""
    ours = {flag.name for flag in flags_of(NsqdOptions)}
    assert ours | {"version", "config"} == set(NSQS.split()) | OURS
    settings = {name.replace("_", "-") for name in test_low_rates.CASES}
    assert ours == settings | {row.flag for rows in GROUPS.values() for row in rows}
