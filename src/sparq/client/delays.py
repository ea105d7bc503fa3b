"""Delays of requeues and of deferred publishes, as programs give them: seconds.

What nsqd allows (``--max-req-timeout``) is nsqd's to say; what it cannot even count is said here,
before anything was sent or counts as answered for.
"""

from __future__ import annotations

from typing import Final

DELAY_SECONDS_MAX: Final = (2**63 - 1) / 1e9
"""nsqd counts nanoseconds in 63 bits; what is beyond would come at any time, or at once."""


def check_delay(delay_seconds: float) -> None:
    """Hold a delay to what nsqd can count.

    Raises:
        TypeError: it is no number.
        ValueError: it is negative, or too long.
    """
    if not isinstance(delay_seconds, (int, float)):
        raise TypeError(f"delay_seconds is a number, not {type(delay_seconds).__name__}")
    if not 0 <= delay_seconds < DELAY_SECONDS_MAX:
        raise ValueError(f"delay_seconds is {delay_seconds}, not 0 to {DELAY_SECONDS_MAX:.2g}")
