"""Which messages a sampling client gets: each with about rate + 1 percent (wire.md 1.7).

The dice are thrown for a whole run at once; with a seed they fall the same way every time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Sampler:
    """The dice of one broker."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = np.random.default_rng(seed)

    def keeps(self, count: int, rate: int) -> NDArray[np.bool_]:
        """For each of so many messages whether it is delivered; the others are finished."""
        return self._random.integers(0, 100, count) <= rate
