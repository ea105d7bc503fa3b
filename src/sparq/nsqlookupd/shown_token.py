"""Check of the token in an nsqd's IDENTIFY, if `--require-token` is given.

    {"version": "1.3.0", "broadcast_address": "nsqd-1", ..., "token": "nsq_..."}

1. Go's nsqlookupd ignores that field. Go's nsqd does not send it, so it is refused.
2. To register a topic, an nsqd needs the role `register` for it; to connect at all, it needs the
   role for at least one topic.
3. If a token expires or is removed from the file, its connection is closed, which removes its
   registrations.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from sparq.daemon.access import rights
from sparq.daemon.access.access import EXPIRED, FORBIDDEN
from sparq.daemon.access.roles import Role

if TYPE_CHECKING:
    from sparq.daemon.access.access import Access
    from sparq.daemon.access.tokens import Token

FIELD: Final = "token"


class NsqdToken:
    """The token that one nsqd has shown."""

    def __init__(self, access: Access, remote_address: str) -> None:
        self._access = access
        self._remote_address = remote_address
        self._text = ""
        self._token: Token | None = None

    def take(self, body: bytes) -> str:
        """Check the body of IDENTIFY, a JSON object; return why the nsqd is refused, or ""."""
        # Keys may have any case, like all keys of IDENTIFY.
        fields = {key.lower(): value for key, value in json.loads(body).items()}
        shown = fields.get(FIELD)
        self._text = shown if isinstance(shown, str) else ""
        self._token, reason = self._access.find_token(self._text)
        if not reason and not self._may():
            reason = FORBIDDEN
        if not reason:
            return ""
        self._refuse(reason, "IDENTIFY")
        if reason == FORBIDDEN:
            return "this token may not register"
        if reason == EXPIRED:
            return "this token has expired"
        return "unknown token" if self._text else "a token is required (nsqd's --lookupd-token)"

    def refusal(self, topic: str) -> str:
        """Return why the nsqd may not register a topic, or ""."""
        if self._token is not None and Role.REGISTER in rights.for_topic(self._token.grants, topic):
            return ""
        self._refuse(FORBIDDEN, "REGISTER", topic)
        return "this token may not register this topic"

    def review(self, *, again: bool) -> bool:
        """Whether the token is still valid; `again`: look it up, as the file was read again."""
        if self._token is None:
            return True  # nothing was shown yet
        reason = "" if self._access.now() < self._token.expires else EXPIRED
        if again:
            found, reason = self._access.find_token(self._text)
            self._token = found or self._token
            if not reason and not self._may():
                reason = FORBIDDEN
        if reason:
            self._refuse(reason, "IDENTIFY")
        return not reason

    def _may(self) -> bool:
        held = () if self._token is None else self._token.grants
        return Role.REGISTER in rights.anywhere(held)

    def _refuse(self, reason: str, action: str, topic: str = "") -> None:
        name = "" if self._token is None else self._token.name
        self._access.refuse_command(reason, action, name, self._remote_address, topic=topic)
