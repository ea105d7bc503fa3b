"""A bad network for one client: a proxy that delays, splits, doubles and cuts connections.

It runs between a client and nsqd; neither of them knows. It has its own random generator. When
bytes arrive depends on the machine, so a seed repeats the kinds of trouble and their order, but not
every byte.

1. While a connection lasts, its bytes are never changed, dropped or reordered.
2. A connection is cut only after the client got a reply on it, so each can make progress.
3. After a cut of any kind, both sides of a connection are closed within about a second.
"""

import asyncio
import enum
import random
from contextlib import suppress
from dataclasses import dataclass, field

from tests.support.v2_client import MAGIC

PIECE_BYTES = 1 << 16
SPLIT_BYTES = 40
SPLIT_SHARE = 0.1
DELAY_SHARE = 0.1
DELAY_SECONDS = 0.02
DOUBLE_SHARE = 0.2
PAUSE_SECONDS = (0.02, 0.3)
LINGER_SECONDS = (0.0, 0.5)


class Cut(enum.Enum):
    """How a connection ends."""

    RESET = "both sides at once"
    CLIENT_FIRST = "the client's side; nsqd learns of it later"
    SERVER_FIRST = "nsqd's side; the client learns of it later"
    HALF_CLOSE = "nsqd reads the end of input, and its answers still arrive"
    SILENCE = "nothing goes either way, then both sides"
    MID_FRAME = "both sides, with half of a piece on its way"


@dataclass(slots=True, eq=False)
class NetworkCounts:
    """What all proxies of a run have done, in total.

    Attributes:
        left: cuts still to make.
        cuts: cuts made, by kind.
        doubles: extra connections that sent the magic bytes and were closed.
        reconnects: seconds from each cut until the client got a reply again.
    """

    left: int
    cuts: dict[Cut, int] = field(default_factory=lambda: dict.fromkeys(Cut, 0))
    doubles: int = 0
    reconnects: list[float] = field(default_factory=list)


class Side:
    """One of the two sockets of a link: the client's or nsqd's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def abort(self) -> None:
        self.writer.transport.abort()


class Link:
    """A connection of the client, and the matching connection to nsqd."""

    def __init__(self, proxy: "Proxy", client: Side, server: Side) -> None:
        self.proxy = proxy
        self.client = client
        self.server = server
        self.answered = self.is_cut = self.silent = self.halve_next = False

    async def run(self) -> None:
        """Carry bytes both ways until both sides are closed."""
        up = asyncio.create_task(self.carry(self.client, self.server, is_answer=False))
        down = asyncio.create_task(self.carry(self.server, self.client, is_answer=True))
        try:
            await asyncio.gather(up, down, return_exceptions=True)
        finally:
            for task in (up, down):
                task.cancel()
            self.end()

    async def carry(self, source: Side, target: Side, *, is_answer: bool) -> None:
        with suppress(OSError):
            while data := await source.reader.read(PIECE_BYTES):
                while self.silent:  # noqa: ASYNC110 - a cut ends it, by closing both sides
                    await asyncio.sleep(0.01)
                if self.halve_next:
                    target.writer.write(data[: len(data) // 2])
                    self.end()
                    return
                await self.pass_on(data, target.writer)
                if is_answer and not self.answered:
                    self.answered = True
                    self.proxy.note_first_reply()
            if target.writer.can_write_eof():
                target.writer.write_eof()
            return
        self.end()

    async def pass_on(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        """Send a piece: unchanged, after a delay, or with its first bytes one by one."""
        chance = self.proxy.chance
        draw = 1.0 if self.proxy.calm else chance.random()
        if draw < SPLIT_SHARE:
            for at in range(min(SPLIT_BYTES, len(data))):
                if writer.is_closing():
                    return
                writer.write(data[at : at + 1])
                await asyncio.sleep(0)
            data = data[SPLIT_BYTES:]
        elif draw < SPLIT_SHARE + DELAY_SHARE:
            await asyncio.sleep(chance.uniform(0, DELAY_SECONDS))
        if writer.is_closing():
            return
        writer.write(data)
        await writer.drain()

    async def cut(self, how: Cut) -> None:
        """Cut the connection this way; return when both sides are closed or closing."""
        self.is_cut = True
        linger = self.proxy.chance.uniform(*LINGER_SECONDS)
        if how is Cut.CLIENT_FIRST:
            self.client.abort()
        elif how is Cut.SERVER_FIRST:
            self.server.abort()
        elif how is Cut.HALF_CLOSE:
            with suppress(OSError):
                self.server.writer.write_eof()
        elif how is Cut.SILENCE:
            self.silent = True
        elif how is Cut.MID_FRAME:
            self.halve_next = True
        if how is not Cut.RESET:
            await asyncio.sleep(linger)
        self.end()

    def end(self) -> None:
        """Close both sides."""
        self.silent = False
        self.client.abort()
        self.server.abort()


class Proxy:
    """The address to which one client connects, instead of to nsqd at `target`.

    Attributes:
        calm: if true, bytes are only passed on, without trouble.
    """

    def __init__(self, target: str, chance: random.Random, counts: NetworkCounts) -> None:
        host, _, port = target.rpartition(":")
        self.target = host, int(port)
        self.chance = chance
        self.counts = counts
        self.calm = False
        self.address = ""
        self.links: set[Link] = set()
        self._cut_at: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def awaits_reply(self) -> bool:
        """Whether the client was cut off and has not got a reply since."""
        return self._cut_at is not None

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self.accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._spawn(self.cut_connections())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        for link in tuple(self.links):
            link.end()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle a new connection of the client."""
        client = Side(reader, writer)
        try:
            if not self.calm and self.chance.random() < DOUBLE_SHARE:
                _, twin = await asyncio.open_connection(*self.target)
                twin.write(MAGIC)
                self.counts.doubles += 1
                twin.close()
            server = Side(*await asyncio.open_connection(*self.target, limit=PIECE_BYTES))
        except OSError:
            client.abort()
            return
        link = Link(self, client, server)
        self.links.add(link)
        try:
            await link.run()
        finally:
            self.links.discard(link)

    def note_first_reply(self) -> None:
        """Record the first reply on a connection: it ends the time since the last cut."""
        if self._cut_at is not None:
            self.counts.reconnects.append(asyncio.get_running_loop().time() - self._cut_at)
            self._cut_at = None

    async def cut_connections(self) -> None:
        """Cut one connection after another until no cut is left, then stay calm."""
        while self.counts.left > 0:
            await asyncio.sleep(self.chance.uniform(*PAUSE_SECONDS))
            ready = [link for link in self.links if link.answered and not link.is_cut]
            if ready and self.counts.left > 0:
                how = self.chance.choice(list(Cut))
                self.counts.left -= 1
                self.counts.cuts[how] += 1
                if self._cut_at is None:
                    self._cut_at = asyncio.get_running_loop().time()
                await ready[0].cut(how)
        self.calm = True
