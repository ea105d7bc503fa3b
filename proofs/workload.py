"""The witness as a company: publishers and consumers on one topic, and what they have seen so far.

For proofs that do something to nsqd, or beside it, while somebody works: the company must go on.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.support.servers import NsqdServer

from proofs.daemon_fixture import Crew, is_drained
from proofs.history import Command, History, Outcome
from proofs.witness import Actor, Consumer, Publisher

TOPIC, CHANNEL = "proof", "live"
WAIT_SECONDS = 60.0
POLL_SECONDS = 0.02


async def until(condition: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Return once the condition holds; an AssertionError says what did not come about in time."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - many actors, no one event
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError as error:
        raise AssertionError(f"not {what} in {seconds:.0f} s") from error


@dataclass(slots=True)
class Witness:
    """Four publishers and two consumers, who come to nsqd at `address`; it runs as `server`."""

    server: NsqdServer
    history: History
    publishers: list[Publisher] = field(default_factory=list)
    consumers: list[Consumer] = field(default_factory=list)

    @classmethod
    def of(
        cls, server: NsqdServer, seed: int, address: str = "", *, delays: bool = False
    ) -> "Witness":
        """A company with its chances from this seed; no address: nsqd's own."""
        history = History(run=seed & 0xFFFFFFFF, delays=delays)
        place = address or server.tcp
        return cls(
            server,
            history,
            [Publisher(place, TOPIC, history, number) for number in range(4)],
            [Consumer(place, TOPIC, CHANNEL, history, name) for name in ("one", "two")],
        )

    def make_topic(self) -> None:
        """Topic and channel, so that the channel gets everything."""
        self.server.post(f"/topic/create?topic={TOPIC}")
        self.server.post(f"/channel/create?topic={TOPIC}&channel={CHANNEL}")

    def actors(self) -> list[Actor]:
        return [*self.publishers, *self.consumers]

    def at_work(self) -> Crew:
        """They work for as long as the block lasts."""
        return Crew(*self.actors())

    # What they have seen

    def commands(self) -> Iterator[Command]:
        for commands in self.history.publishers.values():
            yield from commands

    def acknowledged(self) -> int:
        """Publishing commands that were answered by OK."""
        return sum(command.outcome is Outcome.OK for command in self.commands())

    def refused(self) -> int:
        """Publishing commands that were answered by an error."""
        return sum(command.outcome is Outcome.REFUSED for command in self.commands())

    def connections(self) -> int:
        """How often they have connected, all of them."""
        return sum(actor.connections for actor in self.actors())

    async def goes_on(self, commands: int, *, or_refused: bool = False) -> None:
        """Wait until so many more commands are acknowledged; or, if wanted, one is refused."""
        enough, refused = self.acknowledged() + commands, self.refused()
        await until(
            lambda: self.acknowledged() >= enough or (or_refused and self.refused() > refused),
            f"{commands:,} publishes acknowledged",
        )

    async def drained(self) -> None:
        """Publish no more, and wait until everything is consumed."""
        for publisher in self.publishers:
            publisher.stopping = True
        await until(lambda: not any(p.unanswered for p in self.publishers), "all answered")
        deadline = asyncio.get_running_loop().time() + 2 * WAIT_SECONDS
        while not await asyncio.to_thread(is_drained, self.server, TOPIC, (CHANNEL,)):
            assert asyncio.get_running_loop().time() < deadline, "not drained"
