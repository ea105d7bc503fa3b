"""The requirements for a consumer, from its start to its stop, tested against real nsqds."""

import asyncio
import logging
import time
from typing import Any
from urllib.parse import quote

import pytest

from sparq.client import AlreadyRespondedError, Consumer, Message
from sparq.protocol import commands
from tests.scenarios.client_library.tap import Tap, tapped
from tests.support.servers import NsqdServer, free_port
from tests.support.shared_daemons import SharedDaemons
from tests.support.waiting import until

NAMES = [
    *("a", "a.b-c_D9", "x" * 64, "a#ephemeral", "x" * 54 + "#ephemeral", ".", "-"),
    *("", "x" * 65, "a b", "ä", "#ephemeral", "a#ephemeral#ephemeral", "a\n", "a/b", "a#eph", "*"),
]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Suppress the log lines of losses and failures that the tests cause."""
    caplog.set_level(logging.CRITICAL, "sparq.client")


def consumer_of(place: Tap | NsqdServer, topic: str, **options: Any) -> Consumer:
    """A consumer of the topic's channel "c", through a tap or directly."""
    address = place.address if isinstance(place, Tap) else place.tcp
    given = {"max_in_flight": 10, "max_reconnect_delay": 0.1, **options}
    return Consumer(topic, "c", nsqd_tcp_addresses=address, **given)


def publish(nsqd: NsqdServer, topic: str, *bodies: str) -> None:
    """Publish each body, in order."""
    nsqd.post(f"/mpub?topic={topic}", "\n".join(bodies).encode())


async def test_valid_names_are_those_that_nsqd_accepts(shared_daemons: SharedDaemons) -> None:
    """A consumer refuses exactly the names of topics and channels that nsqd refuses."""

    def refuses(topic: str, channel: str) -> bool:
        try:
            Consumer(topic, channel, nsqd_tcp_addresses="a:1")
        except ValueError:
            return True
        return False

    nsqd = shared_daemons.nsqds[0]
    for name in NAMES:
        status, _ = nsqd.request("POST", f"/topic/create?topic={quote(name)}")
        assert refuses(name, "c") is refuses("t", name) is (status != 200), name


async def test_the_handlers_outcome_is_the_response(shared_daemons: SharedDaemons) -> None:
    """Returning finishes a message, raising requeues it; a handler can respond itself, or later."""
    topic, nsqd = shared_daemons.make("handled"), shared_daemons.nsqds[0]
    seen: list[tuple[bytes, int]] = []
    held: list[Message] = []

    async def handle(message: Message) -> None:
        seen.append((message.body, message.attempts))
        if message.body == b"bad" and message.attempts == 1:
            raise RuntimeError("cannot")
        if message.body == b"held":
            message.auto_respond = False
            held.append(message)
        if message.body == b"own":
            message.finish()

    options = {"concurrency": 2, "max_backoff_duration": 0.0, "default_requeue_delay": 0.0}
    publish(nsqd, topic, "good", "bad", "own", "held")
    async with consumer_of(nsqd, topic, handler=handle, **options):
        await until(lambda: len(seen) == 5)
        await until(lambda: nsqd.channel(topic, "c")["in_flight_count"] == 1)
        held[0].finish()
        await until(lambda: nsqd.channel(topic, "c")["in_flight_count"] == 0)

    assert sorted(seen) == [(b"bad", 1), (b"bad", 2), (b"good", 1), (b"held", 1), (b"own", 1)]
    assert nsqd.channel(topic, "c")["requeue_count"] == 1
    assert nsqd.channel(topic, "c")["depth"] == 0


async def test_a_message_has_nsqds_fields(shared_daemons: SharedDaemons) -> None:
    """A message has nsqd's fields; a second response, or a TOUCH after it, raises an error."""
    topic, nsqd = shared_daemons.make("facts"), shared_daemons.nsqds[0]
    async with tapped(nsqd) as [tap], consumer_of(tap, topic) as consumer:
        publish(nsqd, topic, "body")
        message = await anext(consumer)

        assert (message.body, message.attempts, message.nsqd) == (b"body", 1, tap.address)
        assert abs(message.timestamp_ns / 1e9 - time.time()) < 60
        assert len(message.id) == 16
        assert not message.responded
        message.touch()
        message.finish()
        for answer in (message.finish, message.requeue, message.touch):
            with pytest.raises(AlreadyRespondedError):
                answer()
        await until(lambda: nsqd.channel(topic, "c")["in_flight_count"] == 0)
        assert tap.lines(b"TOUCH", b"FIN", b"REQ") == [
            b"TOUCH " + message.raw_id,
            b"FIN " + message.raw_id,
        ]


async def test_a_message_that_fails_too_often_is_given_up(shared_daemons: SharedDaemons) -> None:
    """A message delivered more than `max_attempts` times goes to `on_giving_up` and is finished."""
    topic, nsqd = shared_daemons.make("hopeless"), shared_daemons.nsqds[0]
    given_up: list[int] = []
    options = {"max_attempts": 2, "on_giving_up": lambda message: given_up.append(message.attempts)}
    async with consumer_of(nsqd, topic, **options) as consumer:
        publish(nsqd, topic, "x")
        for _ in range(2):
            (await anext(consumer)).requeue(0, backoff=False)
        task = asyncio.create_task(anext(consumer))
        await until(lambda: given_up == [3])
        await until(lambda: nsqd.channel(topic, "c")["in_flight_count"] == 0)
        task.cancel()

    assert consumer.counters.given_up == 1
    assert nsqd.channel(topic, "c")["depth"] == nsqd.channel(topic, "c")["deferred_count"] == 0


async def test_counters_and_starvation(shared_daemons: SharedDaemons) -> None:
    """The counters are exact; `is_starved` is true while nearly all of RDY is in flight."""
    topic, nsqd = shared_daemons.make("figures"), shared_daemons.nsqds[0]
    publish(nsqd, topic, *map(str, range(12)))
    async with consumer_of(nsqd, topic) as consumer:
        held = [await anext(consumer) for _ in range(10)]
        assert consumer.is_starved
        assert (consumer.in_flight, consumer.connections) == (10, [nsqd.tcp])
        for message in held[:8]:
            message.finish()
        held[8].requeue(10, backoff=False)
        await until(lambda: consumer.counters.received == 12)
        assert not consumer.is_starved

        counters = consumer.counters
        assert (counters.received, counters.finished, counters.requeued) == (12, 8, 1)
        assert consumer.in_flight == 3


async def test_max_in_flight_changes_at_run_time(shared_daemons: SharedDaemons) -> None:
    """`max_in_flight` 0 sends RDY 0; a higher value resumes delivery with that limit."""
    topic, nsqd = shared_daemons.make("changing"), shared_daemons.nsqds[0]
    async with tapped(nsqd) as [tap], consumer_of(tap, topic) as consumer:
        await until(lambda: tap.ready == 10)
        consumer.max_in_flight = 0
        await until(lambda: nsqd.channel(topic, "c")["clients"][0]["ready_count"] == 0)
        publish(nsqd, topic, "x", "y", "z")
        consumer.max_in_flight = 2
        await until(lambda: consumer.in_flight == 2)
        assert tap.lines(b"RDY") == [b"RDY 10", b"RDY 0", b"RDY 2"]
        (await anext(consumer)).finish()
        await until(lambda: consumer.counters.received == 3)


async def test_stop_lets_handlers_finish(shared_daemons: SharedDaemons) -> None:
    """`stop` sends CLS, waits until handlers have responded to all messages, and disconnects."""
    topic, nsqd = shared_daemons.make("stopping"), shared_daemons.nsqds[0]
    gate, begun = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        begun.set()
        await gate.wait()

    publish(nsqd, topic, *map(str, range(5)))
    async with tapped(nsqd) as [tap]:
        consumer = consumer_of(tap, topic, handler=handle)
        consumer.start()
        await begun.wait()
        await until(lambda: consumer.in_flight == 5)
        stopping = asyncio.create_task(consumer.stop())
        await until(lambda: tap.lines(b"CLS"))
        assert not tap.lines(b"FIN")
        gate.set()
        await asyncio.wait_for(stopping, 10)

        assert len(tap.lines(b"FIN")) == 5
        await until(lambda: not tap.clients)
    assert nsqd.channel(topic, "c")["in_flight_count"] == nsqd.channel(topic, "c")["depth"] == 0


async def test_stop_is_bounded(shared_daemons: SharedDaemons) -> None:
    """With a hanging handler `stop` takes at most `stop_timeout`, without connections no time."""
    topic, nsqd = shared_daemons.make("hanging"), shared_daemons.nsqds[0]

    async def hang(message: Message) -> None:
        await asyncio.Event().wait()

    publish(nsqd, topic, "x")
    consumer = consumer_of(nsqd, topic, handler=hang, stop_timeout=0.1)
    consumer.start()
    await until(lambda: consumer.in_flight)
    await asyncio.wait_for(consumer.stop(), 10)
    await until(lambda: not nsqd.channel(topic, "c")["clients"])

    lonely = Consumer(topic, "c", nsqd_tcp_addresses=f"127.0.0.1:{free_port()}")
    lonely.start()
    await until(lambda: lonely.errors)
    await asyncio.wait_for(lonely.stop(), 10)


async def test_refused_responses_are_harmless_and_other_errors_reconnect(
    shared_daemons: SharedDaemons,
) -> None:
    """Refused FIN, REQ and TOUCH are counted without backoff.

    After E_INVALID the client reconnects.
    """
    topic, nsqd = shared_daemons.make("refusals"), shared_daemons.nsqds[0]
    async with tapped(nsqd) as [tap], consumer_of(tap, topic) as consumer:
        await until(lambda: consumer.connections)
        [subscription] = consumer._flow.subscriptions
        unknown = b"0" * 16
        for command in (commands.fin(unknown), commands.req(unknown, 0), commands.touch(unknown)):
            subscription.connection.send(command)
        await until(lambda: subscription.connection.refused_responses == 3)
        assert subscription.connection.live
        assert consumer.backoff_level == 0

        subscription.connection.send(b"NONSENSE\n")
        await until(lambda: len(tap.lines(b"SUB")) == 2)
        publish(nsqd, topic, "x")
        (await anext(consumer)).finish()
