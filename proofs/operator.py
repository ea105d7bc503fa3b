"""An operator that uses nsqd's HTTP API to create topics, publish to them and delete them.

Proofs do not count its messages. It makes nsqd create and delete folders and files during a proof.
"""

import asyncio
import itertools
import random
from http.client import HTTPException

from tests.support.servers import NsqdServer

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
    """Sends requests over HTTP; does not repeat one that fails because nsqd is down."""

    def __init__(self, server: NsqdServer, seed: int) -> None:
        super().__init__(server.http)
        self.server = server
        self.chance = random.Random(f"{seed} operator")

    async def live(self) -> None:
        """Run `STEPS` in order, on one new topic after another."""
        for number in itertools.count():
            for step in STEPS:
                path = step.format(topic=f"operated.{number}")
                try:
                    await asyncio.to_thread(self.server.request, "POST", path, BODY)
                except (OSError, HTTPException):
                    await asyncio.sleep(RECONNECT_SECONDS)
                await asyncio.sleep(PAUSE_SECONDS * self.chance.random())
