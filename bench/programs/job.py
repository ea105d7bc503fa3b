"""The job of every program here: JSON as its only argument.

    nsqd           address, host:port
    topic, channel to publish to and to consume from
    way            iterate | handler | batches | blocking: how to consume; or publish
    in_flight      maximum number of messages in flight
    tasks          number of tasks that publish; each awaits an OK before its next publish
    body_size      bytes of each published message
    batch_size     maximum number of messages in a batch
    uvloop         whether to run on uvloop, if the program can

A program works until it is killed.
"""

import asyncio
import json
import sys

JOB = json.loads(sys.argv[1])
TOPIC, NSQD, IN_FLIGHT = JOB["topic"], JOB["nsqd"], JOB["in_flight"]
BODY = bytes(range(256)) * (JOB["body_size"] // 256) + bytes(JOB["body_size"] % 256)


async def publish(one):
    """Publish from as many tasks as the job wants; `one` publishes a message and awaits its OK."""

    async def task():
        while True:
            await one()

    await asyncio.gather(*(task() for _ in range(JOB["tasks"])))
