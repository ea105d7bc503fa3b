"""nsq_to_http killed at random moments: what it has finished was answered with 200."""

from __future__ import annotations

import asyncio
from collections import Counter

from aiohttp import web

from sparq.tools import nsq_to_http
from tests.support.servers import NsqdServer
from tests.tools.forwarding import new_topic, web_server
from tests.tools.killing import SHORT_TIMEOUTS, Killer, exit_status_of, start

KILLS = 3
ANSWER_SECONDS = 0.02
REFUSED_EVERY = 50


class RecordingServer:
    """A web server's handler that takes bodies, and refuses every 50th request with 500.

    Attributes:
        taken: how often each body was taken.
    """

    def __init__(self) -> None:
        self.taken: Counter[bytes] = Counter()
        self._asked = 0

    async def answer(self, request: web.Request) -> web.Response:
        """Take the body, unless the client has disconnected before the answer."""
        self._asked += 1
        if self._asked % REFUSED_EVERY == 0:
            return web.Response(status=500)
        await asyncio.sleep(ANSWER_SECONDS)  # a realistic response time
        if request.transport is not None and not request.transport.is_closing():
            self.taken[await request.read()] += 1
        return web.Response()


async def test_kill_9_loses_no_finished_message(nsqd: NsqdServer) -> None:
    """After several kills all messages are finished, and the server has taken every one."""
    topic, taker = new_topic(), RecordingServer()
    async with web_server() as server, Killer(nsqd, topic, "nsq_to_http") as killer:
        server.answer = taker.answer
        flags = [f"--nsqd-tcp-address={nsqd.tcp}", f"--topic={topic}", f"--post={server.url}"]
        flags += SHORT_TIMEOUTS
        for _ in range(KILLS):
            await killer.kill(start(nsq_to_http, *flags))
        process = start(nsq_to_http, *flags)
        await killer.until_all_is_finished()
        process.terminate()
        assert 0 == exit_status_of(process)

    assert set() == set(killer.bodies).difference(taker.taken)
    assert set() == set(taker.taken).difference(killer.bodies)
