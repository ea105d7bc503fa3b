"""A program that uses the client API as users do, and must pass mypy --strict.

It is checked and not run; `assert_type` states the types that users can rely on. docs/api.md has
all signatures, and a test compares it with the code.
"""

from collections.abc import Awaitable
from concurrent.futures import Future
from typing import TYPE_CHECKING, assert_type

import sparq
from sparq.client import (
    Batch,
    BlockingBatch,
    Config,
    ConnectionLostError,
    Consumer,
    Message,
    Producer,
    PublishError,
    Receipt,
    RefusedError,
    RemoteError,
    SparqClientError,
)

if TYPE_CHECKING:
    sparq.client.NoSuchName  # type: ignore[attr-defined]  # noqa: B018 - mypy must notice it

NSQD = "127.0.0.1:4150"
LOOKUPD = ["127.0.0.1:4161", "https://lookupd.example/"]


async def handle(message: Message) -> None:
    """A handler that is a coroutine function."""
    assert_type((message.body, message.id, message.attempts), tuple[bytes, str, int])
    message.auto_respond = False
    if not message.responded:
        await message.requeue(1.5, backoff=False)


def give_up(message: Message) -> None:
    """A handler that is an ordinary function."""
    assert_type(message.finish(), Awaitable[None])


def consumer(config: Config) -> Consumer:
    """A consumer with every argument."""
    return Consumer(
        "clicks",
        "archive",
        nsqd_tcp_addresses=NSQD,
        lookupd_http_addresses=LOOKUPD,
        handler=handle,
        concurrency=10,
        on_giving_up=give_up,
        dead_letter="",
        discovery_filter=lambda addresses: addresses[:3],
        config=config,
        max_in_flight=100,
    )


async def consume() -> None:
    """Iterate over messages and batches."""
    config = Config.of(Config(msg_timeout=60.0), {"snappy": True})
    async with consumer(config) as found:
        async for message in found:
            assert_type(message, Message)
        async for batch in found.batches(500, wait=1.0):
            await store(batch)
        assert_type((found.connections, found.errors), tuple[list[str], dict[str, str]])
        found.max_in_flight = 50
        await found.disconnect_from_nsqd(NSQD)


async def store(batch: Batch) -> None:
    """A batch is a sequence of messages."""
    assert_type((batch[0], batch[:10]), tuple[Message, list[Message]])
    assert_type([message.body for message in batch], list[bytes])
    await batch.finish()


def told(outcome: Receipt | Exception) -> None:
    """Handle the outcome of a publish that is not awaited."""
    if isinstance(outcome, Receipt):
        assert_type((outcome.nsqd, outcome.attempts, outcome.resent), tuple[str, int, int])


async def publish() -> str:
    """Publish in every way, and handle errors, subclasses first."""
    async with Producer([NSQD], lookupd_http_addresses=LOOKUPD, max_in_flight=1) as producer:
        producer.publish_nowait("clicks", b"one", told)
        assert_type(await producer.multi_publish("clicks", [b"one", b"two"]), Receipt)
        assert_type(await producer.publish_deferred("clicks", b"later", 60.0), Receipt)
        try:
            assert_type(await producer.publish("clicks", b"one", timeout_seconds=5.0), Receipt)
        except RefusedError as refused:
            return refused.meaning
        except RemoteError as remote:
            return f"{remote.code} {remote.text} {remote.fatal}"
        except PublishError as given_up:
            return f"{given_up.attempts} {given_up.unanswered}"
        except ConnectionLostError as lost:
            assert_type(lost.executed, bool | None)
        except SparqClientError as error:
            return str(error)
    return ""


def script() -> None:
    """Use the blocking API."""
    with sparq.connect(NSQD, lookupd_http_addresses=LOOKUPD, max_in_flight=10) as session:
        with session.producer(publish_timeout=5.0) as producer:
            assert_type(producer.publish("clicks", b"one", timeout_seconds=1.0), Receipt)
            assert_type(producer.submit("clicks", b"one"), Future[Receipt])
        with session.consumer("clicks", "archive", max_in_flight=5) as consumer:
            for message in consumer.messages(idle_timeout=1.0):
                assert_type(message, Message)
            assert_type(consumer.receive(timeout_seconds=1.0), Message)
            for batch in consumer.batches(100, 0.5):
                store_at_once(batch)


def store_at_once(batch: BlockingBatch) -> None:
    """Use a batch of the blocking consumer."""
    assert_type(batch.bodies, list[bytes])
    batch.requeue(1.0, backoff=False)
