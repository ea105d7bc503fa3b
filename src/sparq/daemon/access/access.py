"""Rights at the edge of nsqd and nsqlookupd: who may do what, and what is noted of it.

1. Without `--token-file` and `--http-token` nobody is asked. With `--http-token` alone, as before:
   what changes something or looks inside needs that token.
2. With a token file every route needs what the daemon's table of rights says, also to read; what
   is `OPEN` in it needs nothing. `--http-token`, if there is one, is good for everything.
3. A wrong or expired token is refused; it never falls back to what `anybody` may.
4. What changes something is noted when it is done or has failed, but for publishes; every refusal
   is counted, and noted as far as `Audit` lets it. No token gets into an entry: of the arguments
   it has those of `TOLD`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from sparq.daemon.access import tokens
from sparq.daemon.access.audit import Audit
from sparq.daemon.access.audit_file import Entry, Outcome
from sparq.daemon.access.grants import Grant
from sparq.daemon.access.rights import UNLISTED
from sparq.daemon.access.roles import WORDS, Role, Via
from sparq.daemon.access.tokens import Token, TokenFileError, Tokens
from sparq.daemon.address import peer_text
from sparq.daemon.call import HttpError
from sparq.daemon.token import is_shown
from sparq.program.lifecycle import StartError

if TYPE_CHECKING:
    from aiohttp import web

    from sparq.daemon.access.rights import Needs, Rights
    from sparq.daemon.call import Call
    from sparq.daemon.options import AccessOptions
    from sparq.daemon.routes import Route

UNAUTHORISED, EXPIRED, FORBIDDEN = "unauthorised", "expired", "forbidden"
REASONS: Final = (UNAUTHORISED, EXPIRED, FORBIDDEN)
"""Why a request is refused: no token or a wrong one, an old one, or one that may not."""

MASTER: Final = "http-token"
"""The name of whoever shows `--http-token`."""

EVERYTHING: Final = tuple(Grant(role) for role in WORDS.values())
TOLD: Final = ("node", "to", "id", "count", "to_all", "dry_run", "exit", "rate")
"""Arguments that an entry has, besides topic and channel."""

REFUSED_SECONDS: Final = 60.0
"""Beyond a first number of refusals of a kind, one in so many is written."""

WRITTEN_SECONDS: Final = 5.0
"""How long an answer waits for its entry to be on disk."""

logger = logging.getLogger(__name__)


class Caller(NamedTuple):
    """Whom a request comes from.

    Attributes:
        grants: what it may.
        reason: why it is refused, if that is not enough.
    """

    name: str
    via: Via
    grants: tuple[Grant, ...]
    reason: str


def build(rights: Rights, token: str, files: AccessOptions) -> Access | None:
    """Who may do what at a daemon with these options; None: nobody is asked, nothing is noted.

    Args:
        rights: its table.
        token: that of `--http-token`, resolved.
        files: of tokens, and for entries.

    Raises:
        StartError: a file cannot be used.
    """
    audit = None
    if files.token_file or files.audit_file:
        path, seconds = files.audit_file, REFUSED_SECONDS
        audit = Audit(path, flag="--audit-file", refused_seconds=seconds)
    elif not token:
        return None
    return Access(rights, token=token, token_file=files.token_file, audit=audit)


class Access:
    """Who may do what at one daemon.

    Attributes:
        tokens: those of the file; None: there is no file.
        refused: how many requests were refused, by reason.
    """

    def __init__(
        self,
        rights: Rights,
        *,
        token: str = "",
        token_file: str = "",
        audit: Audit | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`token`: that of `--http-token`. `now`: seconds since the epoch.

        Raises:
            StartError: the token file cannot be used.
        """
        self.refused = dict.fromkeys(REASONS, 0)
        self.now = now
        self.tokens = read(token_file)
        self._rights = rights
        self._token = token
        self._path = token_file
        self._audit = audit

    @property
    def asks(self) -> bool:
        """Whether some requests must show a token."""
        return bool(self._token) or self.tokens is not None

    def reload(self) -> bool:
        """Read the token file again.

        Returns:
            Whether it was read; if not, the log says why, and the tokens stay as they were.
        """
        if self.tokens is None:
            return False
        try:
            self.tokens = read(self._path)
        except StartError as error:
            logger.error("SIGHUP: the tokens stay as they are: %s", error)
            return False
        assert self.tokens is not None
        logger.info("SIGHUP: tokens are read again: %d in force", self.tokens.in_force(self.now()))
        return True

    async def close(self) -> None:
        """Write what is still to be written."""
        if self._audit is not None:
            await self._audit.close()

    # Tokens

    def look(self, shown: str) -> tuple[Token | None, str]:
        """The line of a token that was shown, and "" or why it does not count.

        The line of an expired token is there all the same.
        """
        token = None if self.tokens is None else self.tokens.known(shown)
        if token is None:
            return None, UNAUTHORISED
        return token, "" if self.now() < token.expires else EXPIRED

    def refuse(self, reason: str, entry: Entry, kind: str = "") -> None:
        """Count and note a refusal; entries of one kind leave room for those of others."""
        self.refused[reason] += 1
        if self._audit is not None:
            self._audit.refused(entry, kind)

    # HTTP

    def refusal(self, route: Route, call: Call) -> HttpError | None:
        """Why a request is not served; None: it is."""
        needs = self._rights.get((route.method, route.path), UNLISTED)
        caller = self._caller(call.request)
        if self.tokens is None:
            asks = bool(self._token) and (route.private or route.method != "GET")
            is_met = not asks or caller.name == MASTER
        else:
            is_met = all(need.is_met(caller.grants, call.named) for need in needs)
        if is_met:
            return None
        kind = "publish" if _publishes(needs) else route.method
        detail = caller.reason
        self.refuse(detail, self._entry(route, call, caller, "refused", detail), kind)
        if caller.reason == FORBIDDEN:
            return HttpError(403, "FORBIDDEN")
        return HttpError(401, "UNAUTHORIZED")

    async def note(self, route: Route, call: Call, failure: str) -> None:
        """Note what was served, if it changes something; `failure` is the error's code or ""."""
        needs = self._rights.get((route.method, route.path), UNLISTED)
        if self._audit is None or route.method == "GET" or _publishes(needs):
            return
        outcome: Outcome = "failed" if failure else "done"
        entry = self._entry(route, call, self._caller(call.request), outcome, failure)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WRITTEN_SECONDS):
                await self._audit.record(entry)

    def _caller(self, request: web.BaseRequest) -> Caller:
        if self._token and is_shown(request, self._token):
            return Caller(MASTER, "token", EVERYTHING, FORBIDDEN)
        shown = tokens.shown(request.headers.getall("Authorization", ()))
        if shown is None or self.tokens is None:
            anybody = () if self.tokens is None else self.tokens.anybody
            return Caller("", "nobody", anybody, UNAUTHORISED)
        token, reason = self.look(shown)
        if token is None:
            return Caller("", "nobody", (), reason)
        return Caller(token.name, "token", () if reason else token.grants, reason or FORBIDDEN)

    def _entry(
        self, route: Route, call: Call, caller: Caller, outcome: Outcome, detail: str
    ) -> Entry:
        request = call.request
        peer = request.transport.get_extra_info("peername") if request.transport else None
        return Entry(
            caller.name,
            caller.via,
            peer_text(peer),
            f"{route.method} {route.path}",
            outcome,
            topic=call.named("topic"),
            channel=call.named("channel"),
            user_agent=request.headers.get("User-Agent", ""),
            arguments={name: call.named(name) for name in TOLD if call.named(name)},
            detail=detail,
        )


def _publishes(needs: Needs) -> bool:
    return any(need.role == Role.PUBLISH for need in needs)


def read(path: str, flag: str = "--token-file") -> Tokens | None:
    """The tokens of a file; None without one.

    Raises:
        StartError: it cannot be used; the text names the flag and the line.
    """
    try:
        return tokens.read(path) if path else None
    except TokenFileError as error:
        raise StartError(f"{flag}: {error}") from None
