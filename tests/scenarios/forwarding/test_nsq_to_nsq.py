"""nsq_to_nsq between real nsqds: every flag, and the effects of failures."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest

from sparq.tools import nsq_to_nsq, relay
from tests.client.scripted import Peer, ScriptedNsqd, scripted
from tests.support.servers import NsqdServer, Server, spawn_nsqd
from tests.support.waiting import until, until_seen
from tests.tools.forwarding import (
    all_finished,
    new_topic,
    publish,
    received,
    running,
    stats,
)

CHANNEL = "nsq_to_nsq"
SHORT_TIMEOUTS = "--consumer-opt=default_requeue_delay,5ms"


@pytest.fixture
def source(nsqd: NsqdServer) -> NsqdServer:
    """The nsqd that is copied from."""
    return nsqd


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdServer]:
    """The nsqd that is copied to; it refuses messages above 1,000 bytes."""
    with spawn_nsqd(tmp_path_factory.mktemp("target"), "--max-msg-size=1000") as server:
        yield server


@pytest.fixture(autouse=True)
def without_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up an unreachable destination immediately."""
    monkeypatch.setattr(relay, "PAUSES", ())


def arguments(source: NsqdServer, target: NsqdServer, topic: str, *words: str) -> tuple[str, ...]:
    """The command line of a tool that copies this topic."""
    places = f"--nsqd-tcp-address={source.tcp}", f"--destination-nsqd-tcp-address={target.tcp}"
    return (*places, f"--topic={topic}", *words)


def publishes(target: ScriptedNsqd) -> int:
    """The number of PUB and MPUB commands."""
    return len(target.lines(b"PUB", b"MPUB"))


async def test_each_message_is_copied(source: NsqdServer, target: NsqdServer) -> None:
    """Each message is copied unchanged to the topic of the same name."""
    topic, other = new_topic(), new_topic()
    bodies = [bytes(range(256)), b"\n", *[b"%d" % number for number in range(500)]]
    async with running(nsq_to_nsq, *arguments(source, target, topic, f"--topic={other}")):
        await publish(source, topic, *bodies)
        await publish(source, other, b"other")
        await all_finished(source, topic, CHANNEL, len(bodies))
        await all_finished(source, other, CHANNEL, 1)

    assert sorted(bodies) == sorted(await received(target, topic, len(bodies)))
    assert [b"other"] == await received(target, other, 1)


async def test_channel_and_destination_topic_can_be_set(
    source: NsqdServer, target: NsqdServer, lookupd: Server
) -> None:
    """`--destination-topic` gets all topics; both clients take options and name the tool.

    The sources are found through nsqlookupd.
    """
    topics, other = [new_topic(), new_topic()], new_topic()
    for topic in topics:
        await publish(source, topic, topic.encode())
    words = (
        f"--lookupd-http-address={lookupd.http}",
        *(f"--topic={topic}" for topic in topics),
        f"--destination-nsqd-tcp-address={target.tcp}",
        f"--destination-topic={other}",
        "--channel=mine",
        "--consumer-opt=client_id,taker",
        "--producer-opt=client_id,giver",
    )
    async with running(nsq_to_nsq, *words):
        for topic in topics:
            await all_finished(source, topic, "mine", 1)
        (taker,) = source.channel(topics[0], "mine")["clients"]
        givers = (await asyncio.to_thread(target.get_json, "/stats?format=json"))["producers"]

    assert sorted(topic.encode() for topic in topics) == sorted(await received(target, other, 2))
    assert ["taker", "giver"] == [taker["client_id"], givers[0]["client_id"]]
    for client in (taker, givers[0]):
        assert re.match(r"nsq_to_nsq/1\.3\.0 sparq/", client["user_agent"])


async def test_a_message_is_finished_once_its_copy_is_acknowledged(
    source: NsqdServer,
) -> None:
    """A message stays in flight until its copy is acknowledged; `--max-in-flight` limits these."""
    topic = new_topic()
    await publish(source, topic, *[b"%d" % number for number in range(10)])
    async with scripted() as (slow,):
        slow.on_publish = lambda peer, words, body: None
        places = (
            f"--nsqd-tcp-address={source.tcp}",
            f"--destination-nsqd-tcp-address={slow.address}",
        )
        words = (*places, f"--topic={topic}", "--max-in-flight=4")
        async with running(nsq_to_nsq, *words):
            await until_seen(lambda: stats(source, topic, CHANNEL) == (6, 4, 0))
            await until(lambda: bool(publishes(slow)))
            held = await asyncio.to_thread(stats, source, topic, CHANNEL)
            slow.on_publish = lambda peer, words, body: b"OK"
            for _ in range(publishes(slow)):
                slow.peers[0].send(0, b"OK")
            await all_finished(source, topic, CHANNEL, 10)

    assert (6, 4, 0) == held


async def test_messages_that_arrive_together_are_one_mpub(source: NsqdServer) -> None:
    """Messages that arrive together are published with one MPUB, or several if they are large."""
    topic, large, sizes = new_topic(), new_topic(), list[int]()
    await publish(source, topic, *[b"%d" % number for number in range(500)])
    await publish(source, large, *[b"x" * 100_000] * 10)
    async with scripted() as (target,):

        def on_publish(_peer: Peer, _words: list[bytes], body: bytes) -> bytes:
            sizes.append(len(body))
            return b"OK"

        target.on_publish = on_publish
        places = (
            f"--nsqd-tcp-address={source.tcp}",
            f"--destination-nsqd-tcp-address={target.address}",
        )
        words = (*places, f"--topic={topic}", f"--topic={large}", "--status-every=0")
        async with running(nsq_to_nsq, *words):
            await all_finished(source, topic, CHANNEL, 500)
            await all_finished(source, large, CHANNEL, 10)
        count = publishes(target)

    assert count <= 100
    assert 100_000 <= max(sizes) <= 256 << 10


@pytest.mark.parametrize("code", [b"E_BAD_MESSAGE no", b"E_PUB_FAILED full"])
async def test_a_refused_copy_is_requeued(source: NsqdServer, code: bytes) -> None:
    """If a copy is refused, the message is requeued with backoff until it is accepted."""
    topic, answers = new_topic(), [code, code, b"OK"]
    await publish(source, topic, b"again")
    async with scripted() as (picky,):
        picky.on_publish = lambda peer, words, body: answers.pop(0)
        words = (
            f"--destination-nsqd-tcp-address={picky.address}",
            f"--nsqd-tcp-address={source.tcp}",
            f"--topic={topic}",
            "--consumer-opt=backoff_multiplier,10ms",
        )
        async with running(nsq_to_nsq, *words, SHORT_TIMEOUTS):
            await all_finished(source, topic, CHANNEL, 1)

    assert [] == answers
    assert (0, 0, 1) <= stats(source, topic, CHANNEL)


async def test_a_restarted_destination_gets_every_message(
    source: NsqdServer, target: NsqdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A destination that was killed and restarted gets every message, without a requeue."""
    monkeypatch.setattr(relay, "PAUSES", (0.1,) * 1000)
    topic, count = new_topic(), 200
    async with running(nsq_to_nsq, *arguments(source, target, topic)):
        await publish(source, topic, b"first")
        await all_finished(source, topic, CHANNEL, 1)
        await asyncio.to_thread(target.kill9)
        await publish(source, topic, *[b"%d" % number for number in range(count)])
        await until_seen(lambda: stats(source, topic, CHANNEL)[1] > 0)
        await asyncio.to_thread(target.start)
        await all_finished(source, topic, CHANNEL, 1 + count)

    assert (0, 0, 0) == stats(source, topic, CHANNEL)
    assert 1 + count == len(set(await received(target, topic, 1 + count)))
