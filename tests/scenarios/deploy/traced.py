"""A program for the extra `otel`: it publishes and consumes with spans, and prints them as JSON.

Without OpenTelemetry's SDK, which the program itself must install, there are no spans to print.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from sparq.client import Consumer, Message, Producer
from sparq.client.telemetry import Telemetry


async def bodies_through(nsqd: str, telemetry: Telemetry, *bodies: bytes) -> list[str]:
    """Publish the bodies and handle them; returns the handled ones."""
    handled: asyncio.Queue[str] = asyncio.Queue()

    async def handle(message: Message) -> None:
        handled.put_nowait(message.body.decode())

    handler = telemetry.handler(handle)
    async with (
        Producer(nsqd) as producer,
        Consumer("traced", "c", nsqd_tcp_addresses=nsqd, handler=handler),
    ):
        for body in bodies:
            await telemetry.producer(producer).publish("traced", body)
        return [await handled.get() for _ in bodies]


def with_spans(nsqd: str) -> dict[str, Any]:
    """The handled bodies, and each span with its trace."""
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    except ModuleNotFoundError:
        telemetry = Telemetry(carry_context=True)
        return {"handled": asyncio.run(bodies_through(nsqd, telemetry, b"one")), "spans": None}
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(tracer_provider=provider, carry_context=True)
    handled = asyncio.run(bodies_through(nsqd, telemetry, b"one"))
    spans = exporter.get_finished_spans()
    told = sorted((span.name, span.kind.name, span.context.trace_id) for span in spans)
    return {"handled": handled, "spans": told}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(with_spans(sys.argv[1])))
