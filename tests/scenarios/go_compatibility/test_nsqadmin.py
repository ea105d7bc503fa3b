"""Go's nsqadmin and sparq's give the same answers to the same requests, except for fixed bugs.

Left out of the comparison, since sparq behaves better: Go lists a channel's clients twice, and
shows the totals of a channel in the entry of its first node; sparq's error messages also name the
node on which the error occurred.
"""

from __future__ import annotations

import http.client
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparq.program.supervised import SupervisedDaemon
from tests.nsqadmin.cluster import Cluster, admin, consumer
from tests.support.servers import free_port

WAIT_SECONDS = 30.0
READ = [
    "/ping",
    "/api/topics",
    "/api/topics?inactive=true",
    "/api/topics/beside",
    "/api/topics/beside/c",
    "/api/topics/nobody",
    "/api/topics/bare",
    "/api/nodes",
    "/api/nodes/NODE",
    "/api/nodes/nope",
    "/api/counter",
    "/api/graphite",
    "/api/graphite?metric=rate",
    "/config/log_level",
    "/config/http_client_connect_timeout",
    "/config/admin_users",
    "/config/acl_http_header",
    "/config/nsqlookupd_http_addresses",
    "/config/nsqd_http_addresses",
    "/config/graphite_url",
    "/config/verbose",
    "/config/nope",
    "/nope",
    "/api/topics/",
]
WRITE = [
    ("POST", "/api/topics", b""),
    ("POST", "/api/topics", b"null"),
    ("POST", "/api/topics", b'{"topic":"a b"}'),
    ("POST", "/api/topics", b'{"topic":"beside","channel":"?"}'),
    ("POST", "/api/topics", b'{"topic":"beside2","channel":"c"}'),
    ("POST", "/api/topics/beside", b'{"action":"nope"}'),
    ("POST", "/api/topics/beside", b'{"action":"pause"}'),
    ("POST", "/api/topics/beside", b'{"action":"unpause"}'),
    ("POST", "/api/topics/beside/c", b'{"action":"pause"}'),
    ("POST", "/api/topics/beside/c", b'{"action":"unpause"}'),
    ("POST", "/api/topics/nobody", b'{"action":"pause"}'),
    ("DELETE", "/api/topics/nobody", b""),
    ("DELETE", "/api/nodes/NODE", b""),
    ("DELETE", "/api/nodes/NODE", b'{"topic":"a b"}'),
    ("PUT", "/config/log_level", b""),
    ("PUT", "/config/log_level", b"loud"),
    ("PUT", "/config/log_level", b"info"),
    ("PUT", "/config/nope", b"x"),
    ("PUT", "/config/nsqlookupd_http_addresses", b"{"),
    ("PATCH", "/api/topics", b""),
]


IN_ARBITRARY_ORDER = ("nodes", "remote_addresses")
"""Go lists these in the order in which the nsqds answered."""


@pytest.fixture(params=["lookupd", "nsqd"])
def go_nsqadmin(
    request: pytest.FixtureRequest, sparq_cluster: Cluster, tmp_path: Path
) -> Iterator[Any]:
    """Start Go's nsqadmin for the same daemons; yield its port, and the options of sparq's."""
    path = os.environ.get("NSQADMIN_GO")
    if not path:
        pytest.skip("needs NSQADMIN_GO, the path of Go's program")
    options = sparq_cluster.modes()[request.param]
    flag = "lookupd" if request.param == "lookupd" else "nsqd"
    port = free_port()
    places = [f"--{flag}-http-address={one}" for some in options.values() for one in some]
    command = [path, f"--http-address=127.0.0.1:{port}", *places]
    go = SupervisedDaemon("Go's nsqadmin", command, tmp_path / "go.log", port)
    go.start()
    try:
        assert go.is_ready(WAIT_SECONDS), go.log.read_text()
        yield port, options
    finally:
        go.kill()


def ask_go(port: int, method: str, path: str, body: bytes | None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        content = answer.read()
        kind = answer.headers.get("Content-Type", "")
        return answer.status, json.loads(content) if "json" in kind else content.decode()
    finally:
        connection.close()


def comparable(document: Any, place: str = "") -> Any:
    """Return a document without the known differences, volatile values and arbitrary orders."""
    if isinstance(document, dict):
        if place == "channels":  # Go's totals are in an arbitrary node's entry
            document = {k: v for k, v in document.items() if k in ("channel_name", "paused")}
        gone = ["connected", "e2e_processing_latency", "remote_address"]
        gone += ["clients"] if place == "nodes" else []
        return {k: comparable(v, k) for k, v in document.items() if k not in gone}
    if isinstance(document, list):
        parts = [comparable(one, place) for one in document]
        return sorted(parts, key=json.dumps) if place in IN_ARBITRARY_ORDER else parts
    if isinstance(document, str) and place == "message":
        return re.sub(r" \(127\.0\.0\.1:[0-9]+\)", "", document)
    return document


async def test_every_get_route_has_the_same_answer(
    go_nsqadmin: Any, sparq_cluster: Cluster
) -> None:
    """Every GET route has the same status and document, with nsqlookupd and with nsqd addresses."""
    port, options = go_nsqadmin
    sparq_cluster.fill("beside")
    sparq_cluster.create_without_channel("bare")
    async with consumer(sparq_cluster.nsqds[0], "beside", "c"), admin(**options) as found:
        for template in READ:
            path = template.replace("NODE", sparq_cluster.nsqds[0].http)
            status, document = await found.ask("GET", path)
            go_status, go_document = ask_go(port, "GET", path, None)
            assert (go_status, comparable(go_document)) == (status, comparable(document)), path


async def test_every_action_has_the_same_answer(go_nsqadmin: Any, sparq_cluster: Cluster) -> None:
    """Every action gets the same status and document from sparq's nsqadmin and then from Go's."""
    port, options = go_nsqadmin
    async with admin(**options) as found:
        for method, template, body in WRITE:
            sparq_cluster.fill("beside", messages=0)
            path = template.replace("NODE", sparq_cluster.nsqds[0].http)
            status, document = await found.ask(method, path, body)
            go_status, go_document = ask_go(port, method, path, body)
            is_fixed = template == "/api/topics" and b"beside2" in body and "nsqd" in str(options)
            if not is_fixed:
                found_here = (status, comparable(document))
                found_there = (go_status, comparable(go_document))
                assert found_there == found_here, (method, path, body)
