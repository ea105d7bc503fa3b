"""ansq at work: create_writer and create_reader on asyncio, as its own documentation has it."""

import asyncio

import ansq
from ansq.tcp.exceptions import NSQException
from job import JOB, bodies, received, say, touch_times


async def publish():
    writer = await ansq.create_writer(nsqd_tcp_addresses=[JOB["nsqd"]])
    topic = JOB["topic"]
    answers = [await writer.pub(topic, body) for body in bodies("publish")]
    answers += [await writer.dpub(topic, body, JOB["defer_ms"]) for body in bodies("defer")]
    if JOB["multi_publish"]:
        answers.append(await writer.mpub(topic, *bodies("multi_publish")))
    await writer.close()
    for answer in answers:
        if isinstance(answer, NSQException) or not answer.is_ok:
            say("error", text=str(answer))
    say("published")


async def consume():
    features = ansq.ConnectionFeatures(msg_timeout=JOB["msg_timeout_ms"])
    reader = await ansq.create_reader(
        JOB["topic"],
        JOB["channel"],
        lookupd_http_addresses=[JOB["lookupd"]],
        lookupd_poll_interval=1000,
        connection_options=ansq.ConnectionOptions(features=features),
    )
    async for message in reader.messages():
        await handle(message)


async def handle(message):
    plan = received(message.body, message.attempts)
    if plan == "finish":
        await message.fin()
    elif plan == "requeue":
        await message.req(JOB["requeue_ms"])
    elif plan == "touch":
        times, apart = touch_times()
        for _ in range(times):
            await message.touch()
            await asyncio.sleep(apart)
        await message.fin()


async def main():
    await publish()
    await consume()


asyncio.run(main())
