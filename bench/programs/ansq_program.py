"""The work with ansq: iterate over a reader, or publish with a writer that tasks share.

ansq's reader leaves RDY at 1, so the program sets RDY on its connections.
"""

import asyncio

import ansq
from job import BODY, JOB, Laps, ready

laps = Laps()


async def iterate():
    count = 0
    reader = await ansq.create_reader(
        JOB["topic"], JOB["channel"], nsqd_tcp_addresses=[JOB["nsqd"]]
    )
    for connection in reader.connections:
        await connection.rdy(JOB["in_flight"])
    async for message in reader.messages():
        await message.fin()
        count += 1
        if count >= laps.next:
            laps.reached(count)


async def publish():
    begun = count = 0
    writer = await ansq.create_writer([JOB["nsqd"]])

    async def task():
        nonlocal begun, count
        while begun < JOB["total"]:
            begun += 1
            answer = await writer.pub(JOB["topic"], BODY)
            if not answer.is_ok:
                raise RuntimeError(answer.text)
            count += 1
            if count >= laps.next:
                laps.reached(count)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(JOB["tasks"]):
            tasks.create_task(task())


async def main():
    await (publish if JOB["way"] == "publish" else iterate)()
    await asyncio.Event().wait()


ready("ansq")
asyncio.run(main())
