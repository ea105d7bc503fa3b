"""A token bucket: how many may pass by now, at so many a second.

1. It begins with one token, gets ``rate`` a second and holds no more than one second's worth: who
   was idle may pass so many at once.
2. No clock here: time is an argument, in seconds.
"""

from __future__ import annotations

from typing import Final

ROUNDING: Final = 1e-6
"""A sum of floats may be so much below the token that it means."""


class Bucket:
    """Tokens for a rate.

    Args:
        rate: tokens a second, 1 or more.
        now: the time at which it begins.
    """

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self._tokens = 1.0
        self._at = now

    def take(self, count: int, now: float) -> int:
        """Take up to so many tokens: how many there were."""
        elapsed = max(0.0, now - self._at)
        self._at = max(self._at, now)
        self._tokens = min(self._tokens + elapsed * self._rate, self._rate)
        taken = min(count, int(self._tokens + ROUNDING))
        self._tokens -= taken
        return taken

    def seconds_until(self, count: int) -> float:
        """How long after the last ``take`` there will be so many tokens, at most its size."""
        missing = min(count, self._rate) - self._tokens
        return max(0.0, missing / self._rate)
