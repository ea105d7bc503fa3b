"""The requirements for the client library, and the tests of each.

Each part is a module: `consumer`, `rdy`, `backoff`, `connection`, `producer` and `features`. Tests
are named as `file.py::test`, with the file's path below tests/. The tests in `on_nsqd` use real
daemons; those in `scripted` need a peer that does what no nsqd does on request.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement.

    Attributes:
        text: what is required.
        on_nsqd: its tests with real daemons; at least one.
        scripted: its tests with scripted peers.
    """

    text: str
    on_nsqd: tuple[str, ...]
    scripted: tuple[str, ...] = ()

    @property
    def tests(self) -> tuple[str, ...]:
        """All tests of the requirement."""
        return self.on_nsqd + self.scripted
