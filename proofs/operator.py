"""An operator that uses nsqd's HTTP API to create topics, publish to them and delete them.

Proofs do not count its messages. It makes nsqd create and delete folders and files during a proof.
"""

import asyncio
import random

from proofs.actors import RECONNECT_SECONDS, Actor

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
    """Sends requests over HTTP; does not repeat one that fails because nsqd is down.

    Args:
        address: address of nsqd's HTTP API.
        seed: seed of its random generator.
    """

    def __init__(self, address: str, seed: int) -> None:
        super().__init__(address)
        self.chance = random.Random(f"{seed} operator")
        self.made = 0

    async def live(self) -> None:
        """Run `STEPS` in order, on one new topic after another."""
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
        """Send one request, read the whole response and ignore it."""
        host, _, port = self.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            head = f"POST {path} HTTP/1.1\r\nHost: nsqd\r\nConnection: close\r\n"
            writer.write(f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY)
            await reader.read()
        finally:
            writer.close()
