"""One question to one nsqlookupd, and what may come of it.

1. An answer is bounded: in bytes, which are taken as they come and never inflated, and in the
   nsqds that it lists. Redirects are not followed and cookies not kept.
2. Both forms of the answer are read: bare JSON, and that of nsqlookupd before 1.0, which wraps it
   in ``data``.
3. What cannot be an address is left out and told once an answer: a broken or hostile nsqlookupd
   costs its own answer only, and writes no log lines of its own.
4. An ``https`` nsqlookupd is verified as nsqds are; the secret, if there is one, goes with each
   question (``lookupd_authorization``). Neither it nor a URL's query is shown anywhere.
"""

from __future__ import annotations

import json
import ssl
from typing import Any, Final

import aiohttp
from yarl import URL

from sparq.client.address import Address, lookupd_url, parse_address
from sparq.client.config import Config
from sparq.client.log_fields import FieldLogger

log = FieldLogger("sparq.client.discovery")

ANSWER_SIZE_MAX: Final = 4 * 1024 * 1024
"""10,000 producers with all their fields are below 3 MiB; read, the worst take 40 times as much."""

PRODUCERS_MAX: Final = 10_000
HOST_LENGTH_MAX: Final = 253
"""Of a name, by RFC 1035; addresses are shorter."""

CHUNK_SIZE: Final = 65_536
FOUND, NOT_FOUND = 200, 404
UNKNOWN_TOPIC: Final = b"TOPIC_NOT_FOUND"
"""In the answer of an nsqlookupd that does not know the topic; an nsqd's has ``NOT_FOUND`` only."""

FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError, ValueError)
"""What ``ask`` raises when there is no answer, or none that can be used."""


def question(lookupd: str, topic: str | None) -> URL:
    """What to ask an nsqlookupd: the producers of a topic, or without one all nsqds.

    The address is ``host:port`` or a URL, whose path and query are kept.

    Raises:
        ValueError: it is neither.
    """
    url = URL(lookupd_url(lookupd))
    if url.path in ("", "/"):
        url = url.with_path("/nodes" if topic is None else "/lookup").with_query(url.query)
    return url if topic is None else url.update_query(topic=topic)


def shown(url: URL) -> str:
    """A question as it may be told: without what may be secret in it."""
    return str(url.with_user(None).with_query(None))


def session(config: Config, timeout: aiohttp.ClientTimeout | None = None) -> aiohttp.ClientSession:
    """Where questions are asked from; to be closed."""
    return aiohttp.ClientSession(
        timeout=timeout or aiohttp.ClientTimeout(total=config.lookupd_poll_timeout),
        headers={"Accept-Encoding": "identity", **config.lookupd_headers()},
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


async def ask(asking: aiohttp.ClientSession, url: URL, config: Config) -> set[str]:
    """The nsqds that an nsqlookupd lists; none when it does not know the topic yet.

    Raises:
        aiohttp.ClientError, TimeoutError, OSError: it cannot be reached or does not answer.
        ValueError: it answers what cannot be used, or a file of the TLS options cannot.
    """
    document = await document_at(asking, url, config)
    return set() if document is None else addresses_in(document)


async def document_at(asking: aiohttp.ClientSession, url: URL, config: Config) -> Any:
    """What an nsqlookupd answers, whatever that is; None when it does not know the topic (404).

    Raises:
        aiohttp.ClientError, TimeoutError, OSError, ValueError: as ``ask``.
    """
    context: ssl.SSLContext | bool = config.tls_context() if url.scheme == "https" else True
    async with asking.get(url, allow_redirects=False, ssl=context) as response:
        if response.status not in (FOUND, NOT_FOUND):
            raise ValueError(f"status {response.status}")
        body = bytearray()
        async for chunk in response.content.iter_chunked(CHUNK_SIZE):
            body += chunk
            if len(body) > ANSWER_SIZE_MAX:
                raise ValueError(f"an answer of more than {ANSWER_SIZE_MAX} bytes")
    if response.status == FOUND:
        return _parsed(body)
    if UNKNOWN_TOPIC not in body:
        raise ValueError("status 404, but not for the topic: is this an nsqlookupd's HTTP address?")
    return None


def _parsed(body: bytes | bytearray) -> Any:
    try:
        document = json.loads(body)
    except RecursionError:
        raise ValueError("an answer that is nested too deep") from None
    except ValueError as error:
        raise ValueError(f"an answer that is no JSON, so this is no nsqlookupd: {error}") from None
    return unwrapped(document)


def unwrapped(document: Any) -> Any:
    """The answer itself, of either form (rule 2)."""
    wrapped = isinstance(document, dict) and isinstance(document.get("data"), dict)
    return document["data"] if wrapped else document


def addresses_in(answer: Any) -> set[str]:
    """The nsqds that an answer of ``/lookup`` or ``/nodes`` lists, as ``host:port``.

    Raises:
        ValueError: the answer has another form, or lists more than ``PRODUCERS_MAX``.
    """
    answer = unwrapped(answer)
    producers = answer.get("producers") if isinstance(answer, dict) else None
    if not isinstance(producers, list):
        raise ValueError("an answer without a list of producers")
    if len(producers) > PRODUCERS_MAX:
        raise ValueError(f"an answer with more than {PRODUCERS_MAX} producers")
    found, unusable = set(), []
    for producer in producers:
        try:
            found.add(_address_of(producer))
        except (KeyError, TypeError, ValueError, OverflowError):
            unusable.append(producer)
    if unusable:
        log.warning(
            "left out %d producers without a usable address: %.200r", len(unusable), unusable[0]
        )
    return found


def _address_of(producer: Any) -> str:
    host, port = str(producer["broadcast_address"]), int(producer["tcp_port"])
    if len(host) > HOST_LENGTH_MAX or not host.isprintable() or " " in host:
        raise ValueError("not a host's name or address")
    return str(parse_address(str(Address(host, port))))
