"""The parts in which Spark keeps the state of a bucket, as this package sees them.

    hot       list   what ordinary batches read: an element for each batch since the last
                     compaction; the first one has what the compaction left hot
    names     list   the visitors of these batches, by name: read by a compaction only
    base      value  what the last compaction put away: read by a compaction only
    findings  value  all findings: read when one is looked up that is not in `hot`

A list is a Spark ListState, a value a ValueState, each with one binary column.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class Part(Protocol):
    """One state variable of a bucket."""

    def get(self) -> list[bytes]:
        """All its values, in order of writing; a value state has one at most."""

    def append(self, value: bytes) -> None:
        """Add a value; of lists only."""

    def put(self, value: bytes) -> None:
        """Have this one value from now on."""

    def clear(self) -> None:
        """Have no value from now on."""


@dataclass(frozen=True, slots=True)
class State:
    """The state of one bucket."""

    hot: Part
    names: Part
    base: Part
    findings: Part


class HeldPart:
    """A part in memory: for the end of a run, where Spark's state is read as rows, and for tests.

    Attributes:
        values: what it holds.
        calls: the methods called so far, by name.
    """

    def __init__(self, values: Iterable[bytes] = ()) -> None:
        self.values = list(values)
        self.calls: list[str] = []

    def get(self) -> list[bytes]:
        """All values."""
        self.calls.append("get")
        return list(self.values)

    def append(self, value: bytes) -> None:
        """Add a value."""
        self.calls.append("append")
        self.values.append(value)

    def put(self, value: bytes) -> None:
        """Have this one value."""
        self.calls.append("put")
        self.values = [value]

    def clear(self) -> None:
        """Have no value."""
        self.calls.append("clear")
        self.values = []


def held_state(
    hot: Iterable[bytes] = (),
    names: Iterable[bytes] = (),
    base: Iterable[bytes] = (),
    findings: Iterable[bytes] = (),
) -> State:
    """A state in memory with the values of each part."""
    return State(HeldPart(hot), HeldPart(names), HeldPart(base), HeldPart(findings))
