"""Access checks of nsqd and nsqlookupd, and their audit entries. The rules are in `rules`.

1. Without `--token-file` and `--http-token` there are no checks. With `--http-token` alone,
   requests that change something, or read more than figures (a role beyond `read`), need it.
2. With a token file every route needs the rights in the daemon's table, also to read; a route that
   is `OPEN` needs none. `--http-token`, if given, allows everything over HTTP.
3. A wrong or expired token is refused; it never falls back to the rights of `anybody`.
4. A change is recorded when it is done or has failed, except publishes. Every refusal is counted,
   and recorded as far as `AuditLog` allows. No token gets into an entry: it has only the request
   arguments in `TOLD`.
5. A client is identified once: over HTTP before the handler runs, over TCP with AUTH or IDENTIFY.
   Its `Caller` goes with the request, so the audit entry names who did it, even if the token has
   been removed meanwhile. A TCP connection is checked again (`review`) when its token expires or
   the file is read again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from sparq.daemon.access import tokens
from sparq.daemon.access.audit import AuditLog, Outcome, entry_of
from sparq.daemon.access.rules import EVERYTHING, UNLISTED, Caller, Role, publishes
from sparq.daemon.access.tokens import Token, TokenFileError, Tokens
from sparq.daemon.address import peer_text
from sparq.program.lifecycle import StartError

if TYPE_CHECKING:
    from sparq.daemon.access.rules import Rights
    from sparq.daemon.http import Call, Route
    from sparq.daemon.options import AccessOptions

UNAUTHORISED, EXPIRED, FORBIDDEN = "unauthorised", "expired", "forbidden"
REASONS: Final = (UNAUTHORISED, EXPIRED, FORBIDDEN)
"""Reasons for a refusal: no or a wrong token, an expired one, or one without the right."""

TOLD: Final = ("node", "to", "id", "count", "to_all", "dry_run", "exit", "rate", "client")
"""Request arguments recorded in an entry, in addition to topic and channel."""

REFUSED_SECONDS: Final = 60.0
"""After the first refusals of a kind (`audit.REFUSED_MAX`), one is written per this time."""

WRITTEN_SECONDS: Final = 5.0
"""How long an answer waits until its audit entry is on disk."""

logger = logging.getLogger(__name__)


class RefusedError(Exception):
    """A request is refused; the text is one of `REASONS`."""


def build(rights: Rights, token: str, files: AccessOptions) -> Access | None:
    """Make the access checks for these options; None: no checks and no audit log.

    Args:
        rights: the daemon's table of rights.
        token: the token of `--http-token`; `@FILE`: read it from this file.
        files: the options for the token file and the audit file.

    Raises:
        StartError: a token or a file cannot be used.
    """
    token, audit = tokens.resolve(token), None
    if files.token_file or files.audit_file:
        path, seconds = files.audit_file, REFUSED_SECONDS
        audit = AuditLog(path, flag="--audit-file", refused_seconds=seconds)
    elif not token:
        return None
    try:
        return Access(rights, token=token, token_file=files.token_file, audit=audit)
    except TokenFileError as error:
        raise StartError(f"--token-file: {error}") from None


@dataclass(eq=False)
class Access:
    """The access checks of one daemon.

    Attributes:
        rights: the daemon's table of rights.
        token: the token of `--http-token`; empty: none.
        token_file: the path of the token file; empty: there is none.
        audit: the audit log; None: there is none.
        now: returns seconds since the epoch.
        tokens: the tokens of the file; None: there is no file.
        refused: number of refused requests, by reason.
    """

    rights: Rights
    _: KW_ONLY
    token: str = ""
    token_file: str = ""
    audit: AuditLog | None = None
    now: Callable[[], float] = time.time
    tokens: Tokens | None = field(default=None, init=False)
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0), init=False)

    def __post_init__(self) -> None:
        """Read the token file.

        Raises:
            TokenFileError: it cannot be used.
        """
        self.tokens = tokens.read(self.token_file) if self.token_file else None

    @property
    def needs_token(self) -> bool:
        """Whether some requests need a token."""
        return bool(self.token) or self.tokens is not None

    def reload(self) -> bool:
        """Read the token file again.

        Returns:
            Whether it was read; if not, the log says why, and the tokens stay as they were.
        """
        if self.tokens is None:
            return False
        try:
            self.tokens = found = tokens.read(self.token_file)
        except TokenFileError as error:
            logger.error("SIGHUP: keeping the old tokens: --token-file: %s", error)
            return False
        logger.info("SIGHUP: tokens were read again: %d are valid", found.in_force(self.now()))
        return True

    async def close(self) -> None:
        """Write all pending audit entries."""
        if self.audit is not None:
            await self.audit.close()

    # Who sends a request

    def identify(self, shown: str | None, remote: str, user_agent: str = "") -> Caller:
        """Return the client that shows a token; None: it shows none. `remote`: its address."""
        # A wrong token has fewer rights than none at all (rule 3).
        grants = self.tokens.anybody if self.tokens is not None and shown is None else ()
        nobody = Caller("", "nobody", grants, UNAUTHORISED, remote, user_agent)
        token = self.tokens.find(shown) if self.tokens is not None and shown else None
        return nobody if token is None else self._holder(token, nobody)

    def review(self, caller: Caller) -> Caller:
        """Return a client as its token is now: it may have expired, or its line have changed."""
        token = None if self.tokens is None else self.tokens.with_digest(caller.digest)
        if token is None:
            return replace(caller, grants=(), reason=UNAUTHORISED)
        return self._holder(token, caller)

    def _holder(self, token: Token, caller: Caller) -> Caller:
        is_valid = self.now() < token.expires
        return replace(
            caller,
            name=token.name,
            via="token",
            grants=token.grants if is_valid else (),
            reason=FORBIDDEN if is_valid else EXPIRED,
            digest=token.digest,
            expires=token.expires,
        )

    # What it may do

    def decide(self, route: Route, call: Call) -> Caller:
        """Return the sender of an HTTP request that is allowed.

        Raises:
            RefusedError: it is not allowed; that is counted and recorded.
        """
        needs = self.rights.get((route.method, route.path), UNLISTED)
        request = call.request
        peer = request.transport.get_extra_info("peername") if request.transport else None
        shown = tokens.shown(request.headers.getall("Authorization", ()))
        caller = self.identify(shown, peer_text(peer), request.headers.get("User-Agent", ""))
        if self.token and shown and tokens.is_same(shown, self.token):
            caller = replace(
                caller, name=tokens.MASTER, via="token", grants=EVERYTHING, reason=FORBIDDEN
            )
        if self.tokens is None:
            shows_figures = all(need.role in Role.READ for need in needs)
            is_open = not self.token or (route.method == "GET" and shows_figures)
            is_met = is_open or caller.name == tokens.MASTER
        else:
            is_met = all(need.is_met(caller.grants, call.named) for need in needs)
        if not is_met:
            kind = "publish" if publishes(needs) else route.method
            self.refuse(caller, f"{route.method} {route.path}", kind=kind, **_facts(call))
            raise RefusedError(caller.reason)
        return caller

    def allows(self, call: Call, role: Role, topic: str = "") -> bool:
        """Whether the sender of a request has a role beyond those that its route needs.

        For a route whose effect depends on its arguments: a seek that skips messages has the
        effect of emptying. `topic`: for this topic; "": for all.
        """
        return self.tokens is None or call.caller is None or call.caller.may(role, topic)

    # What is counted and recorded

    def refuse(
        self,
        caller: Caller,
        action: str,
        *,
        kind: str = "",
        reason: str = "",
        detail: str = "",
        **facts: Any,
    ) -> None:
        """Count and record a refusal.

        Args:
            caller: the client.
            action: the command, or method and route.
            kind: each kind has its own limit on entries; by default, the action.
            reason: one of `REASONS`; by default, the caller's.
            detail: by default, the reason.
            facts: topic, channel and arguments (see `AuditEntry`).
        """
        reason = reason or caller.reason
        self.refused[reason] += 1
        if self.audit is not None:
            entry = entry_of(caller, action, "refused", detail=detail or reason, **facts)
            self.audit.refused(entry, kind or action)

    async def note(self, route: Route, call: Call, code: str, *, is_refused: bool) -> None:
        """Record a request that was to change something.

        Args:
            route, call: the request.
            code: the error code of its answer; empty: it is done.
            is_refused: whether the handler refused it because of its effect (`allows`).
        """
        needs = self.rights.get((route.method, route.path), UNLISTED)
        caller, action = call.caller, f"{route.method} {route.path}"
        if self.audit is None or caller is None or route.method == "GET" or publishes(needs):
            return
        facts = _facts(call)
        if is_refused:
            self.refuse(caller, action, kind="", reason=FORBIDDEN, detail=code, **facts)
            return
        outcome: Outcome = "failed" if code else "done"
        entry = entry_of(caller, action, outcome, detail=code, **facts)
        # The action is done: a disk that hangs delays the answer, but does not withhold it. The
        # write itself goes on (`AuditLog.record`).
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WRITTEN_SECONDS):
                await self.audit.record(entry)


def _facts(call: Call) -> dict[str, Any]:
    arguments = {name: call.named(name) for name in TOLD if call.named(name)}
    return {
        "topic": call.named("topic"),
        "channel": call.named("channel"),
        "arguments": arguments,
    }
