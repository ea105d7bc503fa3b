"""Runs ansq's create_writer and create_reader, used as ansq's documentation describes."""

import asyncio

import ansq
from ansq.tcp.exceptions import NSQException
from job import INSIST_SECONDS, JOB, bodies, received, say, touch_times

OPTIONS = ansq.ConnectionOptions(
    features=ansq.ConnectionFeatures(
        msg_timeout=JOB["msg_timeout_ms"],
        heartbeat_interval=JOB["heartbeat_ms"],
    )
)


def refused(answer):
    return isinstance(answer, NSQException) or not answer.is_ok


async def publish():
    writer = await ansq.create_writer([JOB["nsqd"]], OPTIONS)
    topic = JOB["topic"]
    say("publishing")
    answers = [await writer.pub(topic, body) for body in bodies("publish")]
    answers += [await writer.dpub(topic, body, JOB["defer_ms"]) for body in bodies("defer")]
    if JOB["multi_publish"]:
        answers.append(await writer.mpub(topic, *bodies("multi_publish")))
    for answer in answers:
        if refused(answer):
            say("error", text=str(answer))
    say("published")
    return writer


async def insist(writer):
    while refused(answer := await writer.pub(JOB["topic"], JOB["insist"])):
        connected = any(connection.is_connected for connection in writer.connections)
        say("refused", text=answer.text, connected=connected)
        await asyncio.sleep(INSIST_SECONDS)
    say("accepted")


async def consume():
    reader = await ansq.create_reader(
        JOB["topic"],
        JOB["channel"],
        nsqd_tcp_addresses=None if JOB["lookupd"] else [JOB["nsqd"]],
        lookupd_http_addresses=[JOB["lookupd"]] if JOB["lookupd"] else None,
        lookupd_poll_interval=1000,
        connection_options=OPTIONS,
    )
    for connection in reader.connections:
        await connection.rdy(JOB["max_in_flight"])
    async with asyncio.TaskGroup() as handlers:
        async for message in reader.messages():
            handlers.create_task(handle(message))


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
    writer = await publish()
    if JOB["insist"]:
        await insist(writer)
    if JOB["consume"]:
        await consume()


asyncio.run(main())
