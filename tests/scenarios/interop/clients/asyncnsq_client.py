"""Runs asyncnsq's create_writer and create_reader, used as its documentation describes.

Its reader has no setting for the message timeout, and ignores all options when it finds nsqd
through nsqlookupd.
"""

import asyncio

from asyncnsq import create_reader, create_writer
from asyncnsq.tcp.exceptions import NSQException
from job import INSIST_SECONDS, JOB, bodies, received, say, touch_times

OPTIONS = {
    "heartbeat_interval": JOB["heartbeat_ms"],
    "tls_v1": JOB["tls"] is not None,
    "snappy": JOB["compression"] == "snappy",
    "deflate": JOB["compression"] == "deflate",
    "auth_secret": JOB["secret"],
}


async def publish():
    host, port = JOB["nsqd"].split(":")
    writer = await create_writer(host, int(port), **OPTIONS)
    topic = JOB["topic"]
    say("publishing")
    for body in bodies("publish"):
        await writer.pub(topic, body)
    for body in bodies("defer"):
        await writer.dpub(topic, JOB["defer_ms"], body)
    if JOB["multi_publish"]:
        await writer.mpub(topic, *bodies("multi_publish"))
    say("published")
    return writer


async def insist(writer):
    while True:
        try:
            await writer.pub(JOB["topic"], JOB["insist"])
        except NSQException as error:
            say("refused", text=repr(error), connected=not writer._conn.closed)
            await asyncio.sleep(INSIST_SECONDS)
        else:
            return say("accepted")


async def consume():
    where = {"nsqd_tcp_addresses": [JOB["nsqd"]]}
    if JOB["lookupd"]:
        where = {"lookupd_http_addresses": [JOB["lookupd"].split(":")]}
    reader = await create_reader(max_in_flight=JOB["max_in_flight"], **where, **OPTIONS)
    await reader.subscribe(JOB["topic"], JOB["channel"])
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
