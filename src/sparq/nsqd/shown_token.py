"""Check the token that a V2 connection showed as AUTH's secret against the token file.

1. The token's roles are the connection's permissions: publish and consume, for topics by pattern.
2. The token is looked up again when it expires and when the file has been read again. If it is no
   longer valid, the connection is closed (`E_AUTH_FAILED`); likewise if it no longer allows the
   connection's subscription (`E_UNAUTHORIZED`). Other changes of its roles apply from the next
   command on.
3. Every refusal is counted and recorded (`daemon.access`), without the token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sparq.broker.permissions import Permissions, granted
from sparq.daemon.access.access import FORBIDDEN, UNAUTHORISED
from sparq.nsqd.rights import permissions
from sparq.options.units import SECOND
from sparq.protocol.commands import STATE_SUBSCRIBED
from sparq.protocol.errors import RemoteError

if TYPE_CHECKING:
    import asyncio

    from sparq.broker.session import V2Session
    from sparq.daemon.access.access import Access
    from sparq.daemon.access.tokens import Token
    from sparq.nsqd.turns import Turns

CHECK_SECONDS: Final = 60.0
"""How often a token's expiry is checked: the system clock may be changed meanwhile."""

FOREVER_SECONDS: Final = 1e9


class ConnectionToken:
    """The token that one connection has shown, if it is in the token file."""

    def __init__(self, access: Access, turns: Turns, session: V2Session) -> None:
        self._access = access
        self._turns = turns
        self._session = session
        self._text = ""
        self._name = ""
        self._timer: asyncio.TimerHandle | None = None

    def take(self, secret: bytes) -> tuple[Permissions | None, str]:
        """Return a secret's permissions, and "" or why it has none.

        The reason is `UNAUTHORISED` for a secret that is not in the file: an authd may know it.
        """
        # Latin-1 decodes any bytes: a secret that is not text is merely unknown.
        text = secret.decode("latin-1")
        token, reason = self._access.find_token(text)
        if token is None:
            return None, reason
        self._name = token.name
        if reason:
            return None, reason
        self._text = text
        self._watch(token)
        return self._permissions(token), ""

    def review(self) -> None:
        """Look the token up again: it may have expired, or its line in the file has changed."""
        session = self._session
        if not self._text or session.closing:
            return
        token, reason = self._access.find_token(self._text)
        if token is None or reason:
            self._cut(RemoteError("E_AUTH_FAILED", "AUTH failed"), "AUTH", reason)
            return
        self._watch(token)
        session.permissions = found = self._permissions(token)
        if session.state == STATE_SUBSCRIBED:
            topic, channel = self._turns.broker.names_subscribed(session)
            if not found.allows(topic, channel):
                text = f'AUTH failed for SUB on "{topic}" "{channel}"'
                error = RemoteError("E_UNAUTHORIZED", text)
                self._cut(error, "SUB", FORBIDDEN, topic, channel)

    def refuse(
        self, code: str, action: str, reason: str = "", topic: str = "", channel: str = ""
    ) -> None:
        """Record that a command is refused.

        Args:
            code: nsqd's error code.
            action: the command.
            reason: one of `daemon.access.access.REASONS`; "": derived from the code.
            topic, channel: the command's topic and channel.
        """
        session = self._session
        if not reason:
            reason = FORBIDDEN if code == "E_UNAUTHORIZED" else UNAUTHORISED
        self._access.refuse_command(
            reason,
            action,
            self._name,
            session.remote_address,
            topic=topic,
            channel=channel,
            user_agent=session.user_agent,
            detail=f"{code} {reason}",
        )

    def close(self) -> None:
        """Cancel the timer, when the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()

    def _permissions(self, token: Token) -> Permissions:
        # A token without an expiry has infinity here, which `int` refuses.
        left_seconds = min(token.expires - self._access.now(), FOREVER_SECONDS)
        found = granted(token.name, permissions(token.grants), int(left_seconds * SECOND))
        found.begin(self._turns.runner.now().mono_ns)
        return found

    def _watch(self, token: Token) -> None:
        """Set the timer for the next check: at the expiry, in `CHECK_SECONDS` at the latest."""
        self.close()
        left_seconds = token.expires - self._access.now()
        if left_seconds < FOREVER_SECONDS:
            delay = max(0.0, min(left_seconds, CHECK_SECONDS))
            self._timer = self._turns.loop.call_later(delay, self.review)

    def _cut(
        self, error: RemoteError, action: str, reason: str, topic: str = "", channel: str = ""
    ) -> None:
        self.refuse(error.code, action, reason, topic, channel)
        self._turns.broker.fail(self._session, error)
        self._turns.schedule()
