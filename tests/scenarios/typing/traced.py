"""A program with tracing spans, for mypy: the API of the extra `otel` (see program.py)."""

from __future__ import annotations

from typing import Any, assert_type

from opentelemetry import trace

from sparq.client import Batch, BlockingProducer, Consumer, Message, Producer, Receipt
from sparq.client.telemetry import Bodies, Source, Telemetry, TracedProducer


async def handle(message: Message) -> None:
    """A handler."""


async def traced(producer: Producer, consumer: Consumer, batch: Batch) -> None:
    """Create spans in every way."""
    telemetry = Telemetry(tracer_provider=trace.get_tracer_provider(), carry_context=True)
    sender = telemetry.producer(producer)
    assert_type(sender, TracedProducer)
    assert_type(await sender.publish("clicks", b"one", timeout_seconds=1.0), Receipt)
    assert_type(await sender.multi_publish("clicks", [b"one"]), Receipt)
    assert_type(await sender.publish_deferred("clicks", b"later", 60.0), Receipt)
    Consumer("clicks", "c", nsqd_tcp_addresses="h:1", handler=telemetry.handler(handle))
    async for message in consumer:
        with telemetry.processing(message, consumer) as seen:
            assert_type(seen, Message)
    with telemetry.processing_batch(batch, consumer) as bodies:
        assert_type(bodies, list[bytes])


def blocking(telemetry: Telemetry, producer: BlockingProducer, batch: Any) -> None:
    """Create spans around calls of the blocking API."""
    with telemetry.publishing("clicks", [b"one"]) as bodies:
        producer.multi_publish("clicks", bodies)
    source: Source = batch
    found: Bodies = batch
    assert_type((source.topic, source.channel), tuple[str, str])
    assert_type(found.bodies, list[bytes])
