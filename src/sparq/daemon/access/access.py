"""Access checks of nsqd and nsqlookupd, and their audit entries.

1. Without `--token-file` and `--http-token` there are no checks. With `--http-token` alone,
   requests that change something, and private routes, need that token.
2. With a token file every route needs the rights in the daemon's table, also to read; a route that
   is `OPEN` needs none. `--http-token`, if given, allows everything.
3. A wrong or expired token is refused; it never falls back to the rights of `anybody`.
4. A change is recorded when it is done or has failed, except publishes. Every refusal is counted,
   and recorded as far as `AuditLog` allows. No token gets into an entry: it has only the request
   arguments in `TOLD`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from sparq.daemon.access import tokens
from sparq.daemon.access.audit import AuditLog
from sparq.daemon.access.audit_file import AuditEntry, Outcome
from sparq.daemon.access.rights import UNLISTED, Grant, Need
from sparq.daemon.access.roles import WORDS, Role, Via
from sparq.daemon.access.tokens import Token, TokenFileError, Tokens
from sparq.daemon.address import peer_text
from sparq.daemon.call import HttpError
from sparq.program.lifecycle import StartError

if TYPE_CHECKING:
    from aiohttp import web

    from sparq.daemon.access.rights import Needs, Rights
    from sparq.daemon.call import Call
    from sparq.daemon.options import AccessOptions
    from sparq.daemon.routes import Route

UNAUTHORISED, EXPIRED, FORBIDDEN = "unauthorised", "expired", "forbidden"
REASONS: Final = (UNAUTHORISED, EXPIRED, FORBIDDEN)
"""Reasons for a refusal: no or a wrong token, an expired one, or one without the right."""

HTTP_FORBIDDEN: Final = 403


EVERYTHING: Final = tuple(Grant(role) for role in WORDS.values())
TOLD: Final = ("node", "to", "id", "count", "to_all", "dry_run", "exit", "rate", "client")
"""Request arguments recorded in an entry, in addition to topic and channel."""

REFUSED_SECONDS: Final = 60.0
"""After the first refusals of a kind (`audit.REFUSED_MAX`), one is written per this time."""

WRITTEN_SECONDS: Final = 5.0
"""How long an answer waits until its audit entry is on disk."""

logger = logging.getLogger(__name__)


class Caller(NamedTuple):
    """The sender of a request.

    Attributes:
        name: the token's name; empty without a valid token.
        via: how the name is known.
        grants: its rights.
        reason: the reason for a refusal, if the grants are not enough.
    """

    name: str
    via: Via
    grants: tuple[Grant, ...]
    reason: str


def build(rights: Rights, token: str, files: AccessOptions) -> Access | None:
    """Make the access checks for these options; None: no checks and no audit log.

    Args:
        rights: the daemon's table of rights.
        token: the token of `--http-token`, resolved.
        files: the options for the token file and the audit file.

    Raises:
        StartError: a file cannot be used.
    """
    audit = None
    if files.token_file or files.audit_file:
        path, seconds = files.audit_file, REFUSED_SECONDS
        audit = AuditLog(path, flag="--audit-file", refused_seconds=seconds)
    elif not token:
        return None
    return Access(rights, token=token, token_file=files.token_file, audit=audit)


class Access:
    """The access checks of one daemon.

    Attributes:
        tokens: the tokens of the file; None: there is no file.
        refused: number of refused requests, by reason.
    """

    def __init__(
        self,
        rights: Rights,
        *,
        token: str = "",
        token_file: str = "",
        audit: AuditLog | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`token`: the token of `--http-token`. `now`: returns seconds since the epoch.

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
    def needs_token(self) -> bool:
        """Whether some requests need a token."""
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
            logger.error("SIGHUP: keeping the old tokens: %s", error)
            return False
        assert self.tokens is not None
        logger.info(
            "SIGHUP: tokens were read again: %d are valid", self.tokens.in_force(self.now())
        )
        return True

    async def close(self) -> None:
        """Write all pending audit entries."""
        if self._audit is not None:
            await self._audit.close()

    # Tokens

    def find_token(self, shown: str) -> tuple[Token | None, str]:
        """Return a shown token's line of the file, and "" or why the token is not valid.

        For an expired token its line is returned, too.
        """
        token = None if self.tokens is None else self.tokens.known(shown)
        if token is None:
            return None, UNAUTHORISED
        return token, "" if self.now() < token.expires else EXPIRED

    def refuse(self, reason: str, entry: AuditEntry, kind: str = "") -> None:
        """Count and record a refusal; each `kind` has its own limit on entries."""
        self.refused[reason] += 1
        if self._audit is not None:
            self._audit.refused(entry, kind)

    def refuse_command(
        self,
        reason: str,
        command: str,
        name: str,
        remote: str,
        *,
        topic: str = "",
        channel: str = "",
        user_agent: str = "",
        detail: str = "",
    ) -> None:
        """Count and record the refusal of a command over TCP.

        Args:
            reason: one of `REASONS`.
            command: the command; each has its own limit on entries.
            name: the name of the token that was shown; empty: none, or a wrong one.
            remote: the client's address.
            topic, channel, user_agent, detail: see `AuditEntry`; without `detail`, the reason.
        """
        entry = AuditEntry(
            name,
            "token" if name else "nobody",
            remote,
            command,
            "refused",
            topic=topic,
            channel=channel,
            user_agent=user_agent,
            detail=detail or reason,
        )
        self.refuse(reason, entry, command)

    # HTTP

    def decide(self, route: Route, call: Call) -> tuple[Caller, HttpError | None]:
        """Return the sender of a request, and the error if it is refused.

        The sender is determined only here, before the handler runs: the token may be removed
        meanwhile, and the audit entry must still name who did it.
        """
        needs = self._rights.get((route.method, route.path), UNLISTED)
        caller = self._caller(call.request)
        if self.tokens is None:
            asks = bool(self._token) and (route.private or route.method != "GET")
            is_met = not asks or caller.name == tokens.MASTER
        else:
            is_met = all(need.is_met(caller.grants, call.named) for need in needs)
        return caller, None if is_met else self._refusal(route, call, caller, needs)

    def allows(self, call: Call, role: Role, topic: str = "") -> bool:
        """Whether the sender of a request has a role beyond those that its route needs.

        For a route whose effect depends on its arguments: a seek that skips messages has the
        effect of emptying. `topic`: for this topic; "": for all.
        """
        if self.tokens is None or call.caller is None:
            return True
        return Need(role, "topic").is_met(call.caller.grants, lambda _: topic)

    def _refusal(self, route: Route, call: Call, caller: Caller, needs: Needs) -> HttpError:
        kind = "publish" if _publishes(needs) else route.method
        detail = caller.reason
        self.refuse(detail, self._entry(route, call, caller, "refused", detail), kind)
        if caller.reason == FORBIDDEN:
            return HttpError(HTTP_FORBIDDEN, "FORBIDDEN")
        return HttpError(401, "UNAUTHORIZED")

    async def note(self, route: Route, call: Call, error: HttpError | None) -> None:
        """Record a request that was to change something; `error`: its answer if it failed."""
        needs = self._rights.get((route.method, route.path), UNLISTED)
        caller = call.caller
        if self._audit is None or caller is None or route.method == "GET" or _publishes(needs):
            return
        if error is not None and error.status == HTTP_FORBIDDEN:
            # Refused by the handler, because of its effect (`allows`).
            self.refuse(FORBIDDEN, self._entry(route, call, caller, "refused", error.code))
            return
        outcome: Outcome = "failed" if error else "done"
        entry = self._entry(route, call, caller, outcome, error.code if error else "")
        # The action is done: a disk that hangs delays the answer, but does not withhold it. The
        # write itself goes on (`AuditLog.record`).
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WRITTEN_SECONDS):
                await self._audit.record(entry)

    def _caller(self, request: web.BaseRequest) -> Caller:
        shown = tokens.shown(request.headers.getall("Authorization", ()))
        if self._token and shown and tokens.is_same(shown, self._token):
            return Caller(tokens.MASTER, "token", EVERYTHING, FORBIDDEN)
        if shown is None or self.tokens is None:
            anybody = () if self.tokens is None else self.tokens.anybody
            return Caller("", "nobody", anybody, UNAUTHORISED)
        token, reason = self.find_token(shown)
        if token is None:  # wrong, so it has fewer rights than no token at all (rule 3)
            return Caller("", "nobody", (), reason)
        return Caller(token.name, "token", () if reason else token.grants, reason or FORBIDDEN)

    def _entry(
        self, route: Route, call: Call, caller: Caller, outcome: Outcome, detail: str
    ) -> AuditEntry:
        request = call.request
        peer = request.transport.get_extra_info("peername") if request.transport else None
        return AuditEntry(
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
    return bool(needs) and all(need.role == Role.PUBLISH for need in needs)


def read(path: str, flag: str = "--token-file") -> Tokens | None:
    """Read the tokens of a file; None without a path.

    Raises:
        StartError: the file cannot be used; the text names the flag and the line.
    """
    try:
        return tokens.read(path) if path else None
    except TokenFileError as error:
        raise StartError(f"{flag}: {error}") from None
