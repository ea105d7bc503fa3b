"""Which nsqds have which topics: as the options say, or as nsqlookupd knows.

1. What was found once stays: an nsqd that is down drops out of nsqlookupd, but what it holds has
   not been read. Only a topic that an nsqd says it does not have is forgotten.
2. One nsqlookupd that answers is enough, since each nsqd registers with all of them.
3. One question finds all: ``/lookup`` for one topic, ``/nodes``, which lists the topics of each
   nsqd, for several. A topic that is tombstoned at an nsqd is left out in both.
"""

import http.client
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from sparq.client.address import Address, lookupd_url
from sparq.client.errors import WrongPeerError
from sparq.client.layer_options import LayerOptions
from sparq.spark.options import Cluster
from sparq.spark.ports import wrong_lookupd
from sparq.spark.topics import Topics

INTERVAL_SECONDS: Final = 2.0
RETRY_SECONDS: Final = 0.2
TIMEOUT_SECONDS: Final = 5.0
ANSWER_BYTES_MAX: Final = 16 << 20


class TopicAt(NamedTuple):
    """A topic at an nsqd; without a topic it is the nsqd alone."""

    address: str
    topic: str


class Discovery:
    """Finds nsqds; asks the nsqlookupds again at an interval.

    Args:
        cluster: where to ask.
        path: what to ask for.
        topics: what to look for; None: all nsqds, whatever their topics.
    """

    def __init__(self, cluster: Cluster, path: str, topics: Topics | None) -> None:
        self._lookupds = cluster.lookupd_http_addresses
        self._layers = cluster.layers
        self._path = path
        self._topics = topics
        names = ("",) if topics is None else topics.names
        self._found = {
            TopicAt(address, name): None for address in cluster.nsqd_tcp_addresses for name in names
        }
        self._ask_at = float("-inf")
        self._answered = False
        self._failure: OSError | None = None

    @classmethod
    def of_topics(cls, cluster: Cluster, topics: Topics) -> "Discovery":
        """The nsqds that hold the topics."""
        if len(topics.names) == 1:
            return cls(cluster, f"/lookup?topic={quote(topics.names[0], safe='')}", topics)
        return cls(cluster, "/nodes", topics)

    @classmethod
    def of_all(cls, cluster: Cluster) -> "Discovery":
        """All nsqds."""
        return cls(cluster, "/nodes", None)

    def addresses(self) -> tuple[str, ...]:
        """The nsqds, in the order in which they were found.

        Raises:
            OSError: no nsqlookupd has answered yet.
        """
        return tuple(dict.fromkeys(found.address for found in self.found()))

    def forget(self, gone: TopicAt) -> None:
        """An nsqd says that it has no such topic; nsqlookupd may tell of it again."""
        self._found.pop(gone, None)

    def found(self) -> tuple[TopicAt, ...]:
        """All that were ever found, in the order in which they were.

        Raises:
            OSError: no nsqlookupd has answered yet.
        """
        now = time.monotonic()
        if self._lookupds and now >= self._ask_at:
            self._ask_at = now + INTERVAL_SECONDS
            failure = self._ask_all()
            self._failure = failure if failure and not self._answered else None
            self._answered = self._answered or failure is None
            if self._failure is not None:
                self._ask_at = now + RETRY_SECONDS
        if self._failure is not None:
            raise self._failure
        return tuple(self._found)

    def _ask_all(self) -> OSError | None:
        """Asks every nsqlookupd; an error when none answered."""
        failures: list[str] = []
        for address in self._lookupds:
            try:
                answer = _get(address, self._path, self._layers)
                self._found |= dict.fromkeys(_told(answer, self._topics))
            except OSError as error:
                failures.append(f"nsqlookupd {address}: {error or type(error).__name__}")
        if len(failures) < len(self._lookupds):
            return None
        return ConnectionError("; ".join(failures))


def _get(address: str, path: str, layers: LayerOptions) -> Mapping[str, Any]:
    url = urlsplit(lookupd_url(address))
    connection = _connection(url.scheme, url.hostname or "", url.port, layers)
    headers = {"Accept": "application/vnd.nsq; version=1.0"}
    sent = {name: value.encode() for name, value in (headers | layers.lookupd_headers()).items()}
    try:
        if url.path not in ("", "/"):
            path = f"{url.path}?{path.partition('?')[2]}"
        connection.request("GET", path, headers=sent)
        response = connection.getresponse()
        body = response.read(ANSWER_BYTES_MAX)
    except http.client.HTTPException as error:
        raise wrong_lookupd(address) or ConnectionError(error or type(error).__name__) from None
    finally:
        connection.close()
    if response.status == 404 and b"TOPIC_NOT_FOUND" in body:
        return {}  # nothing was published to it yet
    if response.status != 200:
        status = f"HTTP status {response.status}: {body[:200]!r}"
        raise wrong_lookupd(address) or ConnectionError(status)
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        said = f"{address} is no nsqlookupd: it answered {body[:80]!r}"
        raise wrong_lookupd(address) or WrongPeerError(said)
    return answer


def _connection(
    scheme: str, host: str, port: int | None, layers: LayerOptions
) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
    context = layers.tls_context()
    return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=context)


def _told(answer: Mapping[str, Any], topics: Topics | None) -> Iterator[TopicAt]:
    """What nsqlookupd says."""
    for producer in answer.get("producers") or answer.get("data", {}).get("producers") or ():
        address = str(Address(producer["broadcast_address"], int(producer["tcp_port"])))
        for name in _names(producer, topics):
            yield TopicAt(address, name)


def _names(producer: Mapping[str, Any], topics: Topics | None) -> Iterable[str]:
    """Those of a producer's topics that are looked for."""
    if topics is None:
        return ("",)
    if len(topics.names) == 1:
        return topics.names  # the question was for this one
    listed = producer.get("topics") or ()
    hidden = producer.get("tombstones") or [False] * len(listed)
    return [
        name
        for name, is_hidden in zip(listed, hidden, strict=False)
        if not is_hidden and topics.has(name)
    ]
