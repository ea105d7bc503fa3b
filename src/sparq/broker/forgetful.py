"""The ledger of what is not to outlive the process: it takes every note, and keeps none.

An ephemeral channel notes what a durable one does, but here, so that the code that delivers and
finishes has one path. Its methods are those of `log.ledger.Ledger` that a channel calls.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Indexes = Sequence[int] | NDArray[np.int64]


class Forgetful:
    """The ledger of ephemeral channels."""

    def finished(self, channel: str, starts: Indexes, ends: Indexes) -> None:
        """Forgotten, as all that follow."""

    def requeued(self, channel: str, indexes: Indexes, dues: Indexes, attempts: Indexes) -> None:
        """Forgotten."""

    def voided(self, channel: str, starts: Indexes, ends: Indexes) -> None:
        """Forgotten."""

    def seek(self, channel: str, index: int) -> None:
        """Forgotten."""

    def cursor(self, channel: str, index: int) -> None:
        """Forgotten."""

    def kept(self, channel: str, index: int | None) -> None:
        """Forgotten."""

    def paused(self, channel: str, flag: bool) -> None:
        """Forgotten."""

    def apart(self, channel: str, indexes: Indexes) -> None:
        """Forgotten."""
