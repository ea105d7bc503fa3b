"""An nsqd that drains: while it does, no publish is accepted, whatever ends a life in between.

A change of the drain holds once it is answered. An unanswered or failed change may have reached the
disk or not: which of the two holds is known again when the next life begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparq.broker.drain_file import Drain, Draining

if TYPE_CHECKING:
    from proofs.simulate_parts.truth import Command
    from proofs.simulate_parts.world import World
    from sparq.protocol.errors import RemoteError

BEGINS, ENDS = 0.01, 0.2
"""Chance that a drain begins, or ends, in a round."""


class Change:
    """A requested start or end of a drain."""

    def __init__(self, truth: DrainTruth, *, on: bool) -> None:
        self._truth, self._on = truth, on

    def answered(self, error: RemoteError | None) -> None:
        """Note that the change holds, or has failed."""
        self._truth.answered(None if error is not None else self._on)


class DrainTruth:
    """What is known about the drain.

    Attributes:
        holds: whether nsqd drains; None: a change is in progress.
    """

    def __init__(self, world: World) -> None:
        self.holds: bool | None = False
        self._world = world
        self._before = False
        self._since_step = 0
        self._is_sure = True

    def change_by_chance(self) -> None:
        """Start or end a drain, by chance."""
        if self.holds is None or self._world.chance.random() >= (ENDS if self.holds else BEGINS):
            return
        world, self._before, self.holds = self._world, self.holds, None
        drain = None if self._before else Drain(world.clock.now().wall_ns, "somebody")
        world.broker.drains.change(
            lambda now: Draining(drain, now.topics), Change(self, on=drain is not None)
        )

    def answered(self, on: bool | None) -> None:
        """Note that a change holds; None: it failed, and the old state holds until nsqd ends."""
        self._is_sure = on is not None
        self._hold(self._before if on is None else on)

    def _hold(self, on: bool) -> None:
        self.holds, self._since_step = on, self._world.step

    def check_after_restart(self) -> None:
        """Check the drain in the next life: what was answered must hold in it."""
        holds = self._world.broker.drains.now.node is not None
        if self.holds is not None and self._is_sure and holds != self.holds:
            self._world.truth.tally.undrained += 1
            self._world.truth.tell(f"a drain was {self.holds}, and is {holds} after a restart")
        # An unanswered change may be found now, and still be lost in the next power cut.
        self._is_sure &= self.holds is not None
        self._hold(holds)

    def check_acknowledged(self, command: Command) -> None:
        """Check that a publish was acknowledged only while nsqd does not drain."""
        if self.holds and command.arrived_step > self._since_step:
            self._world.truth.tally.undrained += 1
            self._world.truth.tell(f"publish {command.first} was taken while nsqd drained")
