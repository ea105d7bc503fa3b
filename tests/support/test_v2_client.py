"""The V2 clients with a real nsqd: buffered frames, waits, and errors."""

from collections.abc import Iterator

import pytest

from sparq.protocol.commands import mpub, pub, rdy, sub
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.v2_client import OK, AsyncV2Client, Closed, V2Client, drain, fin_each


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdServer]:
    with spawn_nsqd(tmp_path_factory.mktemp("nsqd")) as server:
        yield server


def test_answers_and_messages_are_kept_apart(nsqd: NsqdServer) -> None:
    """A call that waits for answers keeps the messages, and the other way round."""
    with V2Client(nsqd) as client:
        assert client.ask(sub("apart", "c")) == OK
        client.send(rdy(10))
        for body in (b"one", b"two"):
            assert client.ask(pub("apart", body)) == OK
        client.send(pub("apart", b"three"))
        messages = client.messages(3)
        assert [b"one", b"two", b"three"] == [message.body for message in messages]
        assert client.ask(b"") == OK
        client.send(fin_each(messages))
        assert client.messages_within(0.05) == []
        assert client.ask(pub("apart", b"four")) == OK
        assert [b"four"] == [message.body for message in client.messages_within(10)]


def test_drain_finishes_every_message(nsqd: NsqdServer) -> None:
    """`drain` returns every message of the channel and finishes it."""
    nsqd.post("/topic/create?topic=drained")
    nsqd.post("/channel/create?topic=drained&channel=c")
    bodies = [b"%d" % number for number in range(1200)]
    with V2Client(nsqd) as client:
        assert client.ask(mpub("drained", bodies)) == OK

    assert bodies == drain(nsqd, "drained", "c")
    assert 0 == nsqd.channel("drained", "c")["depth"]


def test_the_end_of_a_connection_is_raised(nsqd: NsqdServer) -> None:
    """nsqd answers a wrong command, then closes; bytes that it sent before can be read."""
    with V2Client(nsqd) as client, V2Client(nsqd) as other:
        kind, text = client.ask(b"WRONG\n")
        assert (1, b"E_INVALID invalid command WRONG") == (kind, text)
        with pytest.raises(Closed):
            client.frame()
        other.send(b"WRONG\n")
        assert b"WRONG" in other.rest()
        assert not other.is_open()


async def test_frames_come_in_order(nsqd: NsqdServer) -> None:
    """Frames are returned in order, singly and as lists."""
    client = await AsyncV2Client.connect(nsqd.tcp)
    assert await client.ask(sub("ordered", "c"), pub("ordered", b"x")) == OK
    assert await client.response() == b"OK"
    await client.send_all(rdy(1))
    ((kind, data),) = await client.frames()
    assert (2, True) == (kind, data.endswith(b"x"))
    client.send(b"WRONG\n")
    assert await client.error() == b"E_INVALID invalid command WRONG"
    await client.close()


async def test_a_failed_connect_is_raised() -> None:
    """A failed connect raises Closed."""
    with pytest.raises(Closed):
        await AsyncV2Client.connect("127.0.0.1:1")
