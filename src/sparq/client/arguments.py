"""Checks of names and delays, made before a command is sent or a message counts as answered.

nsqd enforces its own limit for delays (``--max-req-timeout``); only delays that it cannot represent
are rejected here.
"""

from __future__ import annotations

from typing import Final

from sparq.protocol.names import NAME_SIZE_MAX, is_valid_name, quote

RULE: Final = (
    f"use 1-{NAME_SIZE_MAX} characters from [.a-zA-Z0-9_-], optionally followed by #ephemeral"
)


def check_name(kind: str, name: str) -> None:
    """Check that nsqd accepts a name; ``kind``, such as "topic", is for the error message.

    Raises:
        TypeError: the name is not a str.
        ValueError: the name is not valid; the error states the rule.
    """
    if not isinstance(name, str):
        raise TypeError(f"{kind} must be a str, not {type(name).__name__}")
    if not is_valid_name(name):
        raise ValueError(f"invalid {kind} name {quote(name)}: {RULE}")


DELAY_SECONDS_MAX: Final = (2**63 - 1) / 1e9
"""nsqd counts nanoseconds in 63 bits; a longer delay overflows, so its due time is arbitrary."""


def check_delay(delay_seconds: float) -> None:
    """Check that nsqd can represent a delay.

    Raises:
        TypeError: the delay is not a number.
        ValueError: the delay is negative or too long.
    """
    if not isinstance(delay_seconds, (int, float)):
        raise TypeError(f"delay_seconds must be a number, not {type(delay_seconds).__name__}")
    if not 0 <= delay_seconds < DELAY_SECONDS_MAX:
        raise ValueError(
            f"delay_seconds must be from 0 to {DELAY_SECONDS_MAX:.2g}, not {delay_seconds}"
        )
