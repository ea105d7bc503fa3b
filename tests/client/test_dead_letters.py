"""client.consumer: messages with too many attempts go to a dead-letter topic."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparq.client import Consumer, Message, Producer
from sparq.protocol.dead_letters import DeadLetterHistory
from tests.client.scripted import Peer, consumer_of, scripted, subscribed
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.waiting import until


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[NsqdServer]:
    """An nsqd for one test."""
    with spawn_nsqd(tmp_path) as server:
        yield server


async def test_a_message_that_always_fails_becomes_a_dead_letter(nsqd: NsqdServer) -> None:
    """After max_attempts a message is published to ``dead_letter`` with history, and finished."""
    attempts: list[int] = []

    def fail(message: Message) -> None:
        attempts.append(message.attempts)
        message.requeue(0, backoff=False)

    address = nsqd.tcp
    consumer = Consumer(
        "t", "c", nsqd_tcp_addresses=address, handler=fail, max_attempts=3, dead_letter="t.dead"
    )
    async with Producer(address) as producer, consumer:
        await producer.publish("t", b"poison")
        async with Consumer("t.dead", "c", nsqd_tcp_addresses=address) as dead:
            letter = await anext(dead)
            await letter.finish()
        await until(lambda: not consumer.in_flight)

    assert letter.body == b"poison"
    assert letter.letter is not None
    names = ("topic", "channel", "attempts", "reason")
    assert [letter.letter[name] for name in names] == ["t", "c", "4", "given up by the client"]
    assert letter.letter["consumer"] == f"{consumer.config.client_id}@{consumer.config.hostname}"
    assert letter.letter["last_returned"] > letter.letter["published"]
    _, body = nsqd.request("GET", f"/message?topic=t.dead&id={letter.id}&raw=true")
    assert body == b"poison"
    assert attempts == [1, 2, 3]
    assert consumer.counters.given_up == 1


async def test_a_dead_letter_topic_without_the_suffix_gets_the_plain_body(nsqd: NsqdServer) -> None:
    """In a topic not named ``*.dead``, the message has the plain body and no history."""
    options = {"nsqd_tcp_addresses": nsqd.tcp, "max_attempts": 1, "dead_letter": "failed"}
    consumer = Consumer("t", "c", handler=lambda message: message.requeue(0), **options)
    async with Producer(nsqd.tcp) as producer, consumer:
        await producer.publish("t", b"poison")
        async with Consumer("failed", "c", nsqd_tcp_addresses=nsqd.tcp) as failed:
            message = await anext(failed)
            await message.finish()
    assert (message.body, message.letter) == (b"poison", None)


async def test_batches_of_dead_letters_have_the_bodies_without_history(nsqd: NsqdServer) -> None:
    """``batch.bodies`` has the bodies without the history, as the messages have."""
    history = DeadLetterHistory("t", "c", "0" * 16, 3, 10**18, 0, "me", "requeued")
    nsqd.post("/pub?topic=t.dead", history.seal(b"poison"))
    nsqd.post("/pub?topic=t.dead", b"by hand")
    async with Consumer("t.dead", "c", nsqd_tcp_addresses=nsqd.tcp, max_in_flight=2) as dead:
        found: list[bytes] = []
        async for batch in dead.batches(2):
            assert batch.bodies == [message.body for message in batch]
            found += batch.bodies
            await batch.finish()
            if len(found) == 2:
                break
    assert sorted(found) == [b"by hand", b"poison"]


async def test_a_refused_dead_letter_leaves_the_message_unfinished() -> None:
    """If the dead-letter topic refuses the publish, the message is requeued, not finished."""

    def refuse(peer: Peer, words: list[bytes], body: bytes) -> bytes:
        return b"E_PUB_FAILED disk full"

    async with scripted() as [nsqd]:
        nsqd.on_publish = refuse
        async with consumer_of(nsqd, max_attempts=1, dead_letter="dead") as consumer:
            peer = await subscribed(nsqd)
            peer.deliver(1, b"poison", attempts=2)
            peer.deliver(2, b"fine")
            message = await anext(consumer)
            message.finish()
            await until(lambda: not peer.in_flight)

    assert message.body == b"fine"
    assert nsqd.lines(b"REQ") == [b"REQ 0000000000000001 180000"]
    assert nsqd.lines(b"FIN") == [b"FIN 0000000000000002"]
