"""A workload: publishers and consumers on one topic, and what they have seen so far.

For proofs that act on nsqd or its surroundings under load: the workload must go on.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.support.servers import NsqdServer

from proofs.actors import Actor, Consumer, Publisher
from proofs.daemon_fixture import RunningActors, is_drained
from proofs.history import Command, History, Outcome

TOPIC, CHANNEL = "proof", "live"
WAIT_SECONDS = 60.0
POLL_SECONDS = 0.02


async def until(condition: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Return once the condition holds; on a timeout, an AssertionError says what did not happen."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - many actors, no single event
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError as error:
        raise AssertionError(f"not {what} in {seconds:.0f} s") from error


@dataclass(slots=True)
class Workload:
    """Four publishers and two consumers on the nsqd that runs as `server`."""

    server: NsqdServer
    history: History
    publishers: list[Publisher] = field(default_factory=list)
    consumers: list[Consumer] = field(default_factory=list)

    @classmethod
    def of(
        cls, server: NsqdServer, seed: int, address: str = "", *, delays: bool = False
    ) -> "Workload":
        """Return a workload with random choices from this seed; no address: nsqd's own."""
        history = History(run=seed & 0xFFFFFFFF, delays=delays)
        place = address or server.tcp
        return cls(
            server,
            history,
            [Publisher(place, TOPIC, history, number) for number in range(4)],
            [Consumer(place, TOPIC, CHANNEL, history, name) for name in ("one", "two")],
        )

    def make_topic(self) -> None:
        """Create the topic and its channel, so that the channel gets every message."""
        self.server.post(f"/topic/create?topic={TOPIC}")
        self.server.post(f"/channel/create?topic={TOPIC}&channel={CHANNEL}")

    def actors(self) -> list[Actor]:
        return [*self.publishers, *self.consumers]

    def running(self) -> RunningActors:
        """Run all actors as long as the block lasts."""
        return RunningActors(*self.actors())

    # What the actors have seen

    def commands(self) -> Iterator[Command]:
        for commands in self.history.publishers.values():
            yield from commands

    def acknowledged(self) -> int:
        """Return the number of publishing commands that were answered with OK."""
        return sum(command.outcome is Outcome.OK for command in self.commands())

    def refused(self) -> int:
        """Return the number of publishing commands that were answered with an error."""
        return sum(command.outcome is Outcome.REFUSED for command in self.commands())

    def connections(self) -> int:
        """Return how often the actors have connected in total."""
        return sum(actor.connections for actor in self.actors())

    async def goes_on(self, commands: int, *, or_refused: bool = False) -> None:
        """Wait until `commands` more are acknowledged or, with `or_refused`, one is refused."""
        enough, refused = self.acknowledged() + commands, self.refused()
        await until(
            lambda: self.acknowledged() >= enough or (or_refused and self.refused() > refused),
            f"{commands:,} publishes acknowledged",
        )

    async def drained(self) -> None:
        """Stop publishing, and wait until everything is consumed."""
        for publisher in self.publishers:
            publisher.stopping = True
        await until(lambda: not any(p.unanswered for p in self.publishers), "all answered")
        deadline = asyncio.get_running_loop().time() + 2 * WAIT_SECONDS
        while not await asyncio.to_thread(is_drained, self.server, TOPIC, (CHANNEL,)):
            assert asyncio.get_running_loop().time() < deadline, "not drained"
