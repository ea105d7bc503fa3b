"""The work with ansq: iterate over a reader, or publish with a writer that tasks share.

ansq's reader leaves RDY at 1, so the program sets RDY on its connections.
"""

import asyncio

import ansq
from job import BODY, IN_FLIGHT, JOB, NSQD, TOPIC, publish


async def main():
    if JOB["way"] == "publish":
        writer = await ansq.create_writer([NSQD])

        async def one():
            answer = await writer.pub(TOPIC, BODY)
            if not answer.is_ok:
                raise RuntimeError(answer.text)

        await publish(one)
    reader = await ansq.create_reader(TOPIC, JOB["channel"], nsqd_tcp_addresses=[NSQD])
    for connection in reader.connections:
        await connection.rdy(IN_FLIGHT)
    async for message in reader.messages():
        await message.fin()


asyncio.run(main())
