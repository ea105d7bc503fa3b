"""The work with sparq.client: by iteration, with a handler, in batches, or publishing from tasks.

The way `blocking` uses the blocking API, which runs the same client in a background thread.
"""

import asyncio

import uvloop
from job import BODY, IN_FLIGHT, JOB, NSQD, TOPIC, publish

import sparq
from sparq.client import Consumer, Producer


def consumer(**options):
    options |= {"nsqd_tcp_addresses": NSQD, "max_in_flight": IN_FLIGHT}
    return Consumer(TOPIC, JOB["channel"], **options)


async def iterate():
    async with consumer() as messages:
        async for message in messages:
            await message.finish()


async def handler():
    async def handle(_message):
        """Return at once: the consumer then finishes the message."""

    async with consumer(handler=handle) as running:
        await running.join()


async def batches():
    async with consumer() as messages:
        async for batch in messages.batches(JOB["batch_size"], 0.1):
            await batch.finish()


def blocking():
    with sparq.connect(NSQD, max_in_flight=IN_FLIGHT) as session:
        for message in session.consumer(TOPIC, JOB["channel"]):
            message.finish()


async def publishing():
    async with Producer(NSQD) as producer:
        await publish(lambda: producer.publish(TOPIC, BODY))


WAYS = {"iterate": iterate, "handler": handler, "batches": batches, "publish": publishing}

if JOB["way"] == "blocking":
    blocking()
else:
    (uvloop.run if JOB["uvloop"] else asyncio.run)(WAYS[JOB["way"]]())
