"""An operator at nsqd's HTTP interface, who makes topics, publishes to them and deletes them.

It has no part in what a proof counts. It sees to it that folders and files come and go meanwhile.
"""

import asyncio
import random

from proofs.witness import RECONNECT_SECONDS, Actor

STEPS = (
    "/topic/create?topic={topic}",
    "/channel/create?topic={topic}&channel=one",
    "/mpub?topic={topic}",
    "/topic/pause?topic={topic}",
    "/topic/empty?topic={topic}",
    "/channel/delete?topic={topic}&channel=one",
    "/topic/delete?topic={topic}",
)
PAUSE_SECONDS = 0.02
BODY = b"\n".join([b"a message of the operator"] * 20)


class Operator(Actor):
    """Works by HTTP; what fails because nsqd is gone is left as it is.

    Args:
        address: of nsqd's HTTP interface.
        seed: of its chances.
    """

    def __init__(self, address: str, seed: int) -> None:
        super().__init__(address)
        self.chance = random.Random(f"{seed} operator")
        self.made = 0

    async def live(self) -> None:
        """Steps in their order on one topic after the other."""
        while not self.stopping:
            topic = f"operated.{self.made}"
            self.made += 1
            for step in STEPS:
                try:
                    await self.post(step.format(topic=topic))
                except OSError:
                    await asyncio.sleep(RECONNECT_SECONDS)
                await asyncio.sleep(PAUSE_SECONDS * self.chance.random())

    async def post(self, path: str) -> None:
        """One request; the answer is read to its end and not looked at."""
        host, _, port = self.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            head = f"POST {path} HTTP/1.1\r\nHost: nsqd\r\nConnection: close\r\n"
            writer.write(f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY)
            await reader.read()
        finally:
            writer.close()
