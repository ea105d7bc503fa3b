"""Sessions of browsers that signed in with a token.

A session's cookie holds a random id, never the token, because a browser sends cookies to every port
of a host. The roles of a session are looked up from its token on each request, so removing a token
ends its sessions.
"""

from __future__ import annotations

import secrets

LIFE_SECONDS = 12 * 3600.0
SESSIONS_MAX = 1000


class Sessions:
    """The sessions of this process, in memory; beyond `SESSIONS_MAX` the oldest one ends."""

    def __init__(self) -> None:
        self._sessions: dict[str, tuple[bytes, float]] = {}

    def start(self, digest: bytes, now: float) -> str:
        """Start a session for the token with this hash; returns the session's id."""
        if len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        name = secrets.token_urlsafe(32)
        self._sessions[name] = digest, now + LIFE_SECONDS
        return name

    def digest(self, name: str, now: float) -> bytes | None:
        """Hash of the token that a session was started with; None if unknown or expired."""
        digest, ends = self._sessions.get(name, (b"", 0.0))
        if now < ends:
            return digest
        self.end(name)
        return None

    def end(self, name: str) -> None:
        """End a session; an unknown id is ignored."""
        self._sessions.pop(name, None)
