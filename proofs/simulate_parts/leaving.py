"""An nsqd that is to be left: while it drains no publish is taken, whatever ends it in between.

A change holds once it is answered. One that is not may have come to the disk or not, and so may one
that has failed: what holds is known again when the next life begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparq.broker.drain_file import Drain, Draining

if TYPE_CHECKING:
    from proofs.simulate_parts.truth import Command
    from proofs.simulate_parts.world import World
    from sparq.protocol.errors import RemoteError

BEGINS, ENDS = 0.01, 0.2
"""How likely a drain begins, or ends, in a round."""


class Change:
    """A drain that is asked for, or its end."""

    def __init__(self, leaving: Leaving, *, on: bool) -> None:
        self._leaving, self._on = leaving, on

    def answered(self, error: RemoteError | None) -> None:
        """It holds, or has failed."""
        self._leaving.answered(None if error is not None else self._on)


class Leaving:
    """What is known of the drain.

    Attributes:
        holds: whether nsqd drains; None: a change is under way.
    """

    def __init__(self, world: World) -> None:
        self.holds: bool | None = False
        self._world = world
        self._before = False
        self._since_step = 0
        self._is_sure = True

    def befall(self) -> None:
        """Somebody may want a drain, or no more."""
        if self.holds is None or self._world.chance.random() >= (ENDS if self.holds else BEGINS):
            return
        world, self._before, self.holds = self._world, self.holds, None
        drain = None if self._before else Drain(world.clock.now().wall_ns, "somebody")
        world.broker.drains.change(
            lambda now: Draining(drain, now.topics), Change(self, on=drain is not None)
        )

    def answered(self, on: bool | None) -> None:
        """A change holds; None: it has failed, and all is as before until nsqd ends."""
        self._is_sure = on is not None
        self._hold(self._before if on is None else on)

    def _hold(self, on: bool) -> None:
        self.holds, self._since_step = on, self._world.step

    def reborn(self) -> None:
        """Another life has begun: what was answered holds in it."""
        holds = self._world.broker.drains.now.node is not None
        if self.holds is not None and self._is_sure and holds != self.holds:
            self._world.truth.tally.undrained += 1
            self._world.truth.tell(f"a drain was {self.holds}, and is {holds} after a restart")
        # What was not answered may be found, and be lost with the next power cut all the same.
        self._is_sure &= self.holds is not None
        self._hold(holds)

    def taken(self, command: Command) -> None:
        """A publish was acknowledged."""
        if self.holds and command.arrived_step > self._since_step:
            self._world.truth.tally.undrained += 1
            self._world.truth.tell(f"publish {command.first} was taken while nsqd drained")
