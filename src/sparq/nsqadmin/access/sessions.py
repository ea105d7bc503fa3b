"""Browser sessions of those who signed in with a token: random ids in memory.

A cookie holds the id, never the token: a browser sends cookies to every port of a host. What a
session may do is looked up at the token each time, so a token that is gone ends its sessions.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

LIFE_SECONDS = 12 * 3600.0
SESSIONS_MAX = 1000


class _Session(NamedTuple):
    digest: bytes
    ends: float


class Sessions:
    """The sessions of this process; beyond `SESSIONS_MAX` the oldest ends."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}

    def start(self, digest: bytes, now: float) -> str:
        """A new session for the token with this hash; its id."""
        if len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        name = secrets.token_urlsafe(32)
        self._sessions[name] = _Session(digest, now + LIFE_SECONDS)
        return name

    def digest(self, name: str, now: float) -> bytes | None:
        """The hash of the token that a session began with; None: there is no such session."""
        found = self._sessions.get(name)
        if found is not None and now < found.ends:
            return found.digest
        self.end(name)
        return None

    def end(self, name: str) -> None:
        """Forget a session, if there is one."""
        self._sessions.pop(name, None)
