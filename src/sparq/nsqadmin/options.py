"""nsqadmin's options: one field per flag, with NSQ's names and defaults (reference: nsqadmin.md).

Durations are in nanoseconds, and their field names say so. `check` finds options that contradict
each other, when the program starts and again at SIGHUP.
"""

from __future__ import annotations

import posixpath
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from sparq.daemon.options import LogOptions, go_compatible
from sparq.program.kinds import LISTEN
from sparq.program.lifecycle import StartError
from sparq.protocol.durations import MILLISECOND, SECOND
from sparq.protocol.option import option


@dataclass(frozen=True, slots=True)
class StatsdOptions:
    """The values of nsqd's statsd flags; nsqadmin's flags also begin with `statsd-`."""

    prefix: str = option("nsq.%s", "the prefix of nsqd's --statsd-prefix; %s is its host")
    interval_ns: int = option(60 * SECOND, "the interval of nsqd's --statsd-interval", least=SECOND)


@dataclass(frozen=True, slots=True)
class Options:
    """All options of nsqadmin."""

    # The cluster
    lookupd_http_addresses: tuple[str, ...] = option(
        (),
        "address of an nsqlookupd for HTTP: host:port",
        name="lookupd-http-address",
        key="nsqlookupd_http_addresses",
        live="lookupds",
    )
    nsqd_http_addresses: tuple[str, ...] = option(
        (),
        "address of an nsqd for HTTP, if there is no nsqlookupd: host:port",
        name="nsqd-http-address",
        key="nsqd_http_addresses",
    )
    allowed_nodes: tuple[str, ...] = option(
        (),
        "address that an nsqd may have which nsqlookupd lists: an IP address, a network, a host"
        " name or *.domain; without the flag any but link-local, multicast and unspecified ones,"
        " ports of other services, and loopback while no nsqlookupd is on this machine",
        name="allow-node-address",
        key="allow_node_addresses",
    )
    upstream_token: str = option(
        "",
        "bearer token that nsqds and nsqlookupds are shown (their --http-token); @FILE: the one in"
        " this file",
    )
    http_client_connect_timeout_ns: int = option(
        2 * SECOND, "time for a connection to an nsqd or nsqlookupd", least=MILLISECOND
    )
    http_client_request_timeout_ns: int = option(
        5 * SECOND, "time for a request to an nsqd or nsqlookupd", least=MILLISECOND
    )
    http_client_tls_insecure_skip_verify: bool = option(
        False, "do not verify the certificates of nsqds asked over HTTPS"
    )
    http_client_tls_root_ca_file: str = option(
        "", "file of the authorities that sign the certificates of nsqds"
    )
    http_client_tls_cert: str = option("", "file of the certificate that nsqds are shown")
    http_client_tls_key: str = option("", "file of its key")

    # HTTP server
    http_address: str = option(
        "0.0.0.0:4171", "address for HTTP: host:port or a unix socket's path", kind=LISTEN
    )
    base_path: str = option("/", "path below which all pages are")
    dev_static_dir: str = option(
        "", "folder that static files are read from, for their development"
    )
    http_request_timeout_ns: int = option(
        30 * SECOND,
        "time that the head of an HTTP request, and then its body, may take; 0: 75s for the head,"
        " 60s between two pieces of the body",
        least=0,
    )
    http_connections: int = option(
        0, "connections at a time; 0: as many as the system has files for", least=0
    )

    # Access control
    admin_users: tuple[str, ...] = option(
        (),
        "user (in the ACL header) who may administer; without any, requests from this machine may,"
        " others read",
        name="admin-user",
        key="admin_users",
        live="rights",
    )
    acl_http_header: str = option(
        "X-Forwarded-User", "header in which a trusted proxy names the user", live="rights"
    )
    allow_config_from_cidr: str = option(
        "127.0.0.1/8",
        "network that may read and change /config; empty: whoever may administer",
        live="rights",
    )
    trusted_proxies: tuple[str, ...] = option(
        (),
        "network or IP address of a proxy whose user and X-Forwarded-For headers count; without the"
        " flag 127.0.0.0/8 and ::1; none: no proxy",
        name="trusted-proxy",
        key="trusted_proxies",
        live="rights",
    )
    roles: tuple[str, ...] = option(
        (),
        "USER=ROLE[,ROLE]: what a user of the ACL header may: read, bodies, operate, administer",
        name="role",
        key="roles",
        live="rights",
    )
    token_file: str = option(
        "",
        "file of bearer tokens: NAME ROLES SHA256 [EXPIRES] a line; read again at SIGHUP",
        live="rights",
    )
    local_role: str = option(
        "",
        "what requests from this machine may without user or token: roles, or none; empty:"
        " administer,bodies as long as no --admin-user, --role or --token-file is given",
        live="rights",
    )
    default_role: str = option("read", "what everybody else may: roles, or none", live="rights")
    allowed_hosts: tuple[str, ...] = option(
        (),
        "further host name in a browser's address bar that leads here: name, name:port, *.domain,"
        " or * for any",
        name="allowed-host",
        key="allowed_hosts",
        live="rights",
    )
    audit_log: str = option(
        "", "file for the audit log (JSON lines); empty: the last 1,000 actions in memory"
    )
    audit_topic: str = option("", "topic that each audit entry is published to")
    notification_http_endpoint: str = option("", "URL that each action is told to, by POST")

    # Graphite
    graphite_url: str = option("", "URL of graphite")
    proxy_graphite: bool = option(False, "have graphite's images pass through nsqadmin")
    statsd_counter_format: str = option(
        "stats.counters.%s.count", "how statsd names a counter; %s is its key"
    )
    statsd_gauge_format: str = option("stats.gauges.%s", "how statsd names a gauge; %s is its key")
    statsd: StatsdOptions = field(default_factory=StatsdOptions, metadata={"prefix": "statsd-"})

    # Start and logging
    go_compatible: bool = go_compatible("nsqadmin")
    log: LogOptions = field(
        default_factory=lambda: LogOptions(prefix="[nsqadmin] "), metadata={"prefix": "log-"}
    )


Resolve = Callable[[str, int], object]


def check(options: Options, resolve: Resolve = socket.getaddrinfo) -> None:
    """Check options against each other, as NSQ does at start.

    `resolve` looks up a host and raises OSError if it does not exist.

    Raises:
        StartError: options contradict each other, or an address or URL is invalid.
    """
    lookupds, nsqds = options.lookupd_http_addresses, options.nsqd_http_addresses
    if not lookupds and not nsqds:
        raise StartError("--nsqd-http-address or --lookupd-http-address required")
    if lookupds and nsqds:
        raise StartError("use --nsqd-http-address or --lookupd-http-address not both")
    for flag, addresses in (("lookupd", lookupds), ("nsqd", nsqds)):
        for address in addresses:
            _check_address(f"--{flag}-http-address", address, resolve)
    cert, key = options.http_client_tls_cert, options.http_client_tls_key
    if bool(cert) != bool(key):
        missing = "key" if cert else "cert"
        raise StartError(f"--http-client-tls-{missing} is missing: give certificate and key")
    for flag, url in (
        ("--graphite-url", options.graphite_url),
        ("--notification-http-endpoint", options.notification_http_endpoint),
    ):
        _check_url(flag, url)


def base_of(options: Options) -> str:
    """Prefix of every path: "" or `/a/b`."""
    cleaned = posixpath.normpath("/" + options.base_path.lstrip("/"))
    return "" if cleaned == "/" else cleaned


def _check_address(flag: str, address: str, resolve: Resolve) -> None:
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if parts.scheme not in ("", "http", "https") or not host or not (port or parts.scheme):
        raise StartError(f"{flag}={address} is no address: write host:port")
    try:
        resolve(host, port or 0)
    except (OSError, UnicodeError) as error:
        reason = str(getattr(error, "strerror", None) or "it is no host name").lower()
        raise StartError(f"failed to resolve {flag} ({address}) - {reason}") from None


def _check_url(flag: str, url: str) -> None:
    if not url:
        return
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise StartError(f"failed to parse {flag}='{url}' - it is no http:// or https:// URL")
