"""AUTH: a client's permissions, from the token file and from authds over HTTP.

The token file comes first: a secret that is one of its tokens is never sent to an authd, whether
the token has expired or not. Any other secret is sent to the authds, if any are configured.

1. Each authd is asked once, in turn, starting with a random one; the first answer counts
   (docs/protocol.md, "Authorization"). A malformed answer counts as no answer.
2. Only the connection that asked waits for an authd. Its commands wait in order; other connections
   go on.
3. A secret is never logged, nor is an address with a secret in its query.
4. An answer is limited in size and is parsed in a thread, because patterns take a while to compile.
5. A token's roles are the connection's permissions: publish and consume, for topics by pattern. The
   token is looked up again when it expires and when the file has been read again. If it is no
   longer valid, the connection is closed (`E_AUTH_FAILED`); likewise if it no longer allows the
   connection's subscription (`E_UNAUTHORIZED`). Other changes of its roles apply from the next
   command on.
6. Every refusal is counted and recorded (`daemon.access`), without the token.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import ssl
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from sparq.broker import permissions
from sparq.broker.permissions import AnswerError, Permissions
from sparq.daemon.access.access import EXPIRED, FORBIDDEN
from sparq.daemon.access.rules import PERMISSIONS, Role
from sparq.daemon.options import public
from sparq.nsqd.options import http_timeouts
from sparq.nsqd.turns import instant
from sparq.options.units import SECOND
from sparq.program.lifecycle import StartError
from sparq.protocol import commands
from sparq.protocol.bounded import collected
from sparq.protocol.commands import STATE_SUBSCRIBED
from sparq.protocol.errors import RemoteError
from sparq.protocol.names import fits
from sparq.wire.layers import TLS_VERSIONS

if TYPE_CHECKING:
    from sparq.broker.session import V2Session
    from sparq.daemon.access.access import Access
    from sparq.daemon.access.rules import Caller
    from sparq.nsqd.options import NsqdOptions
    from sparq.nsqd.turns import Turns
    from sparq.protocol.instant import Instant

ANSWER_BYTES_MAX: Final = 256 << 10
"""Maximum size of an authd's answer; a thousand authorizations fit."""

ACCEPT: Final = {"Accept": "application/vnd.nsq; version=1.0"}
CHECK_SECONDS: Final = 1.0
"""How often the expiry of tokens is checked: the system clock may be changed meanwhile."""

FOREVER_SECONDS: Final = 1e9

CHECKED: Final[dict[type, tuple[str, str | None]]] = {
    commands.PublishRun: ("PUB", ""),
    commands.TopicNeeded: ("MPUB", ""),
    commands.DeferredPublish: ("DPUB", ""),
    commands.Subscribe: ("SUB", "channel"),
    commands.Attach: ("ATTACH", "channel"),
    commands.ReadEnds: ("ENDS", None),
    commands.Read: ("READ", None),
    commands.CommitRange: ("COMMIT", "channel"),
}
"""Commands whose permissions are checked: the name, and the channel that they need permission for
(`Permissions.allows`): the command's own, "" or None. (An MPUB is checked when its line has
arrived.)"""

logger = logging.getLogger(__name__)


class AuthError(Exception):
    """No authd gave a valid answer; the text says why, without the secret."""


class AuthdQuery(NamedTuple):
    """The data about a client that is sent to an authd."""

    common_name: str
    remote_ip: str
    secret: bytes
    tls: str

    def query(self) -> str:
        """Return the fields as the query of a URL; the secret is sent byte for byte."""
        return urlencode(self._asdict())

    def lists(self) -> dict[str, list[str]]:
        """Return the fields as the values of a JSON object, each in a list."""
        texts = {**self._asdict(), "secret": self.secret.decode("utf-8", "replace")}
        return {key: [value] for key, value in texts.items()}


class Authenticator:
    """Ask the configured authds about secrets that are not tokens of the token file.

    Attributes:
        access: the tokens of the token file; None: there is no file.
        admissions: one for each open connection.
    """

    def __init__(self, options: NsqdOptions, access: Access | None = None) -> None:
        """Raises StartError: the root CA for authds cannot be used."""
        self.access = access
        self.admissions: set[Admission] = set()
        self._urls = [url_of(address) for address in options.auth.http_addresses]
        self._method = options.auth.http_request_method
        self._timeouts = http_timeouts(options)
        self._context = client_context(options)
        self._http: aiohttp.ClientSession | None = None
        self._timer: asyncio.TimerHandle | None = None

    def load(self, options: NsqdOptions) -> None:
        """Read the root CA file again and trust it from now on.

        Raises:
            StartError: the file cannot be used; the old root CA stays in use.
        """
        self._context = client_context(options)

    async def ask(self, client: AuthdQuery) -> Permissions:
        """Return the client's permissions.

        Raises:
            AuthError: no authd gave a valid answer.
        """
        if not self.has_authds:
            raise AuthError("the secret is not in the token file")
        first = random.randrange(len(self._urls))  # noqa: S311 - it spreads load, no more
        reasons = []
        for url in self._urls[first:] + self._urls[:first]:
            try:
                return await self._ask_one(url, client)
            except (OSError, TimeoutError, ValueError, aiohttp.ClientError) as error:
                reasons.append(f"{url.host}:{url.port} {reason_of(error)}")
        raise AuthError("; ".join(reasons))

    @property
    def has_authds(self) -> bool:
        """Whether any authd is configured."""
        return bool(self._urls)

    def admission(self, turns: Turns, session: V2Session, go_on: Callable[[], None]) -> Admission:
        """Make a new connection's `Admission`; `go_on` is called after a held command is done."""
        made = Admission(turns, self, session, go_on)
        self.admissions.add(made)
        if self.access is not None and self._timer is None:
            self._watch(turns.loop, self.access)
        return made

    def _watch(self, loop: asyncio.AbstractEventLoop, access: Access) -> None:
        """Review, every `CHECK_SECONDS`, the connections whose token has expired."""
        now = access.now()
        for admission in tuple(self.admissions):
            if now >= admission.expires:
                admission.review()
        self._timer = loop.call_later(CHECK_SECONDS, self._watch, loop, access)

    def review(self) -> None:
        """Check all connections that showed a token against the token file as it is now."""
        for admission in tuple(self.admissions):
            admission.review()

    async def close(self) -> None:
        """Close the HTTP client, and stop checking tokens."""
        if self._timer is not None:
            self._timer.cancel()
        if self._http is not None:
            await self._http.close()

    async def _ask_one(self, url: URL, client: AuthdQuery) -> Permissions:
        status, body = await self._request(url, client)
        # As in NSQ: a 403 over plain HTTP names the port for HTTPS (see `site.tls_requirement`).
        if status == 403 and url.scheme != "https":
            status, body = await self._request(
                url.with_scheme("https").with_port(port_in(body)), client
            )
        if status != 200:
            raise AnswerError(f"got response {status}")
        return await asyncio.to_thread(permissions.read, body)

    async def _request(self, url: URL, client: AuthdQuery) -> tuple[int, bytes]:
        if self._http is None:
            connector = aiohttp.TCPConnector(force_close=True)
            self._http = aiohttp.ClientSession(connector=connector, timeout=self._timeouts)
        options: dict[str, Any] = {"headers": ACCEPT, "ssl": self._context}
        if self._method == "post":
            options["json"] = client.lists()
        else:
            # `encoded`: yarl must not normalise the query, which has the secret byte for byte.
            url = URL(f"{url}{'&' if url.raw_query_string else '?'}{client.query()}", encoded=True)
        async with self._http.request(self._method.upper(), url, **options) as answer:
            return answer.status, await collected(answer.content.iter_any(), ANSWER_BYTES_MAX)


class RoleOnTopics(NamedTuple):
    """One role of a token as an entry of `Permissions`: the topics' pattern, and a permission."""

    topics: str
    permission: str

    def allows(self, permission: str, topic: str, _channel: str | None) -> bool:
        """Whether this entry grants the permission; it is for channels of any name."""
        return permission == self.permission and fits(self.topics, topic)


class Admission:
    """One connection's AUTH: hold a command that has to wait for an authd.

    Attributes:
        expires: when the connection's token expires, in seconds since the epoch.
    """

    def __init__(
        self,
        turns: Turns,
        authenticator: Authenticator,
        session: V2Session,
        go_on: Callable[[], None],
    ) -> None:
        """`go_on` is called after the held command is done."""
        self.expires = float("inf")
        self._turns = turns
        self._authenticator = authenticator
        self._session = session
        self._go_on = go_on
        self._secret = b""
        self._caller: Caller | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a command is held, for an authd."""
        return self._task is not None

    def takes(self, command: commands.Command, now: Instant) -> bool:
        """Hold a command that has to wait; False: execute it now."""
        known = self._session.permissions
        if isinstance(command, commands.Authenticate):
            # The broker refuses a second AUTH.
            if known is not None:
                return False
            self._secret = command.secret
        elif known is None or type(command) not in CHECKED or not known.has_expired(now.mono_ns):
            self._note(known, command)
            return False
        self._task = self._turns.loop.create_task(self._authorize_and_execute(command, now))
        return True

    def close(self) -> None:
        """Clean up after the connection was closed."""
        self._authenticator.admissions.discard(self)
        if self._task is not None:
            self._task.cancel()

    def review(self) -> None:
        """Look the token up again: it may have expired, or its line in the file has changed."""
        session, access, caller = self._session, self._authenticator.access, self._caller
        if access is None or caller is None or not caller.digest or session.closing:
            return
        caller = self._caller = access.review(caller)
        if caller.reason != FORBIDDEN:
            self._refuse("E_AUTH_FAILED", "AUTH")
            self._turns.broker.fail(session, RemoteError("E_AUTH_FAILED", "AUTH failed"))
            self._turns.schedule()
            return
        session.permissions = found = self._permissions(access, caller)
        if session.state == STATE_SUBSCRIBED:
            topic, channel = self._turns.broker.names_subscribed(session)
            if not found.allows(topic, channel):
                text = f'AUTH failed for SUB on "{topic}" "{channel}"'
                self._refuse("E_UNAUTHORIZED", "SUB", topic, channel)
                self._turns.broker.fail(session, RemoteError("E_UNAUTHORIZED", text))
                self._turns.schedule()

    def _permissions(self, access: Access, caller: Caller) -> Permissions:
        """Return the permissions that a token's roles give, until it expires."""
        self.expires = caller.expires
        entries = tuple(
            RoleOnTopics(grant.topics, PERMISSIONS[role])
            for grant in caller.grants
            for role in (Role.PUBLISH, Role.CONSUME)
            if role in grant.role
        )
        # A token without an expiry has infinity here, which `int` refuses.
        left_seconds = min(caller.expires - access.now(), FOREVER_SECONDS)
        found = Permissions(caller.name, "", int(left_seconds * SECOND), entries)
        found.begin(instant().mono_ns)
        return found

    def _refuse(self, code: str, action: str, topic: str = "", channel: str = "") -> None:
        """Count and record a refusal, if there is a token file; `code`: nsqd's error code."""
        session, access = self._session, self._authenticator.access
        if access is None:
            return
        caller = self._caller or access.identify(None, session.remote_address, session.user_agent)
        reason = FORBIDDEN if code == "E_UNAUTHORIZED" else caller.reason
        names = {"topic": topic, "channel": channel}
        access.refuse(caller, action, reason=reason, detail=f"{code} {reason}", **names)

    def _note(self, known: Permissions | None, command: commands.Command) -> None:
        """Record a command that the broker is about to refuse."""
        if self._authenticator.access is None or type(command) not in CHECKED:
            return
        topic, channel = needed(command)
        if known is None or not known.allows(topic, channel):
            code = "E_AUTH_FIRST" if known is None else "E_UNAUTHORIZED"
            self._refuse(code, CHECKED[type(command)][0], topic, channel or "")

    async def _authorize_and_execute(self, command: commands.Command, now: Instant) -> None:
        """Ask the authd, and execute the command."""
        session, broker = self._session, self._turns.broker
        known = session.permissions
        if known is None or known.has_expired(now.mono_ns):
            known = await self._ask()
        if known is None:
            # A client without access is not told the reason.
            broker.fail(session, RemoteError("E_AUTH_FAILED", "AUTH failed"))
        elif isinstance(command, commands.Authenticate):
            if not known.count:
                self._refuse("E_UNAUTHORIZED", "AUTH")
            broker.authorize(session, known)
        else:
            session.permissions = known
            self._note(known, command)
            broker.execute(session, command, instant())
        self._task = None
        # After the reset: `go_on` executes the next commands, and one of them may have to wait,
        # too.
        self._go_on()

    async def _ask(self) -> Permissions | None:
        session, access = self._session, self._authenticator.access
        address, tls = session.remote_address, session.tls
        try:
            if access is not None:
                # Latin-1 decodes any bytes: a secret that is not text is merely unknown.
                text = self._secret.decode("latin-1")
                caller = self._caller = access.identify(text, address, session.user_agent)
                if caller.reason == FORBIDDEN:  # that is, unless it has the right
                    return self._permissions(access, caller)
                if caller.reason == EXPIRED:
                    raise AuthError("the token has expired")
            common_name = "" if tls is None else tls.common_name
            host = address.rpartition(":")[0].strip("[]")
            query = AuthdQuery(common_name, host, self._secret, "false" if tls is None else "true")
            found = await self._authenticator.ask(query)
        except AuthError as error:
            self._refuse("E_AUTH_FAILED", "AUTH")
            if self._authenticator.has_authds:
                logger.error("PROTOCOL(V2): [%s] AUTH failed %s", address, error)
            return None
        found.begin(instant().mono_ns)
        return found


def needed(command: Any) -> tuple[str, str | None]:
    """Return the topic and channel that a command needs permission for (`Permissions.allows`)."""
    _, channel = CHECKED[type(command)]
    return command.topic, command.channel if channel else channel


def url_of(address: str) -> URL:
    """Return an authd's URL: the address itself if it is a URL, or /auth at host:port.

    Raises:
        StartError: the address is neither.
    """
    try:
        url = URL(address if "://" in address else f"http://{address}/auth")
        if url.scheme in ("http", "https") and url.host:
            return url
    except ValueError:
        pass
    raise StartError(
        f"--auth-http-address={public(address)} is not an address: write host:port or a URL"
    )


def client_context(options: NsqdOptions) -> ssl.SSLContext:
    """Return the TLS context for authds; the CA is `tls_root_ca_file`, or the system's without one.

    Raises:
        StartError: the file cannot be used.
    """
    path = options.tls.root_ca_file
    try:
        context = ssl.create_default_context(cafile=path or None)
    except (OSError, ValueError) as error:
        # The error of `ssl` does not name the file.
        named = f"--tls-root-ca-file={path}: " if path else ""
        raise StartError(f"failed to build client TLS config - {named}{error}") from error
    with warnings.catch_warnings():
        # Python warns about TLS 1.0 and 1.1; the operator chose them with the flag.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = TLS_VERSIONS[options.tls.min_version]
    return context


def port_in(body: bytes) -> int:
    """Return the `https_port` in the body of a 403.

    Raises:
        AnswerError: there is none.
    """
    try:
        port = json.loads(body)["https_port"]
    except (ValueError, TypeError, KeyError, RecursionError):
        port = None
    if type(port) is not int or not 0 < port < 1 << 16:
        raise AnswerError("got response 403")
    return port


def reason_of(error: Exception) -> str:
    """Return why an authd failed; aiohttp's own error texts may hold the URL with the secret."""
    if isinstance(error, AnswerError):
        return str(error)
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__
