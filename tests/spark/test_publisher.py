"""Publishing in a Spark task: an nsqd acknowledges each MPUB, or the task fails with a reason."""

import threading

import pyarrow as pa
import pytest

from sparq.protocol.errors import RemoteError
from sparq.spark.encode import multi_publishes
from sparq.spark.errors import UnreachableError
from sparq.spark.options import ClusterOptions
from sparq.spark.publisher import MpubPublisher
from tests.spark.range_server import RangeServer


@pytest.fixture
def servers():
    with RangeServer() as first, RangeServer(ranges=0) as second:
        yield first, second


@pytest.fixture
def publisher(servers):
    publisher = MpubPublisher(
        ClusterOptions(tuple(server.address for server in servers), (), 10_000)
    )
    yield publisher
    publisher.close()


def mpub(*bodies: bytes):
    (only,) = multi_publishes(pa.array(bodies), 1000)
    return only


def test_nsqds_take_turns(servers, publisher):
    """Consecutive MPUBs go to the nsqds in turn; one is an nsqd without range reading, as Go's."""
    for number in range(4):
        publisher.publish("t", mpub(b"%da" % number, b"%db" % number))

    assert [body for _, body in servers[0].published] == [b"0a", b"0b", b"2a", b"2b"]
    assert [body for _, body in servers[1].published] == [b"1a", b"1b", b"3a", b"3b"]


def test_a_tasks_turn_selects_its_first_nsqd(servers):
    """`turn` selects the nsqd that gets the first MPUB."""
    publisher = MpubPublisher(
        ClusterOptions(tuple(server.address for server in servers), (), 10_000), turn=1
    )
    publisher.publish("t", mpub(b"x"))
    publisher.close()

    assert servers[1].published == [("t", b"x")]


def test_if_an_nsqd_fails_another_gets_the_messages(servers, publisher):
    """If an nsqd is down or has a full disk, the other gets all MPUBs."""
    publisher.publish("t", mpub(b"1"))
    servers[0].stop()
    publisher.publish("t", mpub(b"2"))
    publisher.publish("t", mpub(b"3"))

    assert servers[1].published == [("t", b"2"), ("t", b"3")]

    servers[0].start()
    servers[1].refuse["MultiPublish"] = RemoteError("E_MPUB_FAILED", "MPUB failed no space")
    publisher.publish("t", mpub(b"4"))

    assert servers[0].published[-1] == ("t", b"4")


def test_an_mpub_without_an_answer_is_sent_again(servers, publisher):
    """An MPUB without an answer is sent to the next nsqd: delivery is at-least-once."""
    servers[0].hang_up_after["MultiPublish"] = 0
    publisher.publish("t", mpub(b"x"))

    assert servers[1].published == [("t", b"x")]


def test_a_task_waits_until_an_nsqd_is_back(servers, publisher):
    """If no nsqd is reachable, the task waits until one is back."""
    for server in servers:
        server.stop()
    threading.Timer(0.2, servers[1].start).start()
    publisher.publish("t", mpub(b"x"))

    assert servers[1].published == [("t", b"x")]


def test_waiting_ends_at_the_time_limit(servers):
    """After the time limit, UnreachableError gives the reason for each nsqd."""
    for server in servers:
        server.stop()
    publisher = MpubPublisher(ClusterOptions(tuple(server.address for server in servers), (), 100))

    with pytest.raises(UnreachableError, match=f"{servers[0].address}.*{servers[1].address}"):
        publisher.publish("t", mpub(b"x"))


def test_a_refused_message_is_not_sent_to_another_nsqd(servers, publisher):
    """E_BAD_MESSAGE is raised immediately; no other nsqd gets the message."""
    servers[0].refuse["MultiPublish"] = RemoteError("E_BAD_MESSAGE", "MPUB message too big 9 > 8")

    with pytest.raises(RemoteError, match="too big"):
        publisher.publish("t", mpub(b"x"))
    assert servers[1].published == []


def test_auth_failed_is_retried_after_a_first_success(servers, publisher):
    """E_AUTH_FAILED on a first connection is raised; after a successful publish it is retried."""
    failed = RemoteError("E_AUTH_FAILED", "AUTH failed")
    servers[0].refuse["Identify"] = failed
    with pytest.raises(RemoteError, match="E_AUTH_FAILED"):
        publisher.publish("t", mpub(b"1"))

    servers[0].refuse.clear()
    publisher.publish("t", mpub(b"2"))
    for server in servers:
        server.refuse["MultiPublish"] = failed
        threading.Timer(0.2, server.refuse.clear).start()
    publisher.publish("t", mpub(b"3"))

    published = [*servers[0].published, *servers[1].published]
    assert sorted(body for _, body in published) == [b"2", b"3"]
