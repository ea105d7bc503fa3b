"""client.telemetry with a real nsqd: spans of both sides, and the context that links them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import sparq
from sparq.client import Consumer, Message, Producer, RemoteError
from sparq.client.telemetry import Telemetry
from sparq.protocol.envelope import seal, unseal
from tests.support.servers import NsqdServer
from tests.support.shared_daemons import SharedDaemons
from tests.support.waiting import until


class Traces:
    """A telemetry and the spans that it has exported."""

    def __init__(self, *, carry_context: bool) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._metrics = InMemoryMetricReader()
        self.telemetry = Telemetry(
            tracer_provider=provider,
            meter_provider=MeterProvider([self._metrics]),
            carry_context=carry_context,
        )

    def of(self, kind: SpanKind) -> list[ReadableSpan]:
        """Return the finished spans of a kind."""
        return [span for span in self._exporter.get_finished_spans() if span.kind is kind]

    def counted(self) -> dict[tuple[str, ...], int]:
        """Return the count of each series: metric, operation, channel and error."""
        found = {}
        document = json.loads(self._metrics.get_metrics_data().to_json())
        for metric in document["resource_metrics"][0]["scope_metrics"][0]["metrics"]:
            for point in metric["data"]["data_points"]:
                about = point["attributes"]
                assert {"messaging.system", "messaging.destination.name"} <= about.keys()
                keys = ("operation.name", "destination.subscription.name")
                labels = [about.get(f"messaging.{key}", "") for key in keys]
                name = metric["name"].removeprefix("messaging.")
                series = (name, *labels, about.get("error.type", ""))
                found[series] = point["count"] if "count" in point else point["value"]
        return found

    @property
    def settled(self) -> list[ReadableSpan]:
        """The spans of responses."""
        return self.of(SpanKind.CLIENT)

    @property
    def published(self) -> list[ReadableSpan]:
        """The spans of publishes."""
        return self.of(SpanKind.PRODUCER)

    @property
    def processed(self) -> list[ReadableSpan]:
        """The spans of handling."""
        return self.of(SpanKind.CONSUMER)


@pytest.fixture
def nsqd(shared_daemons: SharedDaemons) -> NsqdServer:
    """A shared nsqd; each test uses its own topic."""
    return shared_daemons.nsqds[0]


def consumer_of(nsqd: NsqdServer, topic: str, **options: Any) -> Consumer:
    given = {"max_in_flight": 10, "max_backoff_duration": 0.0, **options}
    return Consumer(topic, "c", nsqd_tcp_addresses=nsqd.tcp, **given)


def ids(span: ReadableSpan) -> tuple[int, int]:
    """Return the ids of the trace and of the span."""
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    """Return the ids of the parent, or None."""
    return span.parent and (span.parent.trace_id, span.parent.span_id)


def attributes(span: ReadableSpan) -> Mapping[str, object]:
    """Return the span's attributes."""
    return dict(span.attributes or {})


@pytest.mark.parametrize("carried", [True, False])
async def test_the_handlers_span_is_a_child_of_the_publishs_span(
    nsqd: NsqdServer, carried: bool
) -> None:
    """The handler's span is a child of the publish's span only with carry_context."""
    traces, topic = Traces(carry_context=carried), f"traced-{carried}"
    bodies: list[bytes] = []

    async def handle(message: Message) -> None:
        bodies.append(message.body)

    handler = traces.telemetry.handler(handle)
    async with Producer(nsqd.tcp) as producer, consumer_of(nsqd, topic, handler=handler):
        await traces.telemetry.producer(producer).publish(topic, b"body")
        await until(lambda: traces.processed)
    [published], [processed] = traces.published, traces.processed
    host, _, port = nsqd.tcp.rpartition(":")
    nowhere_else = {"messaging.message.id": attributes(processed).get("messaging.message.id")}
    common = {
        "messaging.system": "nsq",
        "messaging.destination.name": topic,
        "messaging.message.body.size": 4,
        "messaging.nsq.attempts": 1,
        "server.address": host,
        "server.port": int(port),
    }

    assert [b"body"] == bodies
    assert parent(processed) == (ids(published) if carried else None)
    assert (f"publish {topic}", f"process {topic}") == (published.name, processed.name)
    assert attributes(published) == {
        **common,
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
    }
    assert attributes(processed) == {
        **common,
        **nowhere_else,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.subscription.name": "c",
    }


async def test_other_consumers_get_the_plain_body_or_the_envelope(nsqd: NsqdServer) -> None:
    """Other consumers get the plain body, or with carry_context, an envelope around it."""
    plain, carrying = Traces(carry_context=False), Traces(carry_context=True)
    async with Producer(nsqd.tcp) as producer, consumer_of(nsqd, "others") as consumer:
        await plain.telemetry.producer(producer).publish("others", b"one")
        await carrying.telemetry.producer(producer).publish("others", b"two")
        first, second = await anext(consumer), await anext(consumer)
        fields, body = unseal(second.body)
        [span] = carrying.published

        assert (b"one", b"two") == (first.body, body)
        assert f"-{ids(span)[0]:032x}-{ids(span)[1]:016x}-" in fields["traceparent"]
        with carrying.telemetry.processing(first, consumer) as message:
            assert b"one" == message.body
        assert parent(carrying.processed[0]) is None


async def test_an_invalid_trace_context_is_ignored(
    nsqd: NsqdServer, caplog: pytest.LogCaptureFixture
) -> None:
    """An envelope with an invalid trace context gives no parent span and logs nothing."""
    traces = Traces(carry_context=True)
    odd: list[dict[str, str]] = [
        {"traceparent": "garbage", "": ""},
        {"traceparent": f"00-{'f' * 32}-{'f' * 16}-zz", "tracestate": "=,;" * 900},
        {"traceparent": f"00-{0:032x}-{0:016x}-01", "baggage": "x" * 5_000},
    ]
    async with Producer(nsqd.tcp) as producer, consumer_of(nsqd, "odd") as consumer:
        await producer.multi_publish("odd", [seal(fields, b"body") for fields in odd])
        for _ in odd:
            message = await anext(consumer)
            with traces.telemetry.processing(message, consumer):
                await message.finish()
                assert b"body" == message.body

    assert [None] * 3 == [parent(span) for span in traces.processed]
    assert "" == caplog.text


async def test_metrics_and_settle_spans_follow_the_conventions(nsqd: NsqdServer) -> None:
    """Publishes, deliveries and responses have metrics; a response is a child of its handling.

    What fails has ``error.type``: nsqd's code, or the class of the exception.
    """
    traces = Traces(carry_context=True)

    def handle(message: Message) -> None:
        if message.attempts == 1:
            raise KeyError("first")

    options: dict[str, Any] = {"default_requeue_delay": 0.0}
    handler = traces.telemetry.handler(handle)
    async with Producer(nsqd.tcp) as producer:
        traced = traces.telemetry.producer(producer)
        with pytest.raises(RemoteError):
            await traced.multi_publish("measured", [b"1", b"x" * (2 << 20)])
        await traced.publish("measured", b"x")
        async with consumer_of(nsqd, "measured", handler=handler, **options):
            await until(lambda: len(traces.settled) == 2)

    assert {
        ("client.operation.duration", "publish", "", ""): 1,
        ("client.operation.duration", "publish", "", "E_BAD_MESSAGE"): 1,
        ("client.operation.duration", "requeue", "c", ""): 1,
        ("client.operation.duration", "finish", "c", ""): 1,
        ("client.sent.messages", "publish", "", ""): 1,
        ("client.sent.messages", "publish", "", "E_BAD_MESSAGE"): 2,
        ("client.consumed.messages", "process", "c", ""): 2,
        ("process.duration", "process", "c", ""): 1,
        ("process.duration", "process", "c", "KeyError"): 1,
    } == traces.counted()
    assert ["requeue measured", "finish measured"] == [span.name for span in traces.settled]
    assert [ids(span) for span in traces.processed] == [parent(span) for span in traces.settled]
    assert "settle" == attributes(traces.settled[0])["messaging.operation.type"]
    for spans in (traces.published, traces.processed):
        assert [StatusCode.ERROR, StatusCode.UNSET] == [s.status.status_code for s in spans]
    assert "E_BAD_MESSAGE" in str(traces.published[0].status.description)
    assert "E_BAD_MESSAGE" == attributes(traces.published[0])["error.type"]
    assert "KeyError" == attributes(traces.processed[0])["error.type"]


@pytest.mark.parametrize("way", ["message", "batch"])
async def test_a_late_response_has_the_error_type_expired(nsqd: NsqdServer, way: str) -> None:
    """The span of a response after the message timeout has ``error.type`` expired."""
    traces, topic = Traces(carry_context=False), f"late-{way}"
    async with Producer(nsqd.tcp) as producer:
        await producer.publish(topic, b"x")
    async with consumer_of(nsqd, topic, msg_timeout=1.0) as consumer:
        if way == "message":
            message = await anext(consumer)
            with traces.telemetry.processing(message, consumer):
                await until(lambda: message.stale)
                await message.finish()
        else:
            batch = await anext(consumer.batches(1))
            with traces.telemetry.processing_batch(batch, consumer):
                await until(lambda: batch.expires_at < time.monotonic())
                await batch.requeue(0)

    [span] = traces.settled
    assert ("expired", StatusCode.ERROR) == (
        attributes(span)["error.type"],
        span.status.status_code,
    )
    assert parent(span) == ids(traces.processed[0])


async def test_batches_are_linked_to_their_publishes(nsqd: NsqdServer) -> None:
    """A batch has one span, with a link for each message that carries a context."""
    traces = Traces(carry_context=True)
    async with Producer(nsqd.tcp) as producer, consumer_of(nsqd, "batched") as consumer:
        traced = traces.telemetry.producer(producer)
        await producer.publish("batched", b"bare")
        await traced.multi_publish("batched", [b"one", b"two"])
        await traced.publish_deferred("batched", b"late", 1.0)
        async for batch in consumer.batches(4, wait=10):
            with traces.telemetry.processing_batch(batch, consumer) as bodies:
                await batch.finish()
            break
    several, deferred = traces.published
    [processed] = traces.processed

    assert [b"bare", b"one", b"two", b"late"] == bodies
    assert 4 == attributes(processed)["messaging.batch.message_count"]
    assert 2 == attributes(several)["messaging.batch.message_count"]
    linked = [(link.context.trace_id, link.context.span_id) for link in processed.links]
    assert [ids(several), ids(several), ids(deferred)] == linked


def test_tracing_works_with_the_blocking_api(nsqd: NsqdServer) -> None:
    """``publishing`` and ``processing`` work with the blocking API."""
    traces = Traces(carry_context=True)
    with sparq.connect(nsqd.tcp) as session, session.producer() as producer:
        with traces.telemetry.publishing("blocking", [b"x"]) as bodies:
            producer.multi_publish("blocking", bodies)
        with session.consumer("blocking", "c") as consumer:
            message = consumer.receive(20)
            with traces.telemetry.processing(message, consumer):
                body = message.body
                message.finish()
    [published], [processed] = traces.published, traces.processed

    assert b"x" == body
    assert parent(processed) == ids(published)


async def test_a_dead_letter_keeps_its_envelope(nsqd: NsqdServer) -> None:
    """A dead letter keeps the trace context of its publish in its envelope."""
    traces = Traces(carry_context=True)

    def fail(message: Message) -> None:
        message.requeue(0)

    options = {
        "handler": traces.telemetry.handler(fail),
        "max_attempts": 1,
        "dead_letter": "letters",
    }
    async with (
        Producer(nsqd.tcp) as producer,
        consumer_of(nsqd, "dying", **options),
        consumer_of(nsqd, "letters") as letters,
    ):
        await traces.telemetry.producer(producer).publish("dying", b"x")
        letter = await anext(letters)

    assert b"x" == unseal(letter.body)[1]
    assert "traceparent" in unseal(letter.body)[0]


def test_the_client_does_not_import_opentelemetry() -> None:
    """The client does not import OpenTelemetry; if it is missing, the error gives advice."""
    program = (
        "import sys, sparq.client as c; c.Consumer, c.Producer, c.Session\n"
        "print(any(name.startswith('opentelemetry') for name in sys.modules))\n"
        "sys.modules['opentelemetry'] = None\n"
        "import sparq.client.telemetry"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert "False\n" == ended.stdout
    assert "needs OpenTelemetry: pip install 'sparq-mq[otel]'" in ended.stderr
