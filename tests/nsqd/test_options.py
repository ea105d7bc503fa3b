"""nsqd's flags have NSQ's names and defaults, except for documented differences."""

import socket
from pathlib import Path

import pytest

from sparq.nsqd.options import ListenOptions, NsqdOptions, default_node_id
from sparq.options.declare import flags_of
from sparq.program.flags import parse
from tests.support.options import changed

SECOND = 1_000_000_000
HOUR = 3600 * SECOND


DEFAULTS = {
    "tcp_address": "0.0.0.0:4150",
    "http_address": "0.0.0.0:4151",
    "https_address": "<host of --http-address>:4152",
    "broadcast_address": socket.gethostname(),
    "broadcast_tcp_port": 0,
    "broadcast_http_port": 0,
    "nsqlookupd_tcp_addresses": (),
    "http_client_connect_timeout": 2 * SECOND,
    "http_client_request_timeout": 5 * SECOND,
    "topology_region": "",
    "topology_zone": "",
    "data_path": "",
    "policies": "",
    "id": None,
    "mem_queue_size": 10_000,
    "max_bytes_per_file": 104_857_600,
    "sync_every": 1,
    "sync_timeout": 2 * SECOND,
    "msg_timeout": 60 * SECOND,
    "max_msg_timeout": HOUR // 4,
    "max_msg_size": 1_048_576,
    "max_req_timeout": HOUR,
    "max_body_size": 5_242_880,
    "max_heartbeat_interval": 60 * SECOND,
    "max_rdy_count": 2_500,
    "max_output_buffer_size": 65_536,
    "max_output_buffer_timeout": 30 * SECOND,
    "min_output_buffer_timeout": SECOND // 40,
    "output_buffer_timeout": SECOND // 4,
    "max_channel_consumers": 0,
    **{"retention_bytes": 0, "retention_time": 0},
    **{"max_channel_lag_bytes": 0, "max_channel_lag_time": 0, "message_ttl": 0},
    **{"max_attempts": 0, "max_topic_messages": 0, "drop_oldest": False},
    **{"max_publish_rate": 0, "max_client_publish_rate": 0},
    **{"max_topics": 0, "max_channels": 0, "max_topic_bytes": 0, "max_connections": 0},
    **{"token_file": "", "audit_file": "", "lookupd_token": ""},
    **{"http_token": "", "debug_routes": True, "go_compatible": False},
    "max_line_size": 16_384,
    "first_command_timeout": 0,
    "min_receive_rate": 0,
    "http_request_timeout": 0,
    "require_heartbeats": False,
    "strict_identify": False,
    "enable_experiment": (),
    "requeue_on_disconnect": False,
    "auth_http_addresses": (),
    "auth_http_request_method": "get",
    "tls_cert": "",
    "tls_key": "",
    "tls_client_auth_policy": "",
    "tls_root_ca_file": "",
    "tls_required": "false",
    "tls_min_version": "tls1.2",
    "deflate": True,
    "max_deflate_level": 6,
    "snappy": True,
    "statsd_address": "",
    "statsd_interval": 60 * SECOND,
    "statsd_mem_stats": True,
    "statsd_prefix": "nsq.%s",
    "statsd_udp_packet_size": 508,
    "statsd_exclude_ephemeral": False,
    "e2e_processing_latency_percentiles": (),
    "e2e_processing_latency_window_time": HOUR // 6,
    "worker_id": False,
    "queue_scan_worker_pool_max": 4,
    "queue_scan_selection_count": 20,
    "log_format": "text",
    "log_level": 20,
    "log_prefix": "[nsqd] ",
    "log_repeats": 0,
    "log_utc": False,
    "verbose": False,
}


def options(*arguments: str) -> NsqdOptions:
    return parse(NsqdOptions, "nsqd", arguments)


def test_defaults_are_nsqs_except_the_sync_policy_and_old_tls() -> None:
    """All defaults in one list. (TLS 1.2 is the minimum: docs/differences.md.)"""
    flags, made = flags_of(NsqdOptions), options()

    in_ns = {flag.key: flag.kind.unit for flag in flags if flag.kind.unit > 1}
    for values in (
        {flag.key: flag.value(made) for flag in flags},
        {flag.key: flag.default for flag in flags},
    ):
        assert values | {key: values[key] * unit for key, unit in in_ns.items()} == DEFAULTS


def test_keys_of_the_file_are_nsqs() -> None:
    """A key is the flag with underscores, except for four that NSQ names differently."""
    odd = {f.name: f.key for f in flags_of(NsqdOptions) if f.key != f.name.replace("-", "_")}

    assert odd == {
        "node-id": "id",
        "lookupd-tcp-address": "nsqlookupd_tcp_addresses",
        "auth-http-address": "auth_http_addresses",
        "e2e-processing-latency-percentile": "e2e_processing_latency_percentiles",
    }


@pytest.mark.behaviour("more.unknown-config-keys", "nsqd.TestConfigFlagParsing")
def test_nsqs_configuration_file_is_read(tmp_path: Path) -> None:
    """NSQ's configuration file is read; with --go-compatible, unknown keys are ignored."""
    config = tmp_path / "nsqd.toml"
    config.write_text(
        'id = 7\ntls_cert = "x"\ngraphite_url = "y"\nmsg_timeout = "1m30s"\n'
        'nsqlookupd_tcp_addresses = ["a:4160", "b:4160"]\nmax_rdy_count = 9\n'
    )
    taken = options(f"--config={config}", "-max-rdy-count", "10", "--go-compatible")

    assert (7, 90_000) == (taken.node_id, taken.broker.limits.msg_timeout_ms)
    assert taken.broker.limits.max_rdy_count == 10
    assert taken.tls.cert == "x"
    assert taken.lookupd.tcp_addresses == ("a:4160", "b:4160")


@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_a_policy_for_certificates_requires_tls(policy: str) -> None:
    """Without required TLS, clients could bypass the policy by not using TLS."""
    assert options(f"-tls-client-auth-policy={policy}").tls.required == "true"
    also_http = options(f"-tls-client-auth-policy={policy}", "-tls-required=tcp-https")
    assert also_http.tls.required == "tcp-https"


def test_default_node_ids_differ_on_one_host(tmp_path: Path) -> None:
    """The default id is a stable hash in [0, 1024) of the data path and the TCP port."""
    here = options(f"-data-path={tmp_path}")
    ids = {
        default_node_id(changed(here, tcp_address=f"0.0.0.0:{port}")) for port in range(4150, 4170)
    }

    assert default_node_id(here) == default_node_id(options(f"-data-path={tmp_path}/."))
    assert default_node_id(here) != default_node_id(options(f"-data-path={tmp_path}/x"))
    assert len(ids) > 15
    assert all(0 <= node_id < 1024 for node_id in ids)


@pytest.mark.parametrize(
    ("http", "https", "expected"),
    [
        ("127.0.0.1:4151", None, "127.0.0.1:4152"),
        ("0.0.0.0:4151", None, "0.0.0.0:4152"),
        (":4151", None, ":4152"),
        ("[::1]:8151", None, "[::1]:4152"),
        ("/run/nsqd.sock", None, "127.0.0.1:4152"),
        ("", None, "127.0.0.1:4152"),
        ("127.0.0.1:4151", "0.0.0.0:4152", "0.0.0.0:4152"),
        ("127.0.0.1:4151", "", ""),
    ],
)
def test_https_listens_on_the_host_of_http(http: str, https: str | None, expected: str) -> None:
    """A certificate opens no port to a network that HTTP is not open to, unless a flag says so."""
    given = {} if https is None else {"https_address": https}

    assert expected == ListenOptions(http_address=http, **given).https
