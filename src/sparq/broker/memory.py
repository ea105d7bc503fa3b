"""What of a channel outlives the process: the ledger's side of it, or nothing.

A durable channel's events become records of its topic's ledger, buffered until the turn ends; an
ephemeral channel forgets (decision 16), with the same face.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sparq.log.ledger import Ledger

Indexes = Sequence[int] | NDArray[np.int64]


class Memory(Protocol):
    """Where a channel notes what must be known after a restart."""

    def finished(self, starts: Indexes, ends: Indexes) -> None:
        """These ranges are done with."""

    def requeued(self, indexes: Indexes, dues: Indexes, attempts: Indexes) -> None:
        """These wait for a wall time (0: ready), delivered so often before."""

    def voided(self, first: int, end: int) -> None:
        """This range will never be delivered on this channel."""

    def seek(self, index: int) -> None:
        """The channel begins anew at this index."""

    def cursor(self, index: int) -> None:
        """Everything before this index has been handed out once."""

    def kept(self, index: int | None) -> None:
        """What a range reader has read from this index on stays; None: nothing of it."""

    def paused(self, paused: bool) -> None:
        """The channel stands still, or moves again."""

    def apart(self, indexes: Indexes) -> None:
        """These deferred publishes wait no more in the topic's due list for this channel."""


class Durable:
    """A channel's part of its topic's ledger."""

    def __init__(self, ledger: Ledger, name: str, noted: Callable[[], None]) -> None:
        self._ledger = ledger
        self._name = name
        self._noted = noted

    def finished(self, starts: Indexes, ends: Indexes) -> None:
        """Buffered; written with the turn's end."""
        self._ledger.finished(self._name, starts, ends)
        self._noted()

    def requeued(self, indexes: Indexes, dues: Indexes, attempts: Indexes) -> None:
        """Buffered; written with the turn's end."""
        self._ledger.requeued(self._name, indexes, dues, attempts)
        self._noted()

    def voided(self, first: int, end: int) -> None:
        """Buffered; written with the turn's end."""
        self._ledger.voided(self._name, [first], [end])
        self._noted()

    def seek(self, index: int) -> None:
        """Buffered; written with the turn's end."""
        self._ledger.seek(self._name, index)
        self._noted()

    def cursor(self, index: int) -> None:
        """Buffered; written with the turn's end."""
        self._ledger.cursor(self._name, index)
        self._noted()

    def kept(self, index: int | None) -> None:
        """Buffered; written with the turn's end."""
        self._ledger.kept(self._name, index)
        self._noted()

    def paused(self, paused: bool) -> None:
        """Buffered; written with the turn's end."""
        self._ledger.paused(self._name, paused)
        self._noted()

    def apart(self, indexes: Indexes) -> None:
        """Buffered; written with the turn's end."""
        self._ledger.apart(self._name, indexes)
        self._noted()


class Forgetful:
    """An ephemeral channel's memory: nothing."""

    def finished(self, starts: Indexes, ends: Indexes) -> None:
        """Forgotten."""

    def requeued(self, indexes: Indexes, dues: Indexes, attempts: Indexes) -> None:
        """Forgotten."""

    def voided(self, first: int, end: int) -> None:
        """Forgotten."""

    def seek(self, index: int) -> None:
        """Forgotten."""

    def cursor(self, index: int) -> None:
        """Forgotten."""

    def kept(self, index: int | None) -> None:
        """Forgotten."""

    def paused(self, paused: bool) -> None:
        """Forgotten."""

    def apart(self, indexes: Indexes) -> None:
        """Forgotten."""
