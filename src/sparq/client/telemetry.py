"""OpenTelemetry spans and metrics for publishing, handling and settling; needs the extra ``otel``.

1. This module is loaded only by programs that import it, and does nothing until they use a
   ``Telemetry``.
2. A PRODUCER span lasts from before a publish until nsqd's OK, a CONSUMER span while a message or a
   batch is handled. A CLIENT span is the response to it, FIN or REQ, a child of the CONSUMER span.
   Names and attributes follow OpenTelemetry's messaging conventions; ``messaging.system`` is
   ``nsq``. Spans contain no bodies and no secrets.
3. The conventions' four metrics have the spans' attributes without ids and sizes, so that there are
   few series. ``error.type``, of spans and metrics, is nsqd's code, the class of the exception, or
   ``expired`` for a response after the message timeout.
4. The trace context travels with a message only if both sides set ``carry_context``. It is in an
   `envelope` in front of the body, which other consumers of the topic receive as part of the body.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, Protocol

from sparq.client.arguments import parse_nsqd
from sparq.client.log_fields import current
from sparq.client.message import Around, Message
from sparq.client.producer import Producer, Receipt
from sparq.client.subscription import Batch
from sparq.protocol.envelope import seal, unseal
from sparq.protocol.errors import RemoteError

try:
    from opentelemetry import context, metrics, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError(
        "sparq.client.telemetry needs OpenTelemetry: pip install 'sparq-mq[otel]'"
    ) from error

LINKS_MAX: Final = 128
"""Maximum number of links of a batch's span; OpenTelemetry's own limit."""

_CARRIER: Final = TraceContextTextMapPropagator()
"""Carries ``traceparent`` and ``tracestate``, not baggage, which may hold private data."""

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""The conventions' buckets for durations."""

EXPIRED: Final = "expired"

Attributes = dict[str, str | int]


class Source(Protocol):
    """A consumer, asyncio or blocking."""

    topic: str
    channel: str


class Telemetry:
    """Makes spans and metrics for producers and consumers.

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
        meter_provider: the same for metrics.
        carry_context: put the trace context of a publish in front of each body, and remove it when
            messages are handled, so that the spans of both sides form one trace.

    Raises:
        ImportError: on import of this module; OpenTelemetry is not installed.
    """

    def __init__(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        carry_context: bool = False,
    ) -> None:
        self._tracer = trace.get_tracer("sparq.client", tracer_provider=tracer_provider)
        self._carry_context = carry_context
        meter = metrics.get_meter("sparq.client", meter_provider=meter_provider)

        def duration(name: str, text: str) -> metrics.Histogram:
            return meter.create_histogram(
                name, "s", text, explicit_bucket_boundaries_advisory=SECONDS
            )

        self._operation_duration = duration(
            "messaging.client.operation.duration", "Duration of publishes and responses."
        )
        self._process_duration = duration(
            "messaging.process.duration", "Duration of handling messages."
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Number of messages published."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Number of deliveries handled."
        )

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
        with self._publishing(topic, bodies) as (sealed, _):
            yield sealed

    @contextlib.contextmanager
    def _publishing(
        self, topic: str, bodies: Sequence[bytes]
    ) -> Iterator[tuple[list[bytes], Attributes]]:
        """Yield the bodies to publish, and the attributes of the metrics, to be added to."""
        about = _about("publish", "send", topic)
        size: Attributes = {"messaging.batch.message_count": len(bodies)}
        if len(bodies) == 1:
            size = {"messaging.message.body.size": len(bodies[0])}
        try:
            with self._span("publish", trace.SpanKind.PRODUCER, about, size):
                fields: dict[str, str] = {}
                if self._carry_context:
                    _CARRIER.inject(fields)
                yield [seal(fields, body) for body in bodies] if fields else list(bodies), about
        finally:
            self._sent.add(len(bodies), about)

    @contextlib.contextmanager
    def _span(
        self,
        name: str,
        kind: trace.SpanKind,
        about: Attributes,
        details: Attributes,
        **more: Any,
    ) -> Iterator[trace.Span]:
        """Open a span, and record its duration; ``details`` are not in the metrics."""
        is_process = kind is trace.SpanKind.CONSUMER
        histogram = self._process_duration if is_process else self._operation_duration
        with self._tracer.start_as_current_span(
            f"{name} {about['messaging.destination.name']}",
            kind=kind,
            attributes=about | details,
            **more,
        ) as span:
            began = time.perf_counter()
            try:
                yield span
            except BaseException as error:
                about["error.type"] = _error_type(error)
                span.set_attribute("error.type", about["error.type"])
                raise
            finally:
                histogram.record(time.perf_counter() - began, about)

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
    def processing_batch(self, batch: Batch, consumer: Source) -> Iterator[list[bytes]]:
        """Open a span around the handling of a batch; yields the bodies without envelopes.

        The span is linked to the publishes of its first ``LINKS_MAX`` messages.
        """
        bodies, links = batch.bodies, []
        if self._carry_context:
            opened = [unseal(data) for data in bodies]
            bodies = [body for _, body in opened]
            carried = islice((fields for fields, _ in opened if fields), LINKS_MAX)
            spans = (trace.get_current_span(_CARRIER.extract(fields)) for fields in carried)
            links = [trace.Link(span.get_span_context()) for span in spans]
        about = _about("process", "process", consumer.topic, consumer.channel)
        size: Attributes = {"messaging.batch.message_count": len(bodies)}
        self._consumed.add(len(bodies), about)
        with self._span("process", trace.SpanKind.CONSUMER, about, size, links=links):
            batch.observe(self._settling(about, size, batch))
            yield bodies

    @contextlib.contextmanager
    def _processing(self, message: Message, topic: str, channel: str) -> Iterator[None]:
        parent: context.Context | None = None
        if self._carry_context:
            fields, message.body = unseal(message.body)
            parent = _CARRIER.extract(fields) if fields else None
        about = _about("process", "process", topic, channel) | _server(message.nsqd)
        known: Attributes = {"messaging.message.id": message.id}
        sizes: Attributes = {
            "messaging.message.body.size": len(message.body),
            "messaging.nsq.attempts": message.attempts,
        }
        self._consumed.add(1, about)
        with self._span("process", trace.SpanKind.CONSUMER, about, known | sizes, context=parent):
            message.observe(self._settling(about, known, message))
            yield

    def _settling(self, process: Attributes, known: Attributes, settled: Message | Batch) -> Around:
        """Return what opens the spans of the responses, as children of the present span."""
        parent = context.get_current()

        @contextlib.contextmanager
        def settling(name: str) -> Iterator[None]:
            operation = {"messaging.operation.name": name, "messaging.operation.type": "settle"}
            about = process | operation
            about.pop("error.type", None)  # of the handler that has failed
            with self._span(name, trace.SpanKind.CLIENT, about, known, context=parent) as span:
                if settled.expires_at <= time.monotonic():
                    about["error.type"] = EXPIRED
                    span.set_attribute("error.type", EXPIRED)
                    span.set_status(trace.StatusCode.ERROR, "the message timeout has passed")
                yield

        return settling


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
        with self._telemetry._publishing(topic, (body,)) as ([sealed], about):
            publishing = self._producer.publish(topic, sealed, timeout_seconds=timeout_seconds)
            return _noted(await publishing, about)

    async def multi_publish(
        self, topic: str, bodies: Sequence[bytes], *, timeout_seconds: float | None = None
    ) -> Receipt:
        """Publish several messages, as ``Producer.multi_publish`` does."""
        with self._telemetry._publishing(topic, bodies) as (sealed, about):
            publishing = self._producer.multi_publish(
                topic, sealed, timeout_seconds=timeout_seconds
            )
            return _noted(await publishing, about)

    async def publish_deferred(
        self, topic: str, body: bytes, delay_seconds: float, *, timeout_seconds: float | None = None
    ) -> Receipt:
        """Publish a deferred message, as ``Producer.publish_deferred`` does."""
        with self._telemetry._publishing(topic, (body,)) as ([sealed], about):
            publishing = self._producer.publish_deferred(
                topic, sealed, delay_seconds, timeout_seconds=timeout_seconds
            )
            return _noted(await publishing, about)


def _noted(receipt: Receipt, about: Attributes) -> Receipt:
    span, server = trace.get_current_span(), _server(receipt.nsqd)
    about |= server
    span.set_attributes(server)
    span.set_attribute("messaging.nsq.attempts", receipt.attempts)
    return receipt


def _error_type(error: BaseException) -> str:
    if isinstance(error, RemoteError):
        return error.code
    kind = type(error)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return module + kind.__qualname__


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
