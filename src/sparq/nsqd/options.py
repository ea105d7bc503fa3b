"""nsqd's options: one field a flag, with NSQ's names and defaults (reference: flags.md).

Where the default differs from NSQ's, the reason stands beside it. Durations are nanoseconds.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from sparq.program.flags import option
from sparq.program.kinds import (
    BOOL,
    DURATION,
    FLOATS,
    INT,
    LEVEL,
    LISTEN,
    PEER,
    PORT_MAX,
    STRING,
    TLS_REQUIRED,
    TLS_VERSION,
    TLS_VERSION_DEFAULT,
    choice,
)
from sparq.program.logging import LEVELS
from sparq.protocol.durations import HOUR, MILLISECOND, MINUTE, SECOND

NODE_IDS = 1024
"""A message id has 10 bits for the node."""

TOPOLOGY = "topology-aware-consumption"
EXPERIMENT = choice(TOPOLOGY)
REQUIRE, REQUIRE_VERIFY = "require", "require-verify"
CLIENT_POLICY = choice("", REQUIRE, REQUIRE_VERIFY)


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that nsqd can be told."""

    # Where it listens, and how others find it
    tcp_address: str = option(
        "0.0.0.0:4150", "address for TCP clients: host:port or a unix socket's path", kind=LISTEN
    )
    http_address: str = option(
        "0.0.0.0:4151",
        "address for HTTP: host:port or a unix socket's path; empty: none",
        kind=LISTEN,
    )
    https_address: str = option(
        "0.0.0.0:4152",
        "address for HTTPS: host:port or a unix socket's path; only with a certificate",
        kind=LISTEN,
    )
    broadcast_address: str = option(
        socket.gethostname, "address that nsqlookupd tells the clients", kind=STRING
    )
    broadcast_tcp_port: int = option(
        0, "TCP port told to nsqlookupd; 0: the real one", kind=INT, least=0, most=PORT_MAX
    )
    broadcast_http_port: int = option(
        0, "HTTP port told to nsqlookupd; 0: the real one", kind=INT, least=0, most=PORT_MAX
    )
    lookupd_tcp_addresses: tuple[str, ...] = option(
        (),
        "TCP address of an nsqlookupd",
        kind=PEER,
        name="lookupd-tcp-address",
        key="nsqlookupd_tcp_addresses",
    )
    http_client_connect_timeout_ns: int = option(
        2 * SECOND,
        "how long a connection to an authd or an nsqlookupd's HTTP port may take",
        kind=DURATION,
        name="http-client-connect-timeout",
        least=0,
    )
    http_client_request_timeout_ns: int = option(
        5 * SECOND,
        "how long a request to an authd or an nsqlookupd's HTTP port may take",
        kind=DURATION,
        name="http-client-request-timeout",
        least=0,
    )
    topology_region: str = option("", "region told to clients and nsqlookupd", kind=STRING)
    topology_zone: str = option("", "zone told to clients and nsqlookupd", kind=STRING)

    # What it keeps
    data_path: str = option("", "folder of the logs; empty: the working folder", kind=STRING)
    node_id: int | None = option(
        None,
        "number of this nsqd in message ids, [0,1024); without it a hash of host name, data path"
        " and TCP address",
        kind=INT,
        key="id",
    )
    mem_queue_size: int = option(
        10000, "messages that a queue without a log (#ephemeral) holds", kind=INT, least=0
    )
    max_bytes_per_file: int = option(
        100 << 20, "size at which a log begins a new file", kind=INT, least=1
    )
    # NSQ: 2500. Here an OK means "on disk", unless told otherwise.
    sync_every: int = option(
        1, "sync to disk after so many messages; 1: before each OK", kind=INT, least=1
    )
    sync_timeout_ns: int = option(
        2 * SECOND,
        "sync to disk at least this often when there is something new",
        kind=DURATION,
        name="sync-timeout",
        least=MILLISECOND,
    )

    retention_bytes: int = option(
        0,
        "bytes of each log that stay for replay though all channels have finished them",
        kind=INT,
        least=0,
    )
    retention_time_ns: int = option(
        0,
        "how long messages stay for replay after their publish though all channels have finished"
        " them",
        kind=DURATION,
        name="retention-time",
        least=0,
    )
    max_channel_lag_bytes: int = option(
        0,
        "bytes of a log that a channel may have unread; beyond, whole files of its oldest are"
        " voided for it and counted; 0: any number",
        kind=INT,
        least=0,
    )
    max_channel_lag_time_ns: int = option(
        0,
        "how old a channel's unread messages may grow; older ones are voided for it, in whole"
        " files, and counted; 0: any age",
        kind=DURATION,
        name="max-channel-lag-time",
        least=0,
    )

    # What it allows
    msg_timeout_ns: int = option(
        60 * SECOND,
        "time that a consumer has for a message before it is queued again",
        kind=DURATION,
        name="msg-timeout",
        least=MILLISECOND,
        most="max_msg_timeout_ns",
    )
    max_msg_timeout_ns: int = option(
        15 * MINUTE,
        "longest message timeout",
        kind=DURATION,
        name="max-msg-timeout",
        least=MILLISECOND,
    )
    max_msg_size: int = option(1 << 20, "bytes that one message may have", kind=INT, least=1)
    max_req_timeout_ns: int = option(
        1 * HOUR,
        "longest delay of a requeued or deferred message",
        kind=DURATION,
        name="max-req-timeout",
        least=0,
    )
    max_body_size: int = option(
        5 << 20, "bytes that one command's body may have", kind=INT, least=1
    )
    max_heartbeat_interval_ns: int = option(
        60 * SECOND,
        "longest heartbeat interval that a client may ask for",
        kind=DURATION,
        name="max-heartbeat-interval",
        least=MILLISECOND,
    )
    max_rdy_count: int = option(2500, "largest RDY count", kind=INT, least=1)
    max_output_buffer_size: int = option(
        64 << 10, "largest output buffer that a client may ask for, in bytes", kind=INT, least=1
    )
    max_output_buffer_timeout_ns: int = option(
        30 * SECOND,
        "longest output buffer timeout that a client may ask for",
        kind=DURATION,
        name="max-output-buffer-timeout",
        least=0,
    )
    min_output_buffer_timeout_ns: int = option(
        25 * MILLISECOND,
        "shortest output buffer timeout that a client may ask for",
        kind=DURATION,
        name="min-output-buffer-timeout",
        least=0,
        most="max_output_buffer_timeout_ns",
    )
    output_buffer_timeout_ns: int = option(
        250 * MILLISECOND,
        "longest time that a message may wait in an output buffer (an upper bound: sparq sends at"
        " the end of the loop turn)",
        kind=DURATION,
        name="output-buffer-timeout",
        least=0,
        most="max_output_buffer_timeout_ns",
    )
    max_channel_consumers: int = option(
        0, "consumers that one channel may have; 0: any number", kind=INT, least=0
    )
    max_topics: int = option(
        0, "topics that there may be; 0: any number, here and below", kind=INT, least=0
    )
    max_channels: int = option(0, "channels that one topic may have", kind=INT, least=0)
    max_topic_bytes: int = option(
        0, "bytes of one topic's log that its channels may have unfinished", kind=INT, least=0
    )
    max_connections: int = option(
        0, "TCP clients that may be connected at a time", kind=INT, least=0
    )
    max_line_size: int = option(16 << 10, "bytes that a command's line may have", kind=INT, least=1)
    first_command_timeout_ns: int = option(
        0,
        "time that a client has until its first command; 0: 60s for its first four bytes",
        kind=DURATION,
        name="first-command-timeout",
        least=0,
    )
    min_receive_rate: int = option(
        0,
        "bytes that each second of an unfinished command must bring, after 5s; 0: any",
        kind=INT,
        least=0,
    )
    http_request_timeout_ns: int = option(
        0,
        "time that the head of an HTTP request, and then its body, may take; 0: 75s for the head,"
        " 60s between two pieces of the body",
        kind=DURATION,
        name="http-request-timeout",
        least=0,
    )
    require_heartbeats: bool = option(
        False, "refuse clients that switch their heartbeats off", kind=BOOL
    )
    strict_identify: bool = option(
        False,
        "refuse bodies of IDENTIFY and AUTH beyond 64 KiB, and JSON in IDENTIFY that is nested"
        " deeper than 20 or has numbers beyond 64 bits",
        kind=BOOL,
    )
    enable_experiment: tuple[str, ...] = option(
        (), "turn an experiment on: topology-aware-consumption", kind=EXPERIMENT
    )
    requeue_on_disconnect: bool = option(
        False,
        "queue a dropped connection's messages again at once, instead of at their timeout",
        kind=BOOL,
    )

    # Who may come in
    auth_http_addresses: tuple[str, ...] = option(
        (),
        "host:port or URL of an authd; with one, clients must say AUTH",
        kind=STRING,
        name="auth-http-address",
        key="auth_http_addresses",
    )
    auth_http_request_method: str = option("get", "how authds are asked: get or post", kind=STRING)

    http_token: str = option(
        "",
        "bearer token that requests over HTTP must show to change something or to look inside;"
        " @FILE: the one in this file; empty: nobody is asked",
        kind=STRING,
    )
    debug_routes: bool = option(True, "answer /debug over HTTP", kind=BOOL)

    # TLS and compression
    tls_cert: str = option("", "certificate file", kind=STRING)
    tls_key: str = option("", "the certificate's key file", kind=STRING)
    tls_client_auth_policy: str = option(
        "",
        "certificates of clients: require (any) or require-verify (signed by the root CA)",
        kind=CLIENT_POLICY,
    )
    tls_root_ca_file: str = option(
        "", "file of the CA that clients' certificates need", kind=STRING
    )
    tls_required: str = option(
        "false",
        "refuse clients without TLS: true, false, or tcp-https (plain HTTP is let in)",
        kind=TLS_REQUIRED,
    )
    # NSQ: tls1.0. Older versions than 1.2 are broken: they need the flag.
    tls_min_version: str = option(
        TLS_VERSION_DEFAULT,
        "oldest TLS version taken: tls1.0, tls1.1, tls1.2 or tls1.3",
        kind=TLS_VERSION,
    )
    deflate: bool = option(True, "offer deflate compression", kind=BOOL)
    max_deflate_level: int = option(6, "highest deflate level that clients may have", kind=INT)
    snappy: bool = option(True, "offer snappy compression", kind=BOOL)

    # What it measures
    statsd_address: str = option("", "host:port of a statsd (UDP); empty: none", kind=PEER)
    statsd_interval_ns: int = option(
        60 * SECOND,
        "time between two reports to statsd",
        kind=DURATION,
        name="statsd-interval",
        least=MILLISECOND,
    )
    statsd_mem_stats: bool = option(True, "report memory figures to statsd", kind=BOOL)
    statsd_prefix: str = option(
        "nsq.%s", "prefix of statsd names; %s: the host as nsqlookupd tells it", kind=STRING
    )
    statsd_udp_packet_size: int = option(508, "bytes of one statsd packet", kind=INT, least=1)
    statsd_exclude_ephemeral: bool = option(
        False, "leave #ephemeral topics and channels out of statsd", kind=BOOL
    )
    e2e_processing_latency_percentiles: tuple[float, ...] = option(
        (),
        "quantiles (0, 1] of the time from publish to FIN in /stats",
        kind=FLOATS,
        name="e2e-processing-latency-percentile",
        key="e2e_processing_latency_percentiles",
    )
    e2e_processing_latency_window_time_ns: int = option(
        10 * MINUTE,
        "what span of time those quantiles cover",
        kind=DURATION,
        name="e2e-processing-latency-window-time",
        least=MILLISECOND,
    )

    # What means nothing here
    worker_id: bool = option(False, "deprecated in NSQ, accepted and ignored", kind=BOOL)
    queue_scan_worker_pool_max: int = option(
        4, "accepted and ignored: sparq does not scan queues", kind=INT
    )
    queue_scan_selection_count: int = option(
        20, "accepted and ignored: sparq does not scan queues", kind=INT
    )

    # How it starts, and what it says
    go_compatible: bool = option(
        False,
        "start wherever Go's nsqd starts: mistakes that it passes over are logged as warnings",
        kind=BOOL,
    )
    log_level: int = option(LEVELS["info"], "debug, info, warn, error or fatal", kind=LEVEL)
    log_prefix: str = option("[nsqd] ", "text before each log line", kind=STRING)
    verbose: bool = option(False, "deprecated: the same as --log-level=debug", kind=BOOL)

    def __post_init__(self) -> None:
        """Who has a policy for clients' certificates requires TLS of them, as with NSQ."""
        if self.tls_client_auth_policy and self.tls_required == "false":
            object.__setattr__(self, "tls_required", "true")


def default_node_id(options: Options) -> int:
    """The node id of a new data path without `--node-id` (decision 33).

    It is a hash of host name, data path and TCP address, so that several nsqds of one host most
    likely differ; the data path keeps it, for ids must not change with a flag.
    """
    path = Path(options.data_path or ".").resolve()
    identity = f"{socket.gethostname()}\0{path}\0{options.tcp_address}"
    digest = import_module("xxhash").xxh3_64_intdigest(identity.encode("utf-8", "surrogateescape"))
    return int(digest) % NODE_IDS
