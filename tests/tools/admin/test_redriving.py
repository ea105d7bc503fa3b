"""`sparq admin redrive` sends back all waiting dead letters or those with given ids."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from sparq.protocol.commands import rdy, sub
from tests.support.servers import NsqdServer
from tests.support.v2_client import OK, V2Client
from tests.support.waiting import wait_for
from tests.tools.admin.conftest import Cluster, Run

POLICIES = json.dumps({"policies": [{"topic": "poison*", "max_attempts": 1}]}).encode()


@pytest.fixture(autouse=True)
def _one_attempt(cluster: Cluster) -> Iterator[None]:
    """Make every requeued message of these topics a dead letter."""
    for nsqd in cluster.nsqds:
        assert nsqd.request("PUT", "/policies", POLICIES)[0] == 200
    yield
    for nsqd in cluster.nsqds:
        nsqd.request("DELETE", "/policies")


def alive(cluster: Cluster) -> list[str]:
    return [f"--nsqd-http-address={nsqd.http}" for nsqd in cluster.nsqds]


def fail(nsqd: NsqdServer, topic: str, count: int) -> None:
    """Requeue `count` messages in the topic's channel `c`, so that they become dead letters."""
    with V2Client(nsqd) as line:
        assert line.ask(sub(topic, "c")) == OK
        line.send(rdy(count))
        line.send(b"".join(b"REQ %s 0\n" % message.id for message in line.messages(count)))
        wait_for(lambda: nsqd.channel(topic, "c")["dead_letter_count"] == count)


def make_dead_letters(cluster: Cluster, topic: str, count: int) -> None:
    """Create `count` dead letters on each nsqd."""
    cluster.recreate(f"{topic}.dead", dead=False)
    cluster.recreate(topic, "c", count, dead=False)
    for nsqd in cluster.nsqds:
        fail(nsqd, topic, count)


def test_all_dead_letters_are_redriven(cluster: Cluster, admin: Run) -> None:
    """Each message returns to its original channel once, from the channel that nsqd made."""
    make_dead_letters(cluster, "poison.all", 5)
    assert cluster.depths("poison.all.dead", "redrive") == [5, 5]
    ran = admin("redrive", "poison.all.dead", *alive(cluster))
    assert (0, "") == (ran.status, ran.err)
    assert (
        ran.out.splitlines()[0]
        == "redriven: 10 letters of channel redrive of topic poison.all.dead"
    )
    assert sorted(ran.rows[2:]) == [[address, "5", "0", "0"] for address in cluster.alive]
    assert cluster.depths("poison.all", "c") == [5, 5]
    assert cluster.depths("poison.all.dead", "redrive") == [0, 0]

    for nsqd in cluster.nsqds:
        with V2Client(nsqd) as line:
            assert line.ask(sub("poison.all", "c")) == OK
            line.send(rdy(5))
            line.send(b"".join(b"REQ %s 0\n" % message.id for message in line.messages(5)))
            wait_for(lambda nsqd=nsqd: nsqd.channel("poison.all.dead", "redrive")["depth"] == 5)
    document = cluster.nsqds[0].get_json("/channel/messages?topic=poison.all.dead&channel=redrive")
    assert {message["letter"]["redriven"] for message in document["messages"]} == {"1"}
    ran = admin("redrive", "poison.all.dead", "--dry-run", *alive(cluster))
    assert sorted(ran.rows[1:]) == [[address, "5"] for address in cluster.alive]
    ran = admin("redrive", "poison.all.dead", "--limit=6", "--json", *alive(cluster))
    assert (0, 6, "done") == (ran.status, ran.document["redriven"], ran.document["result"])
    assert sum(cluster.depths("poison.all.dead", "redrive")) == 4


def test_a_channel_is_made_only_for_a_topic_without_any(cluster: Cluster, admin: Run) -> None:
    """A dead-letter topic from before nsqd made a channel gets one; another channel is refused."""
    cluster.recreate("poison.old.dead", dead=False)
    ran = admin("redrive", "poison.old.dead", "--dry-run", *alive(cluster))
    assert (1, "") == (ran.status, ran.out)
    assert "without --dry-run it would be created" in ran.err
    assert 0 == admin("redrive", "poison.old.dead", *alive(cluster)).status
    ran = admin("redrive", "poison.old.dead", "back", *alive(cluster))
    assert (1, "") == (ran.status, ran.out)
    assert "a new channel would have no letters: name one of its channels (redrive)" in ran.err


def test_the_rate_limits_all_nsqds_in_total(cluster: Cluster, admin: Run) -> None:
    """The rate limits all nsqds in total."""
    make_dead_letters(cluster, "poison.rate", 4)
    began = time.monotonic()
    ran = admin("redrive", "poison.rate.dead", "--rate=8", *alive(cluster))
    assert (0, "") == (ran.status, ran.err)
    assert time.monotonic() - began > 0.7
    assert cluster.depths("poison.rate", "c") == [4, 4]


def test_dead_letters_are_redriven_by_id(cluster: Cluster, admin: Run) -> None:
    """Ids are given as for `requeue`; refused ones have a reason."""
    make_dead_letters(cluster, "poison.ids", 2)
    (one, two), (three, _) = cluster.ids("poison.ids.dead")
    words = ("redrive", "poison.ids.dead", "redrive")
    ran = admin(*words, one, three, *alive(cluster))
    assert (0, "") == (ran.status, ran.err)
    assert ran.out.startswith("redriven: 2 of 2 messages")
    assert cluster.depths("poison.ids", "c") == [1, 1]
    ran = admin(*words, one, *alive(cluster))
    assert 1 == ran.status
    assert f"{one}  NOT DONE: it is finished" in ran.out

    cluster.post("/channel/delete?topic=poison.ids&channel=c")
    ran = admin(*words, *alive(cluster))
    assert 1 == ran.status
    assert "2 NOT DONE: channel c of topic poison.ids does not exist" in ran.out
    cluster.post("/channel/create?topic=poison.ids&channel=other")
    ran = admin(*words, two, "--to-all", *alive(cluster))
    assert 0 == ran.status
    ran = admin(*words, "--to-all", *alive(cluster))
    assert (0, "redriven: 1 letters") == (ran.status, ran.out[:19])
    assert cluster.depths("poison.ids", "other") == [1, 1]


def test_left_is_what_the_nsqds_say_afterwards(cluster: Cluster, admin: Run) -> None:
    """Letters that were in flight, above the limit or refused are left, not what was not tried."""
    make_dead_letters(cluster, "poison.left", 4)
    node, other = cluster.nsqds
    node.request("DELETE", "/policies")  # or these letters would be dead once more
    with V2Client(node) as line:
        assert line.ask(sub("poison.left.dead", "redrive")) == OK
        line.send(rdy(3))
        held = line.messages(3)
        ran = admin("redrive", "poison.left.dead", "--json", *alive(cluster))
        line.send(rdy(0) + b"".join(b"REQ %s 0\n" % message.id for message in held))
        wait_for(lambda: node.channel("poison.left.dead", "redrive")["depth"] == 3)
    rows = {row["nsqd"]: (row["redriven"], row["left"]) for row in ran.document["rows"]}
    assert {node.http: (1, 3), other.http: (4, 0)} == rows
    cluster.post("/channel/delete?topic=poison.left&channel=c")
    ran = admin("redrive", "poison.left.dead", "--limit=2", f"--nsqd-http-address={node.http}")
    assert [node.http, "0", "2", "3"] in ran.rows


def test_with_a_dead_nsqd_the_live_ones_redrive(cluster: Cluster, admin: Run) -> None:
    """The live nsqds' messages are sent back; the status is 1, and the next command is printed."""
    make_dead_letters(cluster, "poison.gone", 1)
    cluster.post("/channel/create?topic=poison.gone.dead&channel=redrive")
    dead = f"--nsqd-http-address={cluster.dead}"
    ran = admin("redrive", "poison.gone.dead", *alive(cluster), dead)
    assert 1 == ran.status
    assert "redriven: 2 letters" in ran.out
    assert f"sparq admin redrive poison.gone.dead redrive {dead}" in ran.out
    assert cluster.depths("poison.gone", "c") == [1, 1]
