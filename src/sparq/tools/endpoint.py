"""Where nsq_to_http sends messages: the URLs that it is given, and one request to one of them.

1. A body is bytes. It is the body of a POST as it is; in a GET it stands percent-encoded in the
   place of the one ``%s``, in path or query, so that a message can choose no host and add no
   parameter. One that would be a step up in the path (``..``) is not sent.
2. Certificates are verified, redirects are not followed, no cookie is kept, no proxy is asked.
3. The status decides, as soon as it is there. What else answers is read, so that the connection
   can be used again, but no more than `ANSWER_BYTES_MAX`.
4. What is said of a URL has no user, no password and no query: there secrets are kept.
"""

from __future__ import annotations

import base64
import contextlib
import io
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote, quote_plus, unquote, urlsplit

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from sparq.client.reasons import http_reason
from sparq.tools.command_line import UsageError
from sparq.tools.relay import NotSentError, NotTakenError

ANSWER_BYTES_MAX: Final = 1 << 20
CHUNK_BYTES: Final = 1 << 16
KEEP_ALIVE_SECONDS: Final = 4.0
"""Below the five seconds after which many servers close an idle connection: a request that
crosses that is lost, and nobody can say whether it was executed."""

WHOLE_BYTES_MAX: Final = 1 << 20
"""A longer body is written piece by piece, so that the loop goes on meanwhile."""

FRAMING: Final = frozenset({"content-length", "transfer-encoding", "connection", "upgrade"})
"""Headers that say where a request ends: a wrong one makes two of one."""

STEPS: Final = frozenset({".", ".."})

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_SLASHES: Final = re.compile(r"[/\\]")
_NOT_IN_URLS: Final = re.compile(r"[^\x21-\x7e]|%(?![0-9A-Fa-f]{2})")


class UnsendableError(Exception):
    """A message that must not be sent to this URL."""


class _Template(NamedTuple):
    """A URL around the place of a body, which is in the path or in the query."""

    before: str
    behind: str
    in_path: bool

    def filled(self, body: bytes) -> URL:
        """The URL with this body.

        Raises:
            UnsendableError: it would be a step up in the path.
        """
        # What a query writes for a space is a plus sign in a path.
        text = quote(body, safe="") if self.in_path else quote_plus(body)
        url = URL(f"{self.before}{text}{self.behind}", encoded=True)
        # Some servers take an encoded slash for a slash.
        if self.in_path and not STEPS.isdisjoint(_SLASHES.split(unquote(url.raw_path, "latin-1"))):
            raise UnsendableError("its body would be a step up in the URL's path")
        return url.with_user(None)


class Endpoint:
    """One URL, and how a message gets there.

    Args:
        method: POST or GET.
        text: the URL.
        headers: what goes with each request; wins over a user and a password in the URL.

    Attributes:
        shown: what is said of it.

    Raises:
        UsageError: it is no URL for this method; the text names the flag.
    """

    def __init__(self, method: str, text: str, headers: Mapping[str, str]) -> None:
        flag = f"--{method.lower()}"
        self._method = method
        url = _parsed(flag, text.replace("%s", "x", 1) if method == "GET" else text)
        self._template = _template(flag, text) if method == "GET" else None
        self._headers = CIMultiDict(headers)
        if url.user is not None:
            pair = f"{url.user}:{url.password or ''}".encode()
            self._headers.setdefault("Authorization", f"Basic {base64.b64encode(pair).decode()}")
        self._url = url.with_user(None).with_fragment(None)
        self.shown = str(self._url.with_query(None))

    async def send(self, session: aiohttp.ClientSession, body: bytes) -> None:
        """Send one message and have it answered for.

        Raises:
            NotSentError: nobody could be reached.
            NotTakenError: the status is no success, or there was no answer.
            UnsendableError: it must not be sent there.
        """
        url = self._template.filled(body) if self._template else self._url
        data = None if self._template else body if len(body) < WHOLE_BYTES_MAX else io.BytesIO(body)
        try:
            async with session.request(
                self._method, url, data=data, headers=self._headers, allow_redirects=False
            ) as response:
                await drain(response)
                if not self._is_success(response.status):
                    raise NotTakenError(f"{self.shown}: status {response.status}")
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NotSentError(f"{self.shown}: {reason(error)}") from error
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise NotTakenError(f"{self.shown}: {reason(error)}") from error

    def _is_success(self, status: int) -> bool:
        return status == 200 if self._template else 200 <= status < 300


def open_session(connect_seconds: float, request_seconds: float) -> aiohttp.ClientSession:
    """What requests are made with; the caller closes it."""
    return aiohttp.ClientSession(
        # However many there are, they are bounded by who sends.
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS),
        timeout=aiohttp.ClientTimeout(total=request_seconds, sock_connect=connect_seconds),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


async def drain(response: aiohttp.ClientResponse) -> None:
    """Read what is left of an answer; behind the bound its connection is closed."""
    size = 0
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
        async for chunk in response.content.iter_chunked(CHUNK_BYTES):
            size += len(chunk)
            if size > ANSWER_BYTES_MAX:
                response.close()
                return


def reason(error: Exception) -> str:
    """Why a request failed, without its URL."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return http_reason(error)
    if isinstance(error, aiohttp.ClientResponseError):
        return f"{error.message:.200}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__


def parse_headers(texts: Sequence[str], base: Mapping[str, str]) -> CIMultiDict[str]:
    """The headers of ``base`` and those given as ``Name: value``; for each name the last counts.

    Raises:
        UsageError: one has another form. A value may be a secret: it is not shown.
    """
    found = CIMultiDict(base)
    for number, text in enumerate(texts, 1):
        name, colon, value = text.partition(":")
        if not colon or not _NAME.fullmatch(name.strip()):
            raise UsageError(f"--header takes 'Name: value': the one in place {number} does not")
        if _CONTROLS.search(value):
            raise UsageError(f"--header {name}: its value has control characters")
        if name.strip().lower() in FRAMING:
            raise UsageError(f"--header {name}: it is set for each request, as its body needs")
        found[name.strip()] = value.strip()
    return found


def _parsed(flag: str, text: str) -> URL:
    """A URL that can be asked."""
    try:
        url = URL(text)
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host:
        # Neither a password nor a query may be shown.
        shown = text.rpartition("@")[2].partition("?")[0]
        raise UsageError(f"{flag} takes a URL that begins with http:// or https://: {shown!r}")
    return url


def _template(flag: str, text: str) -> _Template:
    """The parts of a URL with one ``%s``, which is in its path or its query."""
    if text.count("%s") != 1:
        raise UsageError(f"{flag} takes a URL with one %s, in the place of the body")
    before, behind = text.split("%s")
    if _NOT_IN_URLS.search(before) or _NOT_IN_URLS.search(behind):
        raise UsageError(f"{flag}: what is not the %s must be percent-encoded as in any URL")
    parts = urlsplit(text)
    if "%s" not in parts.path + parts.query:
        raise UsageError(f"{flag}: the %s must be in the path or in the query")
    template = _Template(before, behind, "%s" in parts.path)
    try:
        template.filled(b"x")
    except UnsendableError:
        raise UsageError(f"{flag}: a path with . or .. takes no %s") from None
    return template
