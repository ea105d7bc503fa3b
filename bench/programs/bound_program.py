"""The lower bound for awaiting an OK: a minimal protocol on uvloop that only knows PUB.

It has no checks and no error handling, so no client can be faster on this event loop. The remaining
time is that of nsqd and the network.
"""

import asyncio
from collections import deque

import uvloop
from job import BODY, NSQD, TOPIC, publish

OK_SIZE = 10
COMMAND = b"PUB %s\n" % TOPIC.encode() + len(BODY).to_bytes(4) + BODY


class Bare(asyncio.Protocol):
    def __init__(self):
        self.answers = deque()
        self.received = 0

    def connection_made(self, transport):
        self.transport = transport
        transport.write(b"  V2")

    def data_received(self, data):
        count, self.received = divmod(self.received + len(data), OK_SIZE)
        for _ in range(count):
            self.answers.popleft().set_result(None)

    def publish(self):
        answer = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        self.transport.write(COMMAND)
        return answer


async def main():
    host, port = NSQD.split(":")
    _, bare = await asyncio.get_running_loop().create_connection(Bare, host, int(port))
    await publish(bare.publish)


uvloop.run(main())
