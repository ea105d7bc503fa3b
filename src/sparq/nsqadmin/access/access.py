"""Access control for HTTP requests: identifies the sender and refuses what it may not do.

The rules are in `rules` and `hosts`. This module applies them to requests, keeps sessions, writes
refusals to the audit log, and handles the browser's sign-in form.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import parse_qs

from aiohttp import web

from sparq.daemon.access.audit import AuditLog
from sparq.daemon.access.audit_file import AuditEntry, Outcome
from sparq.daemon.address import join
from sparq.daemon.http import Call, HttpError, refusal
from sparq.nsqadmin.access.hosts import JSON, Refusal
from sparq.nsqadmin.access.request import COOKIE, AccessRequest, facts_of
from sparq.nsqadmin.access.roles import Identity, Role
from sparq.nsqadmin.access.rules import (
    LIFE_SECONDS,
    UNAUTHORIZED,
    AccessRules,
    AccessRulesError,
    Decision,
    Sessions,
)
from sparq.nsqadmin.options import NsqadminOptions, base_of
from sparq.program.lifecycle import StartError

SIGN_IN_BYTES_MAX: Final = 8 << 10
WARN_SECONDS: Final = 60.0
_FACTS: Final = web.RequestKey("sparq.facts", AccessRequest)
_DECISION: Final = web.RequestKey("sparq.decision", Decision)

logger = logging.getLogger(__name__)


class AdminAccess:
    """Access control of one nsqadmin."""

    def __init__(
        self, options: NsqadminOptions, audit: AuditLog, now: Callable[[], float] = time.time
    ) -> None:
        """`now` returns seconds since the epoch. Raises StartError if an option is invalid."""
        self._audit = audit
        self._now = now
        self._sessions = Sessions()
        self._base = base_of(options)
        self._warned_at = float("-inf")
        try:
            self._rules = AccessRules(options)
        except AccessRulesError as error:
            raise StartError(str(error)) from None

    def reload(self, options: NsqadminOptions) -> bool:
        """Apply new options and read the token file again.

        Returns:
            False if an option or the token file is invalid: the error is logged, and all rights
            stay as they were.
        """
        try:
            self._rules = AccessRules(options)
        except AccessRulesError as error:
            logger.error("SIGHUP: keeping the old access rights: %s", error)
            return False
        logger.info("SIGHUP: access rights reloaded, %d tokens", len(self._rules.tokens))
        return True

    def check_origin(self, request: web.BaseRequest) -> web.Response | None:
        """Refuse requests for an unknown host or from another site (`hosts`); None: served.

        `/ping` is answered for every Host: it reveals nothing, and health checks do not know the
        configured names.
        """
        facts = self._facts(request)
        found = self._rules.hosts.refusal(facts)
        if found is None or (facts.path == self.url("/ping") and not facts.writes):
            return None
        if facts.writes:
            self._note_refusal(request, facts, found)
        return refusal(HttpError(found.status, found.text))

    def identify(self, request: web.BaseRequest) -> Identity:
        """Identify the sender of a request; with a wrong token it is anonymous."""
        return self._decide(request).identity

    def remote(self, request: web.BaseRequest) -> str:
        """Client address of a request: `host:port`, or the host that a trusted proxy reported."""
        facts, remote = self._facts(request), self._decide(request).remote
        return join(remote, facts.port) if remote == facts.peer and remote else remote

    def require(self, request: web.BaseRequest, role: Role) -> Identity:
        """Return the sender of a request if it has this role.

        Raises:
            HttpError: 401 UNAUTHORIZED if the token is wrong, or if the sender is anonymous and
                could sign in; otherwise 403 FORBIDDEN.
        """
        decision = self._decide(request)
        self._raise_refusal(request, self._rules.require(decision, role))
        return decision.identity

    def require_config(self, request: web.BaseRequest) -> Identity:
        """Return the sender of a request for /config if it may use /config.

        Raises:
            HttpError: 403 FORBIDDEN, 401 UNAUTHORIZED, or 400 INVALID_REMOTE_ADDR.
        """
        decision = self._decide(request)
        self._raise_refusal(request, self._rules.require_config(self._facts(request), decision))
        return decision.identity

    @property
    def uses_tokens(self) -> bool:
        """Whether users can sign in with a token."""
        return self._rules.uses_tokens

    async def sign_in(self, request: web.BaseRequest) -> web.Response:
        """Sign in with the form's token: answers 204 with a session cookie.

        The query parameter `to` is the page to open next. If it is not one of nsqadmin's own pages,
        the overview opens.

        Raises:
            HttpError: 401 UNAUTHORIZED if the token is unknown or has expired.
        """
        call = Call(request)
        body = await call.body(SIGN_IN_BYTES_MAX, "BODY_TOO_BIG")
        shown, now = _token_in(body, self._facts(request).content_type), self._now()
        token = self._rules.tokens.find(shown, now)
        if token is None:
            self._note_refusal(request, self._facts(request), Refusal(401, "invalid token"))
            raise HttpError(401, UNAUTHORIZED)
        name = self._sessions.start(token.digest, now)
        response = web.Response(status=204)
        self._set_cookie(request, response, name, LIFE_SECONDS)
        response.headers["HX-Redirect"] = self._own_page(call.query.get("to", ""))
        identity = Identity(token.name, token.roles, "token")
        await self._audit.record(self.entry(request, "sign_in", "done", identity))
        return response

    def sign_out(self, request: web.BaseRequest) -> web.Response:
        """End a browser's session."""
        self._sessions.end(self._facts(request).session)
        response = web.Response(status=204, headers={"HX-Redirect": self._own_page("")})
        self._set_cookie(request, response, "", 0)
        return response

    def url(self, path: str) -> str:
        """Prefix a path of nsqadmin with the base path."""
        return self._base + path

    def _own_page(self, target: str) -> str:
        # Browsers take `//host` and `/\\host` for URLs of another host.
        is_own = target.startswith(self.url("/")) and not target.startswith(("//", "/\\"))
        return target if is_own and target.isprintable() and "\\" not in target else self.url("/")

    def _set_cookie(
        self, request: web.BaseRequest, response: web.Response, value: str, seconds: float
    ) -> None:
        facts = self._facts(request)
        response.set_cookie(
            COOKIE,
            value,
            max_age=int(seconds),
            path=self._base or "/",
            httponly=True,
            samesite="Strict",
            secure=facts.scheme == "https" and facts.peer in self._rules.proxies,
        )

    def _facts(self, request: web.BaseRequest) -> AccessRequest:
        found = request.get(_FACTS)
        if found is None:
            found = request[_FACTS] = facts_of(request, self._rules.header)
        return found

    def _decide(self, request: web.BaseRequest) -> Decision:
        # Decided once per request: a handler asks several times, and a reload in between must not
        # give it two identities.
        found = request.get(_DECISION)
        if found is None:
            facts = self._facts(request)
            found = self._rules.identify(facts, self._sessions, self._now())
            request[_DECISION] = found
            if found.is_disbelieved:
                self._warn(facts)
        return found

    def _raise_refusal(self, request: web.BaseRequest, found: Refusal | None) -> None:
        """Raise HttpError for a refusal; a refused change also goes to the audit log."""
        if found is None:
            return
        facts = self._facts(request)
        if facts.writes:
            self._note_refusal(request, facts, found)
        raise HttpError(found.status, found.text)

    def _note_refusal(self, request: web.BaseRequest, facts: AccessRequest, found: Refusal) -> None:
        action = f"{facts.method} {facts.path}"
        self._audit.refused(self.entry(request, action, "refused", detail=found.text))

    def entry(
        self,
        request: web.BaseRequest,
        action: str,
        outcome: Outcome,
        who: Identity | None = None,
        **about: Any,
    ) -> AuditEntry:
        """Build an entry for the audit log.

        `who` defaults to the sender of the request; `about` has further fields of the entry.
        """
        who = who or self.identify(request)
        remote, agent = self.remote(request), self._facts(request).user_agent
        return AuditEntry(who.name, who.via, remote, action, outcome, user_agent=agent, **about)

    def _warn(self, facts: AccessRequest) -> None:
        if self._now() - self._warned_at >= WARN_SECONDS:
            self._warned_at = self._now()
            header, peer = self._rules.header, facts.peer
            logger.warning(
                "HTTP: ignored header %s from %s, which is no trusted proxy: see --trusted-proxy",
                header,
                peer,
            )


def _token_in(body: bytes, content_type: str) -> str:
    """Extract the token from a form or a JSON document; "" if there is none."""
    try:
        if content_type == JSON:
            document = json.loads(body)
            shown = document.get("token") if isinstance(document, dict) else ""
            return shown if isinstance(shown, str) else ""
        return parse_qs(body.decode("ascii"), max_num_fields=10).get("token", [""])[0].strip()
    except (ValueError, RecursionError):
        return ""
