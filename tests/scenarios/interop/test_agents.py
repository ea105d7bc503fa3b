"""The scaler and the agents that watch NSQ get what they read, from clusters of 1, 3 and 5 nsqds.

None of them is installed. Each test sends the requests that a program is documented to send and
computes what that program shows from the documented members, once without and once with a token
file. With one, its line `anybody read -` lets programs in that cannot send a token.
"""

from __future__ import annotations

import hashlib
import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from sparq.protocol.commands import auth, fin, identify, rdy, sub
from tests.support.servers import NsqdServer, Server, spawn_nsqd, spawn_nsqlookupd
from tests.support.v2_client import OK, V2Client
from tests.support.waiting import wait_for

SIZES = (1, 3, 5)
SECRET = "the-secret-of-the-operator"
EACH = 4
"""Messages published to each nsqd, for a channel that has two of them in flight."""


@dataclass(frozen=True)
class Cluster:
    """One nsqlookupd, and the nsqds that register with it."""

    lookupd: Server
    nsqds: tuple[NsqdServer, ...]
    has_tokens: bool


def post(server: Server, path: str, body: bytes = b"") -> None:
    """POST as the operator."""
    headers = {"Authorization": f"Bearer {SECRET}"}
    asked = urllib.request.Request(f"http://{server.http}{path}", body, headers)
    with urllib.request.urlopen(asked, timeout=10) as answer:
        assert answer.status == 200


@pytest.fixture(scope="module", params=[False, True], ids=["open", "tokens"])
def clusters(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[int, Cluster]]:
    """Clusters by size: five nsqds, of which each nsqlookupd knows the first 1, 3 or 5."""
    folder = tmp_path_factory.mktemp("agents")
    tokens = folder / "tokens"
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    tokens.write_text(f"ops administer,publish,consume,register {digest}\nanybody read -\n")
    tokens.chmod(0o600)
    flags = (f"--token-file={tokens}",) if request.param else ()
    with ExitStack() as stack:
        lookupds = {
            size: stack.enter_context(spawn_nsqlookupd(folder, *flags, name=f"lookupd-{size}"))
            for size in SIZES
        }
        nsqds = []
        for number in range(max(SIZES)):
            own = tuple(lookupd for size, lookupd in lookupds.items() if number < size)
            name = f"nsqd-{number}"
            nsqd = spawn_nsqd(folder, *flags, f"--node-id={number}", lookupds=own, name=name)
            nsqds.append(stack.enter_context(nsqd))
            post(nsqd, "/topic/create?topic=lines")
            post(nsqd, "/topic/create?topic=jobs")
            post(nsqd, "/channel/create?topic=jobs&channel=work")
            post(nsqd, "/mpub?topic=jobs", b"\n".join([b"x"] * EACH))
            line = stack.enter_context(consumer(nsqd, "work", has_tokens=bool(request.param)))
            line.send(rdy(2))
            assert 2 == len(line.messages(2))
        for size, lookupd in lookupds.items():
            wait_for(lambda at=lookupd, size=size: size == len(producers(at, "lines")), 20)
        yield {
            size: Cluster(lookupds[size], tuple(nsqds[:size]), bool(request.param))
            for size in SIZES
        }


def consumer(nsqd: NsqdServer, channel: str, *, has_tokens: bool) -> V2Client:
    """A connection that consumes the channel, with the secret if it needs one."""
    line = V2Client(nsqd)
    line.ask(identify(json.dumps({"client_id": "agent", "feature_negotiation": True}).encode()))
    if has_tokens:
        line.ask(auth(SECRET.encode()))
    assert line.ask(sub("jobs", channel)) == OK
    return line


def producers(lookupd: Server, topic: str = "jobs") -> list[dict[str, Any]]:
    """The producers of the topic at this nsqlookupd; none while it does not know the topic."""
    status, body = lookupd.request("GET", f"/lookup?topic={topic}")
    return list(json.loads(body)["producers"]) if status == 200 else []


def stats_at(host: str, query: str) -> dict[str, Any]:
    """What `/stats` answers there without a token."""
    with urllib.request.urlopen(f"http://{host}/stats?{query}", timeout=4) as answer:
        return dict(json.load(answer))


@pytest.mark.parametrize("size", SIZES)
def test_keda_scales_by_the_depth_of_a_channel(clusters: dict[int, Cluster], size: int) -> None:
    """KEDA's scaler `nsq` sums the depth of the topic's channel over the nsqds of `/lookup`.

    For a channel that does not exist it takes the topic's depth, and 404 means no nsqd.
    """
    cluster = clusters[size]
    query = "format=json&include_clients=false&include_mem=false&topic=jobs"
    depths = {"work": 0, "new": 0}
    for one in producers(cluster.lookupd):
        host = f"{one['broadcast_address']}:{one['http_port']}"
        (topic,) = stats_at(host, query)["topics"]
        assert "jobs" == topic["topic_name"]
        known = {channel["channel_name"]: channel for channel in topic["channels"]}
        assert known["work"]["paused"] is False
        for name in depths:
            depths[name] += known.get(name, topic)["depth"]

    assert {"work": size * (EACH - 2), "new": 0} == depths
    assert 404 == cluster.lookupd.request("GET", "/lookup?topic=unknown")[0]


@pytest.mark.parametrize("size", SIZES)
def test_telegraf_reads_server_topics_channels_and_clients(
    clusters: dict[int, Cluster], size: int
) -> None:
    """Telegraf's `inputs.nsq` reads health, version and every member that it makes a field of."""
    for nsqd in clusters[size].nsqds:
        stats = stats_at(nsqd.http, "format=json")
        (topic,) = (one for one in stats["topics"] if one["topic_name"] == "jobs")
        (channel,) = topic["channels"]
        (client,) = channel["clients"]

        assert ("OK", True) == (stats["health"], isinstance(stats["version"], str))
        assert (0, 0, EACH) == tuple(
            topic[key] for key in ("depth", "backend_depth", "message_count")
        )
        assert {
            **{"depth": EACH - 2, "in_flight_count": 2, "message_count": EACH},
            **dict.fromkeys(("backend_depth", "deferred_count"), 0),
            **dict.fromkeys(("requeue_count", "timeout_count"), 0),
        }.items() <= channel.items()
        assert (2, 2, 2, 0, 0) == tuple(
            client[f"{name}_count"]
            for name in ("ready", "in_flight", "message", "finish", "requeue")
        )
        assert (False, False, False) == tuple(client[key] for key in ("tls", "snappy", "deflate"))
        assert all(
            isinstance(client[key], str)
            for key in ("client_id", "hostname", "version", "remote_address", "user_agent")
        )


@pytest.mark.parametrize("size", SIZES)
def test_datakit_finds_the_nsqds_and_sums_their_channels(
    clusters: dict[int, Cluster], size: int
) -> None:
    """DataKit finds all nsqds with `/nodes`, and sums each channel's members over them."""
    cluster = clusters[size]
    members = ("backend_depth", "deferred_count", "depth", "in_flight_count")
    members += ("message_count", "requeue_count", "timeout_count")
    sums = dict.fromkeys(members, 0)
    nodes = cluster.lookupd.get_json("/nodes")["producers"]
    for node in nodes:
        host = f"{node['broadcast_address']}:{node['http_port']}"
        topics = {one["topic_name"]: one for one in stats_at(host, "format=json")["topics"]}
        for channel in topics["jobs"]["channels"]:
            for key in members:
                sums[key] += channel[key]

    assert sorted(nsqd.http for nsqd in cluster.nsqds) == sorted(
        f"{node['broadcast_address']}:{node['http_port']}" for node in nodes
    )
    assert [0, 0, size * (EACH - 2), size * 2, size * EACH, 0, 0] == list(sums.values())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("agent", ["telegraf", "redpanda"])
def test_consuming_agents_get_and_finish_every_message(
    clusters: dict[int, Cluster], size: int, agent: str
) -> None:
    """Telegraf's `nsq_consumer` and Redpanda Connect's `nsq` consume from each nsqd of `/lookup`.

    They have no setting for a secret: where tokens are required, SUB is refused.
    """
    cluster = clusters[size]
    asked = json.dumps({"client_id": agent, "user_agent": agent, "feature_negotiation": True})
    for one in producers(cluster.lookupd, "lines"):
        (nsqd,) = (nsqd for nsqd in cluster.nsqds if nsqd.http.endswith(f":{one['http_port']}"))
        channel = f"{agent}-{size}"
        with V2Client(nsqd) as line:
            assert b'"auth_required"' in line.ask(identify(asked.encode()))[1]
            answer = line.ask(sub("lines", channel))
            if cluster.has_tokens:
                assert b"E_AUTH_FIRST" in answer[1]
                continue
            assert answer == OK
            post(nsqd, "/pub?topic=lines", b"for the agents")
            line.send(rdy(1))
            (message,) = line.messages(1)
            line.send(fin(message.id))
            wait_for(
                lambda at=nsqd, to=channel: at.channel("lines", to)["in_flight_count"] == 0, 10
            )
        post(nsqd, f"/channel/delete?topic=lines&channel={channel}")
