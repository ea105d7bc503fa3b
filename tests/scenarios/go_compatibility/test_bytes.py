"""Every answer that an NSQ client can see has the bytes that Go's programs write.

Some clients search an answer's text instead of parsing it (`"tls_v1":true`), and some compare
header names with their case. So a member may only be added after NSQ's own.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pytest

from sparq.protocol import go_json
from sparq.protocol.commands import identify, sub
from tests.support.servers import (
    AdminServer,
    NsqdServer,
    Server,
    spawn_nsqd,
    spawn_nsqlookupd,
    start_first,
)
from tests.support.v2_client import V2Client
from tests.support.waiting import wait_for

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
PEER = (
    "remote_address hostname broadcast_address tcp_port http_port version topology_zone"
    " topology_region"
)
LATENCY = "count percentiles"
COUNTS = "node hostname topic_name"
DEPTHS = "depth memory_depth backend_depth"
ORDERS = {
    # What Go's structs declare, by place: `[]` is a member of a list, `*` of a map.
    "nsqd /info": "version broadcast_address hostname http_port tcp_port start_time"
    " max_heartbeat_interval max_output_buffer_size max_output_buffer_timeout max_deflate_level"
    " topology_zone topology_region",
    "nsqd /stats": "version health start_time topics memory producers",
    "nsqd /stats.memory": "heap_objects heap_idle_bytes heap_in_use_bytes heap_released_bytes"
    " gc_pause_usec_100 gc_pause_usec_99 gc_pause_usec_95 next_gc_bytes gc_total_runs",
    "nsqd /stats.topics[]": "topic_name channels depth backend_depth message_count message_bytes"
    " paused e2e_processing_latency",
    "nsqd /stats.topics[].e2e_processing_latency": LATENCY,
    "nsqd /stats.topics[].channels[]": "channel_name depth backend_depth in_flight_count"
    " deferred_count message_count requeue_count timeout_count client_count clients paused"
    " e2e_processing_latency",
    "nsqd /stats.topics[].channels[].clients[]": "client_id hostname version remote_address state"
    " ready_count in_flight_count message_count finish_count requeue_count connect_ts sample_rate"
    " deflate snappy user_agent topology_zone topology_region tls tls_cipher_suite tls_version"
    " tls_negotiated_protocol tls_negotiated_protocol_is_mutual",
    "nsqd V2 IDENTIFY": "max_rdy_count version max_msg_timeout msg_timeout tls_v1 deflate"
    " deflate_level max_deflate_level snappy sample_rate auth_required output_buffer_size"
    " output_buffer_timeout topology_region topology_zone",
    "nsqlookupd /lookup": "channels producers",
    "nsqlookupd /lookup.producers[]": PEER,
    "nsqlookupd /nodes": "producers",
    "nsqlookupd /nodes.producers[]": f"{PEER} tombstones topics",
    "nsqlookupd V1 IDENTIFY": "broadcast_address hostname http_port tcp_port version",
    "nsqadmin /api/nodes": "nodes message",
    "nsqadmin /api/nodes.nodes[]": "remote_addresses remote_address hostname broadcast_address"
    " tcp_port http_port version topics out_of_date",
    "nsqadmin /api/nodes.nodes[].topics[]": "topic tombstoned",
    "nsqadmin /api/topics/t": f"{COUNTS} {DEPTHS} message_count delivery_msg_count nodes channels"
    " paused e2e_processing_latency message",
    "nsqadmin /api/topics/t.e2e_processing_latency": f"{LATENCY} topic channel host",
    "nsqadmin /api/topics/t.e2e_processing_latency.percentiles[]": "average count max min quantile",
    "nsqadmin /api/topics/t.channels[]": f"{COUNTS} channel_name {DEPTHS} in_flight_count"
    " deferred_count requeue_count timeout_count message_count client_count nodes clients paused"
    " e2e_processing_latency",
    "nsqadmin /api/topics/t/c": f"{COUNTS} channel_name {DEPTHS} in_flight_count deferred_count"
    " requeue_count timeout_count message_count client_count nodes clients paused"
    " e2e_processing_latency message",
    "nsqadmin /api/topics/t/c.clients[]": "node remote_address version client_id hostname"
    " user_agent connect_ts connected in_flight_count ready_count finish_count requeue_count"
    " message_count sample_rate deflate snappy authed auth_identity auth_identity_url tls"
    " tls_cipher_suite tls_version tls_negotiated_protocol tls_negotiated_protocol_is_mutual",
}
PATHS = {
    "nsqd": ["/info", "/stats?format=json", "/config/nsqlookupd_tcp_addresses", "/nope"],
    "nsqlookupd": [
        *("/info", "/topics", "/channels?topic=t", "/lookup?topic=t", "/nodes", "/debug"),
        *("/lookup?topic=nope", "/nope"),
    ],
    "nsqadmin": [
        *("/api/topics", "/api/topics/t", "/api/topics/t/c", "/api/nodes", "/api/counter"),
        *("/config/nsqlookupd_http_addresses", "/nope"),
    ],
}


Answer = tuple[dict[str, str], bytes]
"""The headers, with their names as sent, and the body."""


@dataclass(frozen=True, slots=True)
class Daemons:
    """One nsqd, nsqlookupd and nsqadmin, with the topic `t`, its channel `c` and one consumer."""

    nsqd: NsqdServer
    nsqlookupd: Server
    nsqadmin: AdminServer

    def ask(self, daemon: str, path: str, body: bytes | None = None) -> Answer:
        """Send a request, a POST if it has a body."""
        port = getattr(self, daemon).http_port
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
            connection.request("GET" if body is None else "POST", path, body)
            answer = connection.getresponse()
            return dict(answer.getheaders()), answer.read()


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemons]:
    """The daemons; the consumer's name has characters that Go's encoder escapes."""
    folder = tmp_path_factory.mktemp("bytes")
    with ExitStack() as stack:
        lookupd = stack.enter_context(spawn_nsqlookupd(folder))
        flags = ("--e2e-processing-latency-percentile=1.0,0.99",)
        nsqd = stack.enter_context(spawn_nsqd(folder, *flags, lookupds=(lookupd,)))
        flags = (f"--lookupd-http-address={lookupd.http}",)
        admin = AdminServer("sparq.nsqadmin", folder, flags)
        start_first(stack.enter_context(admin))
        for path in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
            nsqd.post(path)
        nsqd.post("/pub?topic=t", b"one")
        client = stack.enter_context(V2Client(nsqd))
        client.ask(identify(json.dumps({"hostname": "<é&>\u2028"}).encode()))
        client.ask(sub("t", "c"))
        wait_for(lambda: lookupd.request("GET", "/lookup?topic=t")[0] == 200)
        yield Daemons(nsqd, lookupd, admin)


def in_order(place: str, value: Any) -> list[str]:
    """Return the places at which known members are not in Go's order, before all others."""
    if isinstance(value, list):
        return [found for one in value for found in in_order(f"{place}[]", one)]
    if not isinstance(value, dict):
        return []
    wanted = [] if [*value] == ["message"] else ORDERS.get(place, "").split()
    wrong = [f"{place}: {[*value]}"] if [*value][: len(wanted)] != wanted else []
    return wrong + [found for name in value for found in in_order(f"{place}.{name}", value[name])]


def check(place: str, body: bytes) -> None:
    """Assert that a body is Go's encoding of its value, with NSQ's members in Go's order."""
    value = json.loads(body)

    assert body == go_json.to_bytes(value)
    assert in_order(place, value) == []


@pytest.mark.parametrize(
    ("daemon", "path"), [(daemon, path) for daemon, paths in PATHS.items() for path in paths]
)
def test_json_answers_are_gos(daemons: Daemons, daemon: str, path: str) -> None:
    """Each JSON answer has Go's order and spelling, and headers as Go's net/http spells them."""
    headers, body = daemons.ask(daemon, path)

    assert headers["X-Nsq-Content-Type"] == "nsq; version=1.0"
    assert headers["Content-Type"] == JSON
    assert [name for name in headers if name != canonical(name)] == []
    check(f"{daemon} {path.partition('?')[0]}", body)


def canonical(name: str) -> str:
    """The spelling of a header's name by Go's net/http."""
    return "-".join(part.capitalize() for part in name.split("-"))


@pytest.mark.parametrize("path", ["/pub?topic=t", "/pub?topic=t&other=1"])
def test_a_publish_is_answered_like_gos(daemons: Daemons, path: str) -> None:
    """Both implementations of a publish name their headers alike, also in a refusal."""
    for body, expected in ((b"one", TEXT), (b"", JSON)):
        headers, _ = daemons.ask("nsqd", path, body)

        assert headers["X-Nsq-Content-Type"] == "nsq; version=1.0"
        assert headers["Content-Type"] == expected


def test_special_characters_are_escaped_like_gos(daemons: Daemons) -> None:
    """A client's text has `<`, `>`, `&` and line separators as escapes, all others as UTF-8."""
    for daemon, path in (("nsqd", "/stats?format=json"), ("nsqadmin", "/api/topics/t/c")):
        _, body = daemons.ask(daemon, path)

        assert '"hostname":"\\u003cé\\u0026\\u003e\\u2028"'.encode() in body


def test_a_whole_quantile_has_no_fraction(daemons: Daemons) -> None:
    """A float64 without a fraction is written without one: the quantile 1.0 is `1`."""
    for daemon, path in (("nsqd", "/stats?format=json"), ("nsqadmin", "/api/topics/t")):
        _, body = daemons.ask(daemon, path)

        assert re.search(rb'"quantile":1[,}]', body)
        assert not re.search(rb"\d\.0[,}]", body)


def test_identify_is_answered_like_gos(daemons: Daemons) -> None:
    """IDENTIFY's answer holds the texts that clients search for: `"snappy":true`."""
    with V2Client(daemons.nsqd) as client:
        answer = client.ask(identify(b'{"feature_negotiation":true,"snappy":true}'))[1]

    assert b'"tls_v1":false,"deflate":false' in answer
    assert b'"snappy":true' in answer
    check("nsqd V2 IDENTIFY", answer)


def test_nsqlookupd_answers_identify_like_gos(daemons: Daemons) -> None:
    """nsqlookupd answers a nsqd's IDENTIFY with Go's bytes: a map, so its members are sorted."""
    facts = {
        "broadcast_address": "127.0.0.1",
        "tcp_port": 1,
        "http_port": 2,
        "version": "1.3.0",
    }
    body = json.dumps(facts).encode()
    with socket.create_connection(("127.0.0.1", daemons.nsqlookupd.tcp_port), 10) as peer:
        peer.sendall(b"  V1IDENTIFY\n" + struct.pack(">i", len(body)) + body)
        size = struct.unpack(">i", peer.recv(4, socket.MSG_WAITALL))[0]
        answer = peer.recv(size, socket.MSG_WAITALL)

    check("nsqlookupd V1 IDENTIFY", answer)
