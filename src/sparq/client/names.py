"""Names of topics and channels, as programs give them: checked before anything is sent."""

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
