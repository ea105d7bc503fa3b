"""What is required of the client, line by line, and the tests that hold each line.

One module a part: `consumer`, `rdy`, `backoff`, `connection`, `producer` and `features`. A line
names tests as `file.py::test`, with the file's path below tests/. `on_nsqd` are tests against real
daemons; `scripted` ones need a peer that does what no nsqd does on request.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Requirement:
    """One line.

    Attributes:
        text: what is required.
        on_nsqd: tests that hold it against real daemons; at least one.
        scripted: tests that hold it further, against scripted ones.
    """

    text: str
    on_nsqd: tuple[str, ...]
    scripted: tuple[str, ...] = ()

    @property
    def tests(self) -> tuple[str, ...]:
        """All of them."""
        return self.on_nsqd + self.scripted
