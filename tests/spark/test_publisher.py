"""Publishing from a task: each MPUB gets its OK from some nsqd, or the task fails and says why."""

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
    """MPUB after MPUB goes to the next nsqd, Go's included."""
    for number in range(4):
        publisher.publish("t", mpub(b"%da" % number, b"%db" % number))

    assert [body for _, body in servers[0].published] == [b"0a", b"0b", b"2a", b"2b"]
    assert [body for _, body in servers[1].published] == [b"1a", b"1b", b"3a", b"3b"]


def test_tasks_begin_with_different_nsqds(servers):
    """The turn says which nsqd is first."""
    publisher = MpubPublisher(
        ClusterOptions(tuple(server.address for server in servers), (), 10_000), turn=1
    )
    publisher.publish("t", mpub(b"x"))
    publisher.close()

    assert servers[1].published == [("t", b"x")]


def test_another_nsqd_takes_over(servers, publisher):
    """One nsqd is down, another has a full disk: what is left takes all."""
    publisher.publish("t", mpub(b"1"))
    servers[0].stop()
    publisher.publish("t", mpub(b"2"))
    publisher.publish("t", mpub(b"3"))

    assert servers[1].published == [("t", b"2"), ("t", b"3")]

    servers[0].start()
    servers[1].refuse["MultiPublish"] = RemoteError("E_MPUB_FAILED", "MPUB failed no space")
    publisher.publish("t", mpub(b"4"))

    assert servers[0].published[-1] == ("t", b"4")


def test_a_lost_answer_is_sent_again(servers, publisher):
    """An MPUB whose answer was lost goes to the next nsqd: twice rather than not at all."""
    servers[0].hang_up_after["MultiPublish"] = 0
    publisher.publish("t", mpub(b"x"))

    assert servers[1].published == [("t", b"x")]


def test_a_while_without_any_nsqd_is_waited_for(servers, publisher):
    """All nsqds restart: the task waits."""
    for server in servers:
        server.stop()
    threading.Timer(0.2, servers[1].start).start()
    publisher.publish("t", mpub(b"x"))

    assert servers[1].published == [("t", b"x")]


def test_waiting_has_an_end(servers):
    """Nobody takes it for too long: the error says why for each nsqd."""
    for server in servers:
        server.stop()
    publisher = MpubPublisher(ClusterOptions(tuple(server.address for server in servers), (), 100))

    with pytest.raises(UnreachableError, match=f"{servers[0].address}.*{servers[1].address}"):
        publisher.publish("t", mpub(b"x"))


def test_a_message_that_is_wrong_is_not_tried_elsewhere(servers, publisher):
    """What nsqd refuses because of the message is the caller's to mend."""
    servers[0].refuse["MultiPublish"] = RemoteError("E_BAD_MESSAGE", "MPUB message too big 9 > 8")

    with pytest.raises(RemoteError, match="too big"):
        publisher.publish("t", mpub(b"x"))
    assert servers[1].published == []


def test_a_secret_that_was_good_once_is_not_given_up(servers, publisher):
    """E_AUTH_FAILED at first is the author's to mend; later an authd is just out of reach."""
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
