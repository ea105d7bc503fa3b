"""The program `nsq_to_http`: sends each message of a channel as an HTTP request.

It has the flags of NSQ's `nsq_to_http`, and differs from it where that loses messages:

1. A message is finished when a POST was answered with 2xx, or a GET with 200. Any other outcome is
   a failure: the message is requeued, and the consumer backs off. No message is dropped for having
   failed often, unless `--consumer-opt=max_attempts,N` asks for it.
2. While a request is under way, and while a message waits for its turn, the message is kept alive
   with TOUCH.
3. A host that cannot be reached does not cause a requeue: the other hosts are tried, and then all
   of them again for two seconds, so that a host that restarts has time to come back.
4. In a POST, the message is the request body, unchanged. In a GET, the message replaces the one
   `%s` in path or query, percent-encoded; a message that would go up in the path (`..`) is not
   sent, but requeued without backing off.
5. Certificates are verified, with the system's authorities or those in the file that the
   environment variable `SSL_CERT_FILE` names. Redirects are not followed, and no proxy is used.
6. A user and a password in a URL are sent as basic authentication. They and the query are never
   logged.
7. `--mode=round-robin` uses the hosts in turn. `hostpool` does so, too, but skips a host that
   failed for 30 s, and for twice as long after each further failure, up to 15 min. `epsilon-greedy`
   prefers hosts that answer quickly.
8. If an nsqd named with `--nsqd-tcp-address` cannot be reached at the start, the tool exits
   with status 1, after `--wait-for-nsqd`.

SIGINT, SIGTERM and SIGHUP: requests under way are completed, then exit status 0.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import logging
import random
import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote, quote_plus, unquote, urlsplit

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from sparq.client.lookup import http_reason
from sparq.client.message import Message
from sparq.client.subscription import Batch
from sparq.options.units import SECOND
from sparq.program.logging import LEVELS, set_up
from sparq.protocol import NSQ_VERSION, SPARQ_VERSION
from sparq.tools import common
from sparq.tools.commands import CONTENT_TYPE, UsageError
from sparq.tools.commands import NsqToHttpOptions as Options
from sparq.tools.relay import HostPool, NotAcceptedError, NotSentError, Relay

PROGRAM: Final = "nsq_to_http"

logger = logging.getLogger(__name__)

ANSWER_BYTES_MAX: Final = 1 << 20
CHUNK_BYTES: Final = 1 << 16
KEEP_ALIVE_SECONDS: Final = 4.0
"""Below the five seconds after which many servers close an idle connection: a request sent at that
moment is lost, and the client cannot tell whether it was executed."""

WHOLE_BYTES_MAX: Final = 1 << 20
"""A longer body is written in pieces, so that the event loop is not blocked."""

FRAMING: Final = frozenset({"content-length", "transfer-encoding", "connection", "upgrade"})
"""Headers that determine where a request ends: a wrong one makes two requests of one."""

STEPS: Final = frozenset({".", ".."})

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_SLASHES: Final = re.compile(r"[/\\]")
_NOT_IN_URLS: Final = re.compile(r"[^\x21-\x7e]|%(?![0-9A-Fa-f]{2})")


class UnsendableError(Exception):
    """A message that must not be sent to this URL."""


class HttpTarget:
    """One URL, and how to send a message to it.

    The outcome depends on the status alone. The rest of the response is read so that the connection
    can be reused, but no more than `ANSWER_BYTES_MAX`. No cookies are kept.

    Args:
        method: POST or GET.
        text: the URL.
        headers: headers of each request; they override a user and a password in the URL.

    Attributes:
        shown: the URL as it appears in logs.

    Raises:
        UsageError: it is not a URL for this method; the text names the flag.
    """

    def __init__(self, method: str, text: str, headers: Mapping[str, str]) -> None:
        flag = f"--{method.lower()}"
        self._method = method
        try:
            url = URL(text.replace("%s", "x", 1) if method == "GET" else text)
        except ValueError:
            url = URL()
        if url.scheme not in ("http", "https") or not url.host:
            # Show neither the password nor the query.
            shown = text.rpartition("@")[2].partition("?")[0]
            raise UsageError(f"{flag} takes a URL that begins with http:// or https://: {shown!r}")
        self._around: tuple[str, ...] = ()
        if method == "GET":
            self._around = around = tuple(text.split("%s"))
            if len(around) != 2:
                raise UsageError(f"{flag} takes a URL with one %s in place of the body")
            if any(map(_NOT_IN_URLS.search, around)):
                raise UsageError(f"{flag}: percent-encode everything except the %s")
            parts = urlsplit(text)
            if "%s" not in parts.path + parts.query:
                raise UsageError(f"{flag}: the %s must be in the path or in the query")
            self._in_path = "%s" in parts.path
            try:
                self._filled(b"x")
            except UnsendableError:
                raise UsageError(f"{flag}: a path with . or .. cannot contain %s") from None
        self._headers = CIMultiDict(headers)
        if url.user is not None:
            # Not left to aiohttp: it refuses a URL with a user if --header sets Authorization, and
            # it encodes the user as Latin-1.
            pair = f"{url.user}:{url.password or ''}".encode()
            self._headers.setdefault("Authorization", f"Basic {base64.b64encode(pair).decode()}")
        self._url = url.with_user(None).with_fragment(None)
        self.shown = str(self._url.with_query(None))

    def _filled(self, body: bytes) -> URL:
        """Return the URL of a GET of this body.

        Raises:
            UnsendableError: it would go up in the path.
        """
        # A query encodes a space as "+", which in a path is a literal plus sign.
        text = quote(body, safe="") if self._in_path else quote_plus(body)
        url = URL(text.join(self._around), encoded=True)
        # Some servers treat an encoded slash as a slash.
        if self._in_path and not STEPS.isdisjoint(_SLASHES.split(unquote(url.raw_path, "latin-1"))):
            raise UnsendableError("its body would act as . or .. in the URL's path")
        return url.with_user(None)

    async def send(self, session: aiohttp.ClientSession, body: bytes) -> None:
        """Send one message and wait for the response.

        Raises:
            NotSentError: the host could not be reached.
            NotAcceptedError: the status is not a success, or there was no response.
            UnsendableError: the message must not be sent there.
        """
        is_get = bool(self._around)
        url = self._filled(body) if is_get else self._url
        data = None if is_get else body if len(body) < WHOLE_BYTES_MAX else io.BytesIO(body)
        try:
            async with session.request(
                self._method, url, data=data, headers=self._headers, allow_redirects=False
            ) as response:
                size = 0
                with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                    async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                        size += len(chunk)
                        if size > ANSWER_BYTES_MAX:
                            response.close()
                            break
                if response.status not in (range(200, 201) if is_get else range(200, 300)):
                    raise NotAcceptedError(f"{self.shown}: status {response.status}")
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            why = http_reason(error)
            if isinstance(error, aiohttp.ClientResponseError):
                why = f"{error.message:.200}"
            unsent = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
            kind = NotSentError if isinstance(error, unsent) else NotAcceptedError
            raise kind(f"{self.shown}: {why}") from error


def open_session(connect_seconds: float, request_seconds: float) -> aiohttp.ClientSession:
    """Return the HTTP client session; the caller closes it."""
    return aiohttp.ClientSession(
        # No limit here: the sender bounds the number of connections.
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS),
        timeout=aiohttp.ClientTimeout(total=request_seconds, sock_connect=connect_seconds),
        cookie_jar=aiohttp.DummyCookieJar(),
        # The body is not used, and a small compressed one could expand to gigabytes.
        auto_decompress=False,
    )


def parse_headers(texts: Sequence[str], base: Mapping[str, str]) -> CIMultiDict[str]:
    """Return ``base`` with the headers given as ``Name: value``; for each name the last one wins.

    Raises:
        UsageError: one has another form. The value is not shown, because it may be a secret.
    """
    found = CIMultiDict(base)
    for number, text in enumerate(texts, 1):
        name, colon, value = text.partition(":")
        if not colon or not _NAME.fullmatch(name.strip()):
            raise UsageError(f"--header takes 'Name: value': header {number} is not in this form")
        if _CONTROLS.search(value):
            raise UsageError(f"--header {name}: its value contains control characters")
        if name.strip().lower() in FRAMING:
            raise UsageError(
                f"--header {name}: it is set automatically for each request: remove it"
            )
        found[name.strip()] = value.strip()
    return found


def targets_of(options: Options) -> dict[str, HttpTarget]:
    """Return the targets by the name that logs use.

    Raises:
        UsageError: a URL or a header is not valid, or flags do not go together.
    """
    if bool(options.get) == bool(options.post):
        both = "use --get or --post not both"
        raise UsageError(both if options.get else "--get or --post required")
    if options.get and options.content_type != CONTENT_TYPE:
        raise UsageError("--content-type is valid with --post only")
    defaults = {
        "User-Agent": f"{PROGRAM} v{NSQ_VERSION} sparq/{SPARQ_VERSION}",
        "Accept-Encoding": "identity",
        **({"Content-Type": options.content_type} if options.post else {}),
    }
    headers = parse_headers(options.header, defaults)
    found: dict[str, HttpTarget] = {}
    for text in dict.fromkeys(options.post or options.get):
        target = HttpTarget("POST" if options.post else "GET", text, headers)
        # Several URLs may differ only in parts that are not shown.
        same = sum(name.partition(" ")[0] == target.shown for name in found)
        found[f"{target.shown} ({same + 1})" if same else target.shown] = target
    return found


async def serve(options: Options, stop: asyncio.Event) -> int:
    """Run the tool until the event is set; return its exit status.

    Raises:
        UsageError: an option is not valid; the text names its flag.
    """
    if not options.topic or not options.channel:
        raise UsageError("--topic and --channel are required")
    targets = targets_of(options)
    set_up(f"[{PROGRAM}] ", LEVELS["info"])
    rng = random.Random()  # noqa: S311 - chooses messages and hosts, guards nothing
    seconds = (options.http_client_connect_timeout_ns, options.http_client_request_timeout_ns)
    async with open_session(*(each / SECOND for each in seconds)) as session:
        hosts = HostPool(options.mode, targets, rng)
        relay = Relay(hosts, options.status_every, options.n)

        async def handle(message: Message) -> None:
            if options.sample < 1 and rng.random() >= options.sample:
                return

            async def send(name: str) -> None:
                await targets[name].send(session, message.body)

            try:
                await relay.forward(Batch([message]), send)
            except UnsendableError as error:
                # The message itself is at fault: do not back off, the others need not wait.
                logger.error("message %s is not sent: %s", message.id, error)
                await message.requeue(backoff=False)

        topics = (options.topic,)
        consumers = common.consumers_of(PROGRAM, options, topics, options.channel, handler=handle)
        await relay.serve(consumers, stop, options.wait_for_nsqd_ns)
    return 0
