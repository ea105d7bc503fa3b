"""client.producer: publishes skip a draining nsqd, and try it again later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sparq.client import Producer, PublishError
from sparq.client import producer as producer_module
from sparq.protocol.errors import RemoteError
from tests.client.scripted import OK, Peer, ScriptedNsqd, connected
from tests.support.waiting import until

DRAINS = b" failed nsqd is draining"


def draining(_peer: Peer, words: list[bytes], _body: bytes) -> bytes:
    return b"E_" + words[0] + b"_FAILED " + words[0] + DRAINS


def topic_draining(_peer: Peer, words: list[bytes], _body: bytes) -> bytes:
    if words[1] != b"moved":
        return OK
    return b"E_PUB_FAILED PUB failed topic is draining at this nsqd"


@pytest.fixture
async def two_nsqds() -> AsyncIterator[list[ScriptedNsqd]]:
    """Two scripted nsqds; the first is draining."""
    nsqds = [ScriptedNsqd(), ScriptedNsqd()]
    nsqds[0].on_publish = draining
    for nsqd in nsqds:
        await nsqd.start()
    yield nsqds
    for nsqd in nsqds:
        await nsqd.stop()


def publishes(nsqd: ScriptedNsqd) -> int:
    """Return the number of publish commands that an nsqd received."""
    return sum(line.split()[0] in (b"PUB", b"MPUB", b"DPUB") for _, line in nsqd.script)


async def test_a_publish_that_is_refused_by_draining_goes_to_another_nsqd(
    two_nsqds: list[ScriptedNsqd],
) -> None:
    """A publish that the draining nsqd refuses goes to the other, as all later ones do directly."""
    async with Producer([nsqd.address for nsqd in two_nsqds], publish_attempts=1) as producer:
        await connected(producer, 2)
        for _ in range(20):
            assert two_nsqds[1].address == (await producer.publish("t", b"x")).nsqd
        assert two_nsqds[1].address == (await producer.multi_publish("t", [b"x", b"y"])).nsqd
        assert two_nsqds[1].address == (await producer.publish_deferred("t", b"x", 1)).nsqd
        assert (23, 0, 0) == (producer.published, producer.failed, producer.resent)

    assert (1, 22) == (publishes(two_nsqds[0]), publishes(two_nsqds[1]))


async def test_a_draining_nsqd_is_tried_again_after_retry_seconds(
    two_nsqds: list[ScriptedNsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After RETRY_SECONDS one publish tries the draining nsqd; its OK puts it back in use."""
    monkeypatch.setattr(producer_module, "RETRY_SECONDS", 0.2)
    async with Producer([nsqd.address for nsqd in two_nsqds]) as producer:
        await connected(producer, 2)
        while publishes(two_nsqds[0]) < 3:
            assert two_nsqds[1].address == (await producer.publish("t", b"x")).nsqd
        two_nsqds[0].on_publish = lambda _peer, _words, _body: OK
        while (await producer.publish("t", b"x")).nsqd != two_nsqds[0].address:
            pass
        used = {(await producer.publish("t", b"x")).nsqd for _ in range(4)}

    assert {nsqd.address for nsqd in two_nsqds} == used


async def test_the_refusal_is_raised_if_no_other_nsqd_accepts(
    two_nsqds: list[ScriptedNsqd],
) -> None:
    """If the only nsqd or all of them drain, the refusal is raised immediately."""
    two_nsqds[1].on_publish = draining
    for nsqds in (two_nsqds[:1], two_nsqds):
        async with Producer([nsqd.address for nsqd in nsqds]) as producer:
            await connected(producer, len(nsqds))
            for _ in range(3):
                with pytest.raises(RemoteError, match="nsqd is draining"):
                    await producer.publish("t", b"x")


async def test_a_refused_publish_waits_for_an_nsqd_that_is_down(
    two_nsqds: list[ScriptedNsqd],
) -> None:
    """A refused publish waits for an nsqd that is down, until its timeout."""
    await two_nsqds[1].stop()
    async with Producer([nsqd.address for nsqd in two_nsqds], max_reconnect_delay=0.2) as producer:
        await connected(producer, 1)
        publish = asyncio.create_task(producer.publish("t", b"x"))
        await until(lambda: publishes(two_nsqds[0]) == 1)
        await two_nsqds[1].start()
        assert two_nsqds[1].address == (await publish).nsqd

        await two_nsqds[1].stop()
        with pytest.raises(PublishError, match="nsqd is draining"):
            await producer.publish("t", b"x", timeout_seconds=0.3)
    await two_nsqds[1].start()


async def test_a_draining_topic_sends_only_its_own_publishes_elsewhere(
    two_nsqds: list[ScriptedNsqd],
) -> None:
    """Only the draining topic's publishes go elsewhere; if all refuse them, the error is raised."""
    two_nsqds[0].on_publish = topic_draining
    async with Producer([nsqd.address for nsqd in two_nsqds], publish_attempts=1) as producer:
        await connected(producer, 2)
        for _ in range(6):
            assert two_nsqds[1].address == (await producer.publish("moved", b"x")).nsqd
        used = {(await producer.publish("other", b"x")).nsqd for _ in range(6)}
        assert {nsqd.address for nsqd in two_nsqds} == used
        two_nsqds[1].on_publish = topic_draining
        with pytest.raises(RemoteError, match="topic is draining"):
            await producer.publish("moved", b"x")


async def test_an_nsqd_listed_as_draining_is_skipped_until_it_is_unlisted(
    two_nsqds: list[ScriptedNsqd],
) -> None:
    """A listed nsqd is skipped, whatever it answers; unlisting it also clears its own refusal."""
    first, second = (nsqd.address for nsqd in two_nsqds)
    async with Producer([first, second]) as producer:
        await connected(producer, 2)

        async def used() -> set[str]:
            return {(await producer.publish("t", b"x")).nsqd for _ in range(4)}

        assert {second} == await used()  # the first one has refused, and is now listed as well
        two_nsqds[0].on_publish = lambda _peer, _words, _body: OK
        producer._list_draining(frozenset({first}))
        assert {second} == await used()
        producer._list_draining(frozenset())
        assert {first, second} == await used()
