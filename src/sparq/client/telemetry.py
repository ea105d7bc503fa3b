"""OpenTelemetry spans for publishing and handling messages; needs the extra ``otel``.

1. This module is loaded only by programs that import it, and does nothing until they use a
   ``Telemetry``.
2. A PRODUCER span lasts from before a publish until nsqd's OK, a CONSUMER span while a message or a
   batch is handled. Names and attributes follow OpenTelemetry's messaging conventions;
   ``messaging.system`` is ``nsq``. Spans contain no bodies and no secrets.
3. The trace context travels with a message only if both sides set ``carry_context``. It is in an
   `envelope` in front of the body, which other consumers of the topic receive as part of the body.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, Protocol

from sparq.client.arguments import parse_nsqd
from sparq.client.log_fields import current
from sparq.client.message import Message
from sparq.client.producer import Producer
from sparq.client.publish import Receipt
from sparq.protocol.envelope import seal, unseal

try:
    from opentelemetry import context, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError(
        "sparq.client.telemetry needs OpenTelemetry: pip install 'sparq-mq[otel]'"
    ) from error

LINKS_MAX: Final = 128
"""Maximum number of links of a batch's span; OpenTelemetry's own limit."""

_CARRIER: Final = TraceContextTextMapPropagator()
"""Carries ``traceparent`` and ``tracestate``, not baggage, which may hold private data."""

Attributes = dict[str, str | int]


class Source(Protocol):
    """A consumer, asyncio or blocking."""

    topic: str
    channel: str


class Bodies(Protocol):
    """A batch of messages, asyncio or blocking."""

    @property
    def bodies(self) -> list[bytes]:
        """The published bytes of each message."""


class Telemetry:
    """Makes spans for producers and consumers.

    ::

        telemetry = Telemetry(carry_context=True)

        async with Producer("127.0.0.1:4150") as producer:
            await telemetry.producer(producer).publish("clicks", b"...")

        Consumer("clicks", "archive", handler=telemetry.handler(handle), ...)

        async for message in consumer:
            with telemetry.processing(message, consumer):
                ...

    Args:
        tracer_provider: makes the tracer; None: OpenTelemetry's global provider.
        carry_context: put the trace context of a publish in front of each body, and remove it when
            messages are handled, so that the spans of both sides form one trace.

    Raises:
        ImportError: on import of this module; OpenTelemetry is not installed.
    """

    def __init__(
        self, *, tracer_provider: trace.TracerProvider | None = None, carry_context: bool = False
    ) -> None:
        self._tracer = trace.get_tracer("sparq.client", tracer_provider=tracer_provider)
        self._carry_context = carry_context

    # Publishing

    def producer(self, producer: Producer) -> TracedProducer:
        """Return a producer whose awaited publishes each have a span."""
        return TracedProducer(self, producer)

    @contextlib.contextmanager
    def publishing(self, topic: str, bodies: Sequence[bytes]) -> Iterator[list[bytes]]:
        """Open a span around any kind of publish; the block must publish the yielded bodies.

        ::

            with telemetry.publishing("clicks", [b"..."]) as bodies:
                blocking_producer.multi_publish("clicks", bodies)
        """
        attributes = _about("publish", "send", topic)
        if len(bodies) == 1:
            attributes["messaging.message.body.size"] = len(bodies[0])
        else:
            attributes["messaging.batch.message_count"] = len(bodies)
        with self._tracer.start_as_current_span(
            f"publish {topic}", kind=trace.SpanKind.PRODUCER, attributes=attributes
        ):
            fields: dict[str, str] = {}
            if self._carry_context:
                _CARRIER.inject(fields)
            yield [seal(fields, body) for body in bodies] if fields else list(bodies)

    # Handling

    def handler(self, handle: Callable[[Message], Any]) -> Callable[[Message], Any]:
        """Wrap a handler in a span for each call; an exception is recorded in the span."""

        @functools.wraps(handle)
        async def handle_traced(message: Message) -> object:
            topic, channel = current("topic"), current("channel")
            with self._processing(message, topic, channel):
                result = handle(message)
                return await result if inspect.isawaitable(result) else result

        return handle_traced

    @contextlib.contextmanager
    def processing(self, message: Message, consumer: Source) -> Iterator[Message]:
        """Open a span around the handling of a message; an envelope is removed from its body."""
        with self._processing(message, consumer.topic, consumer.channel):
            yield message

    @contextlib.contextmanager
    def processing_batch(self, batch: Bodies, consumer: Source) -> Iterator[list[bytes]]:
        """Open a span around the handling of a batch; yields the bodies without envelopes.

        The span is linked to the publishes of its first ``LINKS_MAX`` messages.
        """
        bodies, links = batch.bodies, []
        if self._carry_context:
            opened = [unseal(data) for data in bodies]
            bodies = [body for _, body in opened]
            carried = (_span_context(fields) for fields, _ in opened if fields)
            links = [trace.Link(each) for each in islice(carried, LINKS_MAX)]
        attributes = _about("process", "process", consumer.topic, consumer.channel)
        attributes["messaging.batch.message_count"] = len(bodies)
        with self._tracer.start_as_current_span(
            f"process {consumer.topic}",
            kind=trace.SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
        ):
            yield bodies

    @contextlib.contextmanager
    def _processing(self, message: Message, topic: str, channel: str) -> Iterator[None]:
        parent: context.Context | None = None
        if self._carry_context:
            fields, message.body = unseal(message.body)
            parent = _CARRIER.extract(fields) if fields else None
        attributes = _about("process", "process", topic, channel) | _server(message.nsqd)
        attributes["messaging.message.id"] = message.id
        attributes["messaging.message.body.size"] = len(message.body)
        attributes["messaging.nsq.attempts"] = message.attempts
        with self._tracer.start_as_current_span(
            f"process {topic}", parent, kind=trace.SpanKind.CONSUMER, attributes=attributes
        ):
            yield


class TracedProducer:
    """The awaited publishes of a producer, with spans; made by ``Telemetry.producer``.

    Arguments, results and errors are those of ``Producer``; an error is recorded in the span.
    """

    def __init__(self, telemetry: Telemetry, producer: Producer) -> None:
        self._telemetry = telemetry
        self._producer = producer

    async def publish(
        self, topic: str, body: bytes, *, timeout_seconds: float | None = None
    ) -> Receipt:
        """Publish one message, as ``Producer.publish`` does."""
        with self._telemetry.publishing(topic, (body,)) as [sealed]:
            return _noted(
                await self._producer.publish(topic, sealed, timeout_seconds=timeout_seconds)
            )

    async def multi_publish(
        self, topic: str, bodies: Sequence[bytes], *, timeout_seconds: float | None = None
    ) -> Receipt:
        """Publish several messages, as ``Producer.multi_publish`` does."""
        with self._telemetry.publishing(topic, bodies) as sealed:
            return _noted(
                await self._producer.multi_publish(topic, sealed, timeout_seconds=timeout_seconds)
            )

    async def publish_deferred(
        self, topic: str, body: bytes, delay_seconds: float, *, timeout_seconds: float | None = None
    ) -> Receipt:
        """Publish a deferred message, as ``Producer.publish_deferred`` does."""
        with self._telemetry.publishing(topic, (body,)) as [sealed]:
            return _noted(
                await self._producer.publish_deferred(
                    topic, sealed, delay_seconds, timeout_seconds=timeout_seconds
                )
            )


def _noted(receipt: Receipt) -> Receipt:
    span = trace.get_current_span()
    span.set_attributes(_server(receipt.nsqd))
    span.set_attribute("messaging.nsq.attempts", receipt.attempts)
    return receipt


def _about(name: str, kind: str, topic: str, channel: str = "") -> Attributes:
    attributes: Attributes = {
        "messaging.system": "nsq",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
    }
    if channel:
        attributes["messaging.destination.subscription.name"] = channel
    return attributes


def _server(nsqd: str) -> Attributes:
    place = parse_nsqd(nsqd)
    if place.is_path:
        return {"server.address": place.host}
    return {"server.address": place.host, "server.port": place.port}


def _span_context(fields: dict[str, str]) -> trace.SpanContext:
    return trace.get_current_span(_CARRIER.extract(fields)).get_span_context()
