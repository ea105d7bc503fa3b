"""A program that uses the whole client API, and must pass mypy --strict.

It is checked and not run; `assert_type` states the types that users can rely on.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, assert_type

import sparq
from sparq.client import (
    AlreadyRespondedError,
    AuthRequiredError,
    Batch,
    BlockingBatch,
    BlockingConsumer,
    BlockingProducer,
    ClosedError,
    Config,
    ConnectionLostError,
    Consumer,
    Counters,
    Message,
    Producer,
    ProducerFullError,
    PublishError,
    Receipt,
    RefusedError,
    RemoteError,
    Session,
    SparqClientError,
    TlsError,
    WrongPeerError,
)

if TYPE_CHECKING:
    sparq.client.NoSuchName  # type: ignore[attr-defined]  # noqa: B018 - mypy must notice it

NSQD = "127.0.0.1:4150"
LOOKUPD = ["127.0.0.1:4161", "https://lookupd.example/"]


def options() -> Config:
    """Options as arguments, from a mapping, from text and from a file."""
    config = Config(max_in_flight=10, tls_v1=True, msg_timeout=60.0, sample_rate=50)
    config = Config.of(config, {"snappy": True})
    config = Config.from_mapping({"max-attempts": 3}, base=config)
    config = Config.from_text({"msg_timeout": "90s"})
    config = Config.load("client.toml", table="nsq")
    assert_type(config.max_in_flight, int)
    assert_type(config.tls_context(check_host=False), ssl.SSLContext)
    assert_type(config.identify(), dict[str, Any])
    assert_type(config.identify_fields(), dict[str, Any])
    assert_type(config.lookupd_headers("https://lookupd"), dict[str, str])
    return config


async def handle(message: Message) -> None:
    """A handler that is a coroutine function."""
    assert_type(message.body, bytes)
    assert_type(message.id, str)
    assert_type(message.raw_id, bytes)
    assert_type(message.attempts, int)
    assert_type(message.timestamp_ns, int)
    assert_type(message.expires_at, float)
    assert_type(message.nsqd, str)
    assert_type(message.letter, Mapping[str, str] | None)
    assert_type(message.stale, bool)
    message.auto_respond = False
    await message.touch()
    if not message.responded:
        await message.requeue(1.5, backoff=False)


def give_up(message: Message) -> None:
    """A handler that is an ordinary function."""
    assert_type(message.finish(), Awaitable[None])


def first_three(addresses: list[str]) -> list[str]:
    """A filter of discovered addresses."""
    return addresses[:3]


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
        discovery_filter=first_three,
        config=config,
        max_in_flight=100,
    )


async def consume(config: Config) -> None:
    """Iterate over messages and batches, and read every property."""
    async with consumer(config) as found:
        async for message in found:
            assert_type(message, Message)
        async for batch in found.batches(500, wait=1.0):
            await handle_batch(batch)
        assert_type(found.topic, str)
        assert_type(found.channel, str)
        assert_type(found.config, Config)
        assert_type(found.connections, list[str])
        assert_type(found.errors, dict[str, str])
        assert_type(found.in_flight, int)
        assert_type(found.backoff_level, int)
        assert_type(found.is_starved, bool)
        assert_type(found.is_paused, bool)
        counted(found.counters)
        found.max_in_flight = 50
        await found.until_connected()
        found.pause()
        found.resume()
        found.connect_to_nsqd(NSQD)
        await found.disconnect_from_nsqd(NSQD)
        found.connect_to_nsqlookupd(LOOKUPD[0])
        found.disconnect_from_nsqlookupd(LOOKUPD[0])
    found.start()
    await found.stop(wait_seconds=5.0)
    await found.join()


def counted(counters: Counters) -> int:
    """Read the consumer's counters."""
    seen = counters.received + counters.finished + counters.requeued + counters.touched
    return seen + counters.given_up + counters.expired + counters.lost


async def handle_batch(batch: Batch) -> None:
    """A batch is a sequence of messages."""
    assert_type(len(batch), int)
    assert_type(batch[0], Message)
    assert_type(batch[:10], list[Message])
    assert_type(batch.bodies, list[bytes])
    assert_type(batch.attempts_max, int)
    assert_type(batch.expires_at, float)
    assert_type([message.body for message in batch], list[bytes])
    await batch.touch()
    if batch.attempts_max > 3 and not batch.responded:
        await batch.requeue(0.5, backoff=True)
    else:
        await batch.finish()


def told(outcome: Receipt | Exception) -> None:
    """Handle the outcome of a publish that is not awaited."""
    if isinstance(outcome, Receipt):
        assert_type(outcome.nsqd, str)
        assert_type(outcome.attempts, int)
        assert_type(outcome.resent, int)


async def publish(config: Config) -> None:
    """Publish in every way."""
    async with Producer([NSQD], lookupd_http_addresses=LOOKUPD, config=config) as producer:
        assert_type(await producer.publish("clicks", b"one", timeout_seconds=5.0), Receipt)
        assert_type(await producer.multi_publish("clicks", [b"one", b"two"]), Receipt)
        assert_type(await producer.publish_deferred("clicks", b"later", 60.0), Receipt)
        producer.publish_nowait("clicks", b"one", told)
        producer.multi_publish_nowait("clicks", [b"one"], on_done=told)
        producer.publish_deferred_nowait("clicks", b"later", 60.0)
        await producer.drain()
        await producer.flush()
        assert_type(await producer.ping(timeout_seconds=1.0), dict[str, float])
        await producer.until_connected(1.0)
        assert_type(producer.published, int)
        assert_type(producer.failed, int)
        assert_type(producer.resent, int)
        assert_type(producer.under_way, int)
        assert_type(producer.connections, list[str])
        assert_type(producer.errors, dict[str, str])
        assert_type(producer.config, Config)
    producer.start()
    await producer.close()


async def go_wrong(producer: Producer) -> str:
    """Handle every error, subclasses first."""
    try:
        await producer.publish("clicks", b"one")
    except RefusedError as refused:
        return refused.meaning
    except RemoteError as remote:
        assert_type(remote.frame_text(), bytes)
        return f"{remote.code} {remote.text} {remote.fatal} {remote.http_status}"
    except PublishError as given_up:
        return f"{given_up.attempts} {given_up.unanswered}"
    except ConnectionLostError as lost:
        assert_type(lost.executed, bool | None)
    except (WrongPeerError, TlsError, AuthRequiredError, ProducerFullError):
        return "not now"
    except (ClosedError, AlreadyRespondedError):
        return "not so"
    except SparqClientError as error:
        return str(error)
    return ""


def script() -> None:
    """Use the blocking API."""
    with sparq.connect(NSQD, lookupd_http_addresses=LOOKUPD, max_in_flight=10) as session:
        assert_type(session, Session)
        assert_type(session.config, Config)
        send(session.producer(publish_timeout=5.0))
        receive(session.consumer("clicks", "archive", max_in_flight=5))
    session.close()


def send(producer: BlockingProducer) -> None:
    """Publish with the blocking producer."""
    with producer:
        assert_type(producer.publish("clicks", b"one", timeout_seconds=1.0), Receipt)
        assert_type(producer.multi_publish("clicks", [b"one"]), Receipt)
        assert_type(producer.publish_deferred("clicks", b"later", 60.0), Receipt)
        assert_type(producer.submit("clicks", b"one"), Future[Receipt])
        assert_type(producer.multi_submit("clicks", [b"one"]), Future[Receipt])
        assert_type(producer.submit_deferred("clicks", b"later", 60.0), Future[Receipt])
        producer.flush()
        assert_type(producer.ping(), dict[str, float])
        producer.until_connected()
        assert_type(producer.published + producer.failed + producer.resent, int)
        assert_type(producer.under_way, int)
        assert_type(producer.connections, list[str])
        assert_type(producer.errors, dict[str, str])
        assert_type(producer.config, Config)
    producer.close()
    assert_type(producer.closed, bool)


def receive(consumer: BlockingConsumer) -> None:
    """Receive messages in every way."""
    with consumer:
        for message in consumer:
            assert_type(message, Message)
            message.finish()
        for message in consumer.messages(idle_timeout=1.0):
            message.requeue()
        assert_type(consumer.receive(timeout_seconds=1.0), Message)
        for batch in consumer.batches(100, 0.5, idle_timeout=1.0):
            store(batch)
        assert_type(consumer.connections, list[str])
        assert_type(consumer.errors, dict[str, str])
        assert_type(consumer.in_flight + consumer.backoff_level, int)
        assert_type(consumer.is_starved or consumer.is_paused, bool)
        assert_type(consumer.counters, Counters)
        assert_type(consumer.config, Config)
        assert_type((consumer.topic, consumer.channel), tuple[str, str])
        consumer.connect_to_nsqd(NSQD)
        consumer.disconnect_from_nsqd(NSQD)
        consumer.connect_to_nsqlookupd(LOOKUPD[0])
        consumer.disconnect_from_nsqlookupd(LOOKUPD[0])
        consumer.max_in_flight = 20
        consumer.until_connected(timeout_seconds=1.0)
        consumer.pause()
        consumer.resume()
    consumer.close(wait_seconds=1.0)
    assert_type(consumer.closed, bool)


def store(batch: BlockingBatch) -> None:
    """Use a batch of the blocking consumer."""
    assert_type(batch.bodies, list[bytes])
    assert_type(batch[0], Message)
    assert_type(len(batch), int)
    batch.touch()
    if batch.bodies[0] and not batch.responded:
        batch.requeue(1.0, backoff=False)
    else:
        batch.finish()
