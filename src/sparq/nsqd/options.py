"""nsqd's options: one field per flag, with NSQ's names and defaults (docs/daemons.md).

Each group holds the options of one part of nsqd. Limits for clients and the broker are declared in
`options.limits.IdentifyLimits` and `broker.options.BrokerOptions`. If a default differs from
NSQ's, a comment next to it gives the reason. Durations are in nanoseconds.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from sparq.broker.options import BrokerOptions
from sparq.daemon.options import HOST, AccessOptions, HttpOptions, LoggingOptions, go_compatible
from sparq.options.declare import group, option
from sparq.options.kinds import (
    LISTEN,
    PEER,
    PORT_MAX,
    TLS_REQUIRED,
    TLS_VERSION,
    TLS_VERSION_DEFAULT,
    choice,
)
from sparq.options.units import MILLISECOND, SECOND

if TYPE_CHECKING:
    import aiohttp

NODE_IDS = 1024
"""Number of node ids: a message id has 10 bits for the node."""

HTTPS_PORT = 4152
HTTPS_ADDRESS = f"<host of --http-address>:{HTTPS_PORT}"
"""The default of `--https-address`. Go's is 0.0.0.0:4152, also if plain HTTP is not public."""

TOPOLOGY = "topology-aware-consumption"
REQUIRE, REQUIRE_VERIFY = "require", "require-verify"


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """Addresses that nsqd listens on."""

    tcp_address: str = option(
        "0.0.0.0:4150", "address for TCP clients: host:port or a unix socket's path", kind=LISTEN
    )
    http_address: str = option(
        "0.0.0.0:4151",
        "address for HTTP: host:port or a unix socket's path; empty: none",
        kind=LISTEN,
    )
    https_address: str = option(
        HTTPS_ADDRESS,
        "address for HTTPS: host:port or a unix socket's path; empty: none; used only with"
        " --tls-cert",
        kind=LISTEN,
    )

    @property
    def https(self) -> str:
        """Where HTTPS listens; by default on HTTP's host, so that TLS opens no further network."""
        if self.https_address != HTTPS_ADDRESS:
            return self.https_address
        host, colon, _ = self.http_address.rpartition(":")
        return f"{host}:{HTTPS_PORT}" if colon else f"127.0.0.1:{HTTPS_PORT}"


@dataclass(frozen=True, slots=True)
class LookupdOptions:
    """The nsqlookupds to register with, and the addresses reported to them."""

    tcp_addresses: tuple[str, ...] = option(
        (),
        "TCP address of an nsqlookupd",
        kind=PEER,
        name="lookupd-tcp-address",
        key="nsqlookupd_tcp_addresses",
        live="lookupds",
    )
    token: str = option(
        "",
        "token sent to nsqlookupds (for their --require-token); @FILE: read it from this file",
        name="lookupd-token",
        live="lookupd token",
        secret=True,
    )
    broadcast_address: str = option(
        socket.gethostname, "address of this nsqd that nsqlookupd gives to clients", kind=HOST
    )
    broadcast_tcp_port: int = option(
        0, "TCP port advertised to nsqlookupd (0: the port it listens on)", least=0, most=PORT_MAX
    )
    broadcast_http_port: int = option(
        0, "HTTP port advertised to nsqlookupd (0: the port it listens on)", least=0, most=PORT_MAX
    )


@dataclass(frozen=True, slots=True)
class HttpClientOptions:
    """Timeouts of nsqd's own HTTP requests. Flags that begin with `http-client-`."""

    connect_timeout_ns: int = option(
        2 * SECOND,
        "time limit for connecting to an authd or an nsqlookupd's HTTP port (0: no limit)",
        least=0,
    )
    request_timeout_ns: int = option(
        5 * SECOND,
        "time limit for a request to an authd or an nsqlookupd's HTTP port (0: no limit)",
        least=0,
    )


@dataclass(frozen=True, slots=True)
class TcpOptions:
    """Limits on TCP connections: their number, and how slow a client may be."""

    max_connections: int = option(
        0, "maximum number of TCP connections (0: only the limit on open files)", least=0
    )
    first_command_timeout_ns: int = option(
        0,
        "time limit for a client's first command (0: only 60s for its first four bytes)",
        least=0,
    )
    min_receive_rate: int = option(
        0,
        "minimum bytes per second while a command is incomplete, averaged over 5s (0: no limit)",
        least=0,
    )


@dataclass(frozen=True, slots=True)
class AuthOptions:
    """The authds that decide what a client may do. Flags that begin with `auth-`."""

    http_addresses: tuple[str, ...] = option(
        (),
        "host:port or URL of an authd; if set, clients must send AUTH",
        name="auth-http-address",
        key="auth_http_addresses",
    )
    http_request_method: str = option("get", "HTTP method for requests to authds: get or post")


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """TLS for TCP and HTTPS clients. Flags that begin with `tls-`."""

    cert: str = option("", "certificate file", live="certificates")
    key: str = option("", "the certificate's key file", live="certificates")
    client_auth_policy: str = option(
        "",
        "client certificates: require (any certificate), require-verify (signed by"
        " --tls-root-ca-file), or empty (none requested)",
        kind=choice("", REQUIRE, REQUIRE_VERIFY),
    )
    root_ca_file: str = option(
        "", "CA file to verify client certificates and authds", live="root CA"
    )
    required: str = option(
        "false",
        "refuse clients without TLS: true, false, or tcp-https (plain HTTP stays allowed)",
        kind=TLS_REQUIRED,
    )
    # NSQ: tls1.0. Versions before 1.2 are broken; they must be enabled with the flag.
    min_version: str = option(
        TLS_VERSION_DEFAULT,
        "oldest TLS version accepted: tls1.0, tls1.1, tls1.2 or tls1.3",
        kind=TLS_VERSION,
    )

    def __post_init__(self) -> None:
        """Require TLS if there is a policy for client certificates, as NSQ does."""
        if self.client_auth_policy and self.required == "false":
            object.__setattr__(self, "required", "true")


@dataclass(frozen=True, slots=True)
class StatsdOptions:
    """Reports to a statsd. Flags that begin with `statsd-`."""

    address: str = option("", "host:port of a statsd (UDP); empty: none", kind=PEER)
    interval_ns: int = option(60 * SECOND, "time between two reports to statsd", least=MILLISECOND)
    mem_stats: bool = option(True, "report memory figures to statsd")
    prefix: str = option(
        "nsq.%s", "prefix of statsd names; %s is replaced by the broadcast address and HTTP port"
    )
    udp_packet_size: int = option(508, "maximum bytes of a statsd packet", least=1)
    exclude_ephemeral: bool = option(
        False, "do not report #ephemeral topics and channels to statsd"
    )


@dataclass(frozen=True, slots=True)
class NsqdOptions:
    """All options of nsqd."""

    listen: ListenOptions = group(ListenOptions)
    lookupd: LookupdOptions = group(LookupdOptions)
    http_client: HttpClientOptions = group(HttpClientOptions, "http-client-")
    tcp: TcpOptions = group(TcpOptions)
    http: HttpOptions = group(HttpOptions, "http-")
    access: AccessOptions = group(AccessOptions)
    auth: AuthOptions = group(AuthOptions, "auth-")
    tls: TlsOptions = group(TlsOptions, "tls-")
    statsd: StatsdOptions = group(StatsdOptions, "statsd-")
    broker: BrokerOptions = group(BrokerOptions)
    log: LoggingOptions = group(lambda: LoggingOptions(prefix="[nsqd] "), "log-")
    data_path: str = option("", "folder of the message logs (empty: the working directory)")
    node_id: int | None = option(
        None,
        "number of this nsqd in message ids, [0,1024); default: a hash of host name, data path and"
        " TCP address",
        key="id",
    )
    policies: str = option(
        "", "TOML file with settings for topics and channels by name pattern", live="policies"
    )
    enable_experiment: tuple[str, ...] = option(
        (), "enable an experiment: topology-aware-consumption", kind=choice(TOPOLOGY)
    )
    go_compatible: bool = go_compatible("nsqd")

    # Flags of NSQ without effect here
    worker_id: bool = option(False, "deprecated in NSQ, accepted and ignored")
    queue_scan_worker_pool_max: int = option(4, "accepted and ignored: sparq does not scan queues")
    queue_scan_selection_count: int = option(20, "accepted and ignored: sparq does not scan queues")


def http_timeouts(options: NsqdOptions) -> aiohttp.ClientTimeout:
    """Return the timeouts for nsqd's own HTTP requests."""
    made: aiohttp.ClientTimeout = import_module("aiohttp").ClientTimeout(
        total=options.http_client.request_timeout_ns / SECOND,
        sock_connect=options.http_client.connect_timeout_ns / SECOND,
    )
    return made


def default_node_id(options: NsqdOptions) -> int:
    """Return the node id for a new data path without `--node-id`.

    It is a hash of host name, data path and TCP address, so several nsqds on one host most likely
    differ. The data path stores it, because ids must not change when a flag does.
    """
    path = Path(options.data_path or ".").resolve()
    identity = f"{socket.gethostname()}\0{path}\0{options.listen.tcp_address}"
    digest = import_module("xxhash").xxh3_64_intdigest(identity.encode("utf-8", "surrogateescape"))
    return int(digest) % NODE_IDS
