"""The options of nsqadmin: NSQ's flags, and their values at `/config`."""

from __future__ import annotations

from typing import Any

import pytest

from sparq.nsqadmin.options import NsqadminOptions, base_of
from sparq.options.declare import flags_of
from tests.nsqadmin.cluster import admin, free_address

NSQS_FLAGS = {
    "log-level": 20,
    "log-prefix": "[nsqadmin] ",
    "verbose": False,
    "http-address": "0.0.0.0:4171",
    "base-path": "/",
    "dev-static-dir": "",
    "graphite-url": "",
    "proxy-graphite": False,
    "statsd-counter-format": "stats.counters.%s.count",
    "statsd-gauge-format": "stats.gauges.%s",
    "statsd-prefix": "nsq.%s",
    "statsd-interval": 60_000_000_000,
    "notification-http-endpoint": "",
    "http-client-connect-timeout": 2_000_000_000,
    "http-client-request-timeout": 5_000_000_000,
    "http-client-tls-insecure-skip-verify": False,
    "http-client-tls-root-ca-file": "",
    "http-client-tls-cert": "",
    "http-client-tls-key": "",
    "allow-config-from-cidr": "127.0.0.1/8",
    "acl-http-header": "X-Forwarded-User",
    "lookupd-http-address": (),
    "nsqd-http-address": (),
    "admin-user": (),
}
KEYS = {
    "lookupd-http-address": "nsqlookupd_http_addresses",
    "nsqd-http-address": "nsqd_http_addresses",
    "admin-user": "admin_users",
}


SHOWN: dict[str, Any] = {
    "log_level": 2,
    "http_client_request_timeout": 5_000_000_000,
    "proxy_graphite": False,
    "admin_users": [],
    "acl_http_header": "X-Forwarded-User",
    "base_path": "/",
    "graphite_url": "http://g.example/x",
    "notification_http_endpoint": "http://n.example/",
    "upstream_token": "***",
    "log_prefix": "[nsqadmin] ",
}


async def test_options_are_read() -> None:
    """/config returns texts as they are, other values as JSON, and hides secrets.

    It has every option under its key, except `verbose`, as in Go.
    """
    async with admin(
        lookupd_http_addresses=(free_address(),),
        graphite_url="http://me:secret@g.example/x?key=secret",
        notification_http_endpoint="http://me:secret@n.example/?key=secret",
        upstream_token="secret",
    ) as found:
        for option, value in SHOWN.items():
            assert (200, value) == await found.ask("GET", f"/config/{option}")
        for flag in flags_of(NsqadminOptions):
            status, _ = await found.ask("GET", f"/config/{flag.key}")
            assert (400 if flag.key == "verbose" else 200) == status, flag.key
        for name in ("nope", "verbose", "config", "version"):
            assert (400, {"message": "INVALID_OPTION"}) == await found.ask("GET", f"/config/{name}")


def test_nsqs_flags_exist() -> None:
    """NSQ's flags have NSQ's names, configuration keys and defaults."""
    flags = {flag.name: flag for flag in flags_of(NsqadminOptions)}

    for name, default in NSQS_FLAGS.items():
        assert default == flags[name].default, name
        assert KEYS.get(name, name.replace("-", "_")) == flags[name].key
        assert isinstance(default, tuple) is flags[name].repeated


@pytest.mark.parametrize(
    ("given", "base"),
    [("/", ""), ("", ""), ("a", "/a"), ("/a/", "/a"), ("//a//b/../c/", "/a/c"), ("/../..", "")],
)
def test_base_paths_are_cleaned(given: str, base: str) -> None:
    """As in NSQ, a base path has a leading slash and no trailing one."""
    assert base == base_of(NsqadminOptions(base_path=given))
