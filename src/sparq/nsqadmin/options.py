"""nsqadmin's options: one field per flag, with NSQ's names and defaults (docs/nsqadmin.md).

Durations are in nanoseconds, and their field names say so. `check` finds options that contradict
each other, when the program starts and again at SIGHUP.
"""

from __future__ import annotations

import posixpath
import socket
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from sparq.daemon.options import LoggingOptions, go_compatible
from sparq.options.declare import group, option
from sparq.options.kinds import LISTEN
from sparq.options.units import MILLISECOND, SECOND
from sparq.program.lifecycle import StartError


@dataclass(frozen=True, slots=True)
class NsqdStatsdOptions:
    """The values of nsqd's statsd flags; nsqadmin's flags also begin with `statsd-`."""

    prefix: str = option("nsq.%s", "value of the nsqds' --statsd-prefix; %s: host and port")
    interval_ns: int = option(60 * SECOND, "value of the nsqds' --statsd-interval", least=SECOND)


@dataclass(frozen=True, slots=True)
class NsqadminOptions:
    """All options of nsqadmin."""

    # The cluster
    lookupd_http_addresses: tuple[str, ...] = option(
        (),
        "HTTP address of an nsqlookupd: host:port",
        name="lookupd-http-address",
        key="nsqlookupd_http_addresses",
        live="lookupds",
    )
    nsqd_http_addresses: tuple[str, ...] = option(
        (),
        "HTTP address of an nsqd, for clusters without nsqlookupd: host:port",
        name="nsqd-http-address",
        key="nsqd_http_addresses",
    )
    allowed_nodes: tuple[str, ...] = option(
        (),
        "allowed address of nsqds listed by nsqlookupd: IP address, network, host name or"
        " *.domain; default: all except link-local, multicast and unspecified addresses, ports of"
        " other services, and loopback unless an nsqlookupd runs on this machine",
        name="allow-node-address",
        key="allow_node_addresses",
    )
    upstream_token: str = option(
        "",
        "bearer token sent to nsqds and nsqlookupds (their --http-token); @FILE: read it from FILE",
    )
    http_client_connect_timeout_ns: int = option(
        2 * SECOND, "timeout for connecting to an nsqd or nsqlookupd", least=MILLISECOND
    )
    http_client_request_timeout_ns: int = option(
        5 * SECOND, "timeout for a request to an nsqd or nsqlookupd", least=MILLISECOND
    )
    http_client_tls_insecure_skip_verify: bool = option(
        False, "do not verify the certificates of nsqds over HTTPS"
    )
    http_client_tls_root_ca_file: str = option(
        "",
        "file of CA certificates for verifying nsqds over HTTPS; empty: the system's",
    )
    http_client_tls_cert: str = option("", "client certificate file for HTTPS to nsqds")
    http_client_tls_key: str = option("", "key file of the client certificate")

    # HTTP server
    http_address: str = option(
        "0.0.0.0:4171", "address for HTTP: host:port or a unix socket's path", kind=LISTEN
    )
    base_path: str = option("/", "URL path prefix of all pages")
    dev_static_dir: str = option("", "folder to serve static files from, for developing them")
    http_request_timeout_ns: int = option(
        30 * SECOND,
        "time limit for the head of an HTTP request, and again for its body (0: 75s for the head,"
        " 60s between two pieces of the body)",
        least=0,
    )
    http_connections: int = option(
        0,
        "maximum number of connections; 0: as many as the open-file limit allows",
        least=0,
    )

    # Access control
    admin_users: tuple[str, ...] = option(
        (),
        "user (in the ACL header) with the role administer; if none is set, requests from this"
        " machine may administer and others may read",
        name="admin-user",
        key="admin_users",
        live="rights",
    )
    acl_http_header: str = option(
        "X-Forwarded-User", "header in which a trusted proxy names the user", live="rights"
    )
    allow_config_from_cidr: str = option(
        "127.0.0.1/8",
        "network that may read and change /config; empty: the role administer is required instead",
        live="rights",
    )
    trusted_proxies: tuple[str, ...] = option(
        (),
        "network or IP address of a proxy whose user and X-Forwarded-For headers are trusted;"
        " default: 127.0.0.0/8 and ::1; none: no proxy",
        name="trusted-proxy",
        key="trusted_proxies",
        live="rights",
    )
    roles: tuple[str, ...] = option(
        (),
        "USER=ROLE[,ROLE]: roles of a user in the ACL header: read, bodies, operate, administer",
        name="role",
        key="roles",
        live="rights",
    )
    token_file: str = option(
        "",
        "file of bearer tokens, one per line: NAME ROLES SHA256 [EXPIRES]; read again at SIGHUP",
        live="rights",
    )
    local_role: str = option(
        "",
        "roles of requests from this machine without a user or token, or the word `none`; if empty:"
        " administer,bodies,publish unless --admin-user, --role or --token-file is set",
        live="rights",
    )
    default_role: str = option(
        "read", "roles that every request has, or the word `none`", live="rights"
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        "additional host name accepted in Host and Origin: name, name:port, *.domain, or * for any",
        name="allowed-host",
        key="allowed_hosts",
        live="rights",
    )
    audit_log: str = option(
        "", "audit log file (JSON lines); empty: keep the last 1,000 actions in memory"
    )
    audit_topic: str = option("", "topic to publish each audit entry to")
    notification_http_endpoint: str = option("", "URL to which each action is sent by POST")

    # Graphite
    graphite_url: str = option("", "URL of graphite; empty: none")
    proxy_graphite: bool = option(False, "proxy graphite's images through nsqadmin")
    statsd_counter_format: str = option(
        "stats.counters.%s.count", "statsd's name of a counter; %s: its key"
    )
    statsd_gauge_format: str = option("stats.gauges.%s", "statsd's name of a gauge; %s: its key")
    statsd: NsqdStatsdOptions = group(NsqdStatsdOptions, "statsd-")

    # Start and logging
    go_compatible: bool = go_compatible("nsqadmin")
    log: LoggingOptions = group(lambda: LoggingOptions(prefix="[nsqadmin] "), "log-")


Resolve = Callable[[str, int], object]


def check(options: NsqadminOptions, resolve: Resolve = socket.getaddrinfo) -> None:
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
        raise StartError(f"--http-client-tls-{missing} is missing: set both certificate and key")
    for flag, url in (
        ("--graphite-url", options.graphite_url),
        ("--notification-http-endpoint", options.notification_http_endpoint),
    ):
        _check_url(flag, url)


def base_of(options: NsqadminOptions) -> str:
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
        raise StartError(f"{flag}={address} is not an address: write host:port")
    try:
        resolve(host, port or 0)
    except (OSError, UnicodeError) as error:
        reason = str(getattr(error, "strerror", None) or "not a host name").lower()
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
        raise StartError(f"failed to parse {flag}='{url}' - use an http:// or https:// URL")
