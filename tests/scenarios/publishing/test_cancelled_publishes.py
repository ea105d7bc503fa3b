"""Random publishes on a real nsqd, some cancelled, timed out or refused at random moments.

A publish that got OK is stored once; each refusal is reported to the publish that it belongs to; a
cancelled or timed out publish is stored once or not at all. This would reveal an answer that is
assigned to the wrong publish.
"""

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparq.client import Consumer, Producer, PublishError, Receipt, RemoteError
from tests.client.scripted import scripted
from tests.support.servers import NsqdServer
from tests.support.shared_daemons import SharedDaemons
from tests.support.waiting import let_all_run, until

TOO_LONG_SECONDS = 90_000.0


@dataclass(frozen=True)
class Step:
    """One publish: its kind, and after how many turns of the loop its task is cancelled."""

    kind: str
    size: int
    cancelled_after: int | None
    timeout_seconds: float | None
    pause: int


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(["publish", "publish", "multi", "deferred", "refused", "nowait"]),
        st.integers(0, 3000),
        st.none() | st.integers(0, 6),
        st.sampled_from([None, None, None, 1e-6, 0.001]),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=30,
)


@dataclass
class Run:
    """Performs a list of steps with one producer, and records the outcome of each body."""

    producer: Producer
    topic: str
    outcomes: dict[bytes, object]

    async def take(self, steps: list[Step]) -> None:
        """Start each step, cancel those that are due, and wait for the rest."""
        tasks: list[asyncio.Task[None]] = []
        cancels: list[tuple[int, asyncio.Task[None]]] = []
        for number, step in enumerate(steps):
            tasks.append(asyncio.create_task(self.step(number, step)))
            if step.cancelled_after is not None:
                cancels.append((step.cancelled_after, tasks[-1]))
            for _ in range(step.pause):
                cancels = await self.turn(cancels)
        while cancels:
            cancels = await self.turn(cancels)
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.producer.flush()

    async def turn(
        self, cancels: list[tuple[int, asyncio.Task[None]]]
    ) -> list[tuple[int, asyncio.Task[None]]]:
        """Run one turn of the loop and cancel what is due; return the remaining cancellations."""
        await let_all_run(1)
        for turns, task in cancels:
            if not turns:
                task.cancel()
        return [(turns - 1, task) for turns, task in cancels if turns]

    async def step(self, number: int, step: Step) -> None:
        """Perform one publish and record its outcome."""
        bodies = [b"%d-%d-" % (number, part) + bytes(step.size) for part in range(2)]
        if step.kind != "multi":
            del bodies[1]
        for body in bodies:
            self.outcomes[body] = step.kind
        if step.kind == "nowait":
            tell = self.outcomes.__setitem__
            self.producer.publish_nowait(
                self.topic, bodies[0], lambda outcome: tell(bodies[0], outcome)
            )
            return
        try:
            outcome: object = await self.publish(step, bodies)
        except (PublishError, RemoteError) as error:
            outcome = error
        for body in bodies:
            self.outcomes[body] = outcome

    async def publish(self, step: Step, bodies: list[bytes]) -> Receipt:
        """Publish in the way that the step selects."""
        seconds = step.timeout_seconds
        if step.kind == "publish":
            return await self.producer.publish(self.topic, bodies[0], timeout_seconds=seconds)
        if step.kind == "multi":
            return await self.producer.multi_publish(self.topic, bodies, timeout_seconds=seconds)
        delay = 0.0 if step.kind == "deferred" else TOO_LONG_SECONDS
        return await self.producer.publish_deferred(
            self.topic, bodies[0], delay, timeout_seconds=seconds
        )

    def check(self, steps: list[Step], stored: Counter[bytes]) -> None:
        """Assert that nsqd has stored what the publishers' outcomes allow."""
        for body, outcome in self.outcomes.items():
            is_refused = steps[int(body.split(b"-")[0])].kind == "refused"
            if isinstance(outcome, Receipt):
                assert not is_refused
                assert 1 <= stored[body] <= 1 + outcome.resent
            elif isinstance(outcome, RemoteError):
                assert is_refused
                assert outcome.code == "E_INVALID"
                assert stored[body] == 0
            else:
                assert stored[body] <= 1 - is_refused
        assert stored.keys() <= self.outcomes.keys()


async def stored(nsqd: NsqdServer, topic: str) -> Counter[bytes]:
    """Consume all bodies of the topic, up to a last message that marks the end."""
    bodies: Counter[bytes] = Counter()
    await asyncio.to_thread(nsqd.post, f"/pub?topic={topic}", b"last")
    options = {"max_in_flight": 2500, "max_attempts": 0}
    async with Consumer(topic, "c", nsqd_tcp_addresses=nsqd.tcp, **options) as consumer:
        while b"last" not in bodies:
            message = await anext(consumer)
            bodies[message.body] += 1
            message.finish()
        await until(lambda: not nsqd.channel(topic, "c")["depth"])
    del bodies[b"last"]
    return bodies


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Suppress log lines about connections that end after a refusal."""
    caplog.set_level(logging.CRITICAL, "sparq.client")


def test_cancelled_publishes_do_not_affect_others(shared_daemons: SharedDaemons) -> None:
    """For random publishes, cancelled at random turns, the outcomes match the stored messages."""
    nsqd = shared_daemons.nsqds[0]
    numbers = iter(range(1_000_000))

    async def run(steps: list[Step], pending: int) -> None:
        topic = shared_daemons.make(f"cancelled-{next(numbers)}")
        options = {"max_reconnect_delay": 0.01, "publish_attempts": 100}
        async with Producer(nsqd.tcp, max_pending_bytes=pending, **options) as producer:
            await until(lambda: producer.connections)
            story = Run(producer, topic, {})
            await story.take(steps)
            assert (producer.under_way, producer._queue_bytes) == (0, 0)
            last = await producer.publish(topic, b"check")
        bodies = await stored(nsqd, topic)
        assert bodies.pop(b"check") == 1 + last.resent
        story.check(steps, bodies)

    @settings(max_examples=20)
    @given(STEPS, st.sampled_from([1, 2000, 1 << 24]))
    def stories(steps: list[Step], pending: int) -> None:
        asyncio.run(run(steps, pending))

    stories()


async def test_a_close_that_is_cancelled_ends_the_producer() -> None:
    """A cancelled close, however often, still ends the producer.

    It does not wait for unanswered publishes, and neither keeps nor opens a connection.
    """
    async with scripted() as [nsqd]:
        nsqd.on_publish = lambda peer, words, body: None
        producer = Producer(nsqd.address)
        publish = asyncio.create_task(producer.publish("t", b"x"))
        await until(lambda: nsqd.lines(b"PUB"))
        closing = asyncio.create_task(producer.close())
        for _ in range(5):
            await asyncio.sleep(0)  # one turn later each time
            closing.cancel()
        await until(lambda: not nsqd.peers)

        assert closing.cancelled()
        with pytest.raises(PublishError, match="1 without an answer"):
            await publish
