"""Names and delays, as programs give them: checked before anything is sent, or counts as answered.

What nsqd allows (``--max-req-timeout``) is nsqd's to say; what it cannot even count is said here.
"""

from __future__ import annotations

from typing import Final

from sparq.protocol.names import NAME_SIZE_MAX, is_valid_name, quote

RULE: Final = f"1 to {NAME_SIZE_MAX} characters of .a-zA-Z0-9_- and perhaps #ephemeral behind them"


def check_name(kind: str, name: str) -> None:
    """Hold a name to what nsqd takes.

    Raises:
        TypeError: it is no text.
        ValueError: it is not valid; the error says what it is the name of, and what a name may be.
    """
    if not isinstance(name, str):
        raise TypeError(f"a {kind} is str, not {type(name).__name__}")
    if not is_valid_name(name):
        raise ValueError(f"{kind} name {quote(name)} is not valid: it has {RULE}")


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
