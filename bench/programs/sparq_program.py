"""The work with sparq.client: by iteration, with a handler, in batches, or publishing from tasks.

The way `blocking` uses the blocking API, which runs the same client in a background thread.
"""

import asyncio

import uvloop
from job import BODY, JOB, Laps, ready

import sparq
from sparq.client import Consumer, Producer

laps = Laps()


def consumer(**options):
    return Consumer(
        JOB["topic"],
        JOB["channel"],
        nsqd_tcp_addresses=JOB["nsqd"],
        max_in_flight=JOB["in_flight"],
        **options,
    )


async def iterate():
    count = 0
    async with consumer() as messages:
        async for message in messages:
            await message.finish()
            count += 1
            if count >= laps.next:
                laps.reached(count)


async def handler():
    count = 0

    async def handle(_message):
        nonlocal count
        count += 1
        if count >= laps.next:
            laps.reached(count)

    async with consumer(handler=handle) as running:
        await running.join()


async def batches():
    count = 0
    async with consumer() as messages:
        async for batch in messages.batches(JOB["batch_size"], 0.1):
            await batch.finish()
            count += len(batch)
            if count >= laps.next:
                laps.reached(count)


def blocking():
    count = 0
    with sparq.connect(JOB["nsqd"], max_in_flight=JOB["in_flight"]) as session:
        for message in session.consumer(JOB["topic"], JOB["channel"]):
            message.finish()
            count += 1
            if count >= laps.next:
                laps.reached(count)


async def publish():
    begun = count = 0

    async def task():
        nonlocal begun, count
        while begun < JOB["total"]:
            begun += 1
            await producer.publish(JOB["topic"], BODY)
            count += 1
            if count >= laps.next:
                laps.reached(count)

    async with Producer(JOB["nsqd"]) as producer, asyncio.TaskGroup() as tasks:
        for _ in range(JOB["tasks"]):
            tasks.create_task(task())


WAYS = {"iterate": iterate, "handler": handler, "batches": batches, "publish": publish}


async def main():
    await WAYS[JOB["way"]]()
    await asyncio.Event().wait()


ready("sparq-mq", "uvloop") if JOB["uvloop"] else ready("sparq-mq")
if JOB["way"] == "blocking":
    blocking()
else:
    (uvloop.run if JOB["uvloop"] else asyncio.run)(main())
