"""Finds the nsqds of each topic: from the options, or by asking nsqlookupd.

1. An nsqd that was found once is kept: when it is down it disappears from nsqlookupd, but its
   unread messages still have to be read. A topic is forgotten only when its nsqd reports that it
   does not have it.
2. One nsqlookupd that answers is enough, since each nsqd registers with all of them.
3. One request finds everything: ``/lookup`` for one topic; for several topics ``/nodes``, which
   lists the topics of each nsqd. Both leave out a topic that is tombstoned at an nsqd.
"""

import contextlib
import http.client
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from sparq.client.blocking.connection import BlockingConnection
from sparq.client.errors import WrongPeerError
from sparq.client.layer_options import LayerOptions, check_lookupd_status
from sparq.client.range_reader import RangeReader
from sparq.protocol import lookup
from sparq.protocol.bounded import check_size
from sparq.protocol.errors import RemoteError
from sparq.spark.options import ClusterOptions
from sparq.spark.topics import TopicSelection

INTERVAL_SECONDS: Final = 2.0
RETRY_SECONDS: Final = 0.2
TIMEOUT_SECONDS: Final = 5.0

CHECK_SECONDS: Final = 3.0
"""Time limit of `check_peers`: an nsqd that is down at the moment is not a mistake."""

CHECKER: Final = "sparq spark check"


class TopicAt(NamedTuple):
    """A topic at an nsqd; with an empty topic the nsqd itself."""

    address: str
    topic: str


class NsqdDiscovery:
    """Finds nsqds; asks the nsqlookupds again every `INTERVAL_SECONDS`.

    Args:
        cluster: addresses of nsqds or nsqlookupds.
        topics: the topics to look for; None: find all nsqds, whatever their topics.
    """

    def __init__(self, cluster: ClusterOptions, topics: TopicSelection | None) -> None:
        self._lookupds = cluster.lookupd_http_addresses
        self._layers = cluster.layers
        self._topics = topics
        names = ("",) if topics is None else topics.names
        # A dictionary serves as a set that keeps the order.
        self._found = {
            TopicAt(address, name): None for address in cluster.nsqd_tcp_addresses for name in names
        }
        self._ask_at = float("-inf")
        self._answered = False
        self._failure: OSError | None = None

    def addresses(self) -> tuple[str, ...]:
        """The nsqds' addresses, in the order in which they were found.

        Raises:
            OSError: no nsqlookupd has answered yet.
        """
        return tuple(dict.fromkeys(found.address for found in self.found()))

    def forget(self, gone: TopicAt) -> None:
        """Forget a topic that an nsqd does not have; nsqlookupd may list it again later."""
        self._found.pop(gone, None)

    def found(self) -> tuple[TopicAt, ...]:
        """All nsqds and topics found so far, in the order in which they were found.

        Raises:
            OSError: no nsqlookupd has answered yet.
        """
        now = time.monotonic()
        if self._lookupds and now >= self._ask_at:
            self._ask_at = now + INTERVAL_SECONDS
            failure = self._ask_all()
            # After the first answer a failure only means that no new nsqds are found: those known
            # so far can still be read.
            self._failure = failure if failure and not self._answered else None
            self._answered = self._answered or failure is None
            if self._failure is not None:
                self._ask_at = now + RETRY_SECONDS
        if self._failure is not None:
            raise self._failure
        return tuple(self._found)

    def _ask_all(self) -> OSError | None:
        """Ask every nsqlookupd; returns an error if none answered."""
        failures: list[str] = []
        for address in self._lookupds:
            try:
                self._found |= dict.fromkeys(self._listed(self._ask(address)))
            except OSError as error:
                failures.append(f"nsqlookupd {address}: {error or type(error).__name__}")
            except (http.client.BadStatusLine, lookup.NotLookupdError) as error:
                # A mistake in the options, which is reported at once.
                is_http = isinstance(error, lookup.NotLookupdError)
                reason = error if is_http else "it does not speak HTTP (port 4161 by default)"
                raise WrongPeerError(
                    f"option lookupd_http_addresses: {address} is not an nsqlookupd's HTTP port: "
                    f"{reason}"
                ) from None
            except (http.client.HTTPException, ValueError) as error:
                failures.append(f"nsqlookupd {address}: {error or type(error).__name__}")
        if len(failures) < len(self._lookupds):
            return None
        return ConnectionError("; ".join(failures))

    def _ask(self, address: str) -> Any:
        """Ask one nsqlookupd; returns its parsed answer.

        Raises:
            OSError, HTTPException, ValueError: as the connection and `lookup.answer` do.
        """
        if (one := self._one_topic) is None:
            url = urlsplit(lookup.question(address, "nodes"))
        else:
            url = urlsplit(lookup.question(address, "lookup", topic=one))
        connection = _connection(url.scheme, url.hostname or "", url.port, self._layers)
        headers = {**lookup.HEADERS, **self._layers.lookupd_headers(url.geturl())}
        # As bytes: http.client encodes text as Latin-1, and raises for a secret with other
        # characters.
        sent = {name: value.encode() for name, value in headers.items()}
        try:
            target = url._replace(scheme="", netloc="").geturl()
            connection.request("GET", target, headers=sent)
            response = connection.getresponse()
            body = response.read(lookup.ANSWER_BYTES_MAX + 1)
        finally:
            connection.close()
        check_lookupd_status(self._layers, url.geturl(), response.status)
        check_size(len(body), lookup.ANSWER_BYTES_MAX)
        return lookup.answer(response.status, body)

    @property
    def _one_topic(self) -> str | None:
        """The topic's name, if exactly one topic is looked for by name; else None."""
        names = () if self._topics is None else self._topics.names
        return names[0] if len(names) == 1 else None

    def _listed(self, answer: Any) -> Iterator[TopicAt]:
        """The wanted nsqds and topics among those that an nsqlookupd lists."""
        for producer in lookup.producers(answer).found:
            if self._topics is None:
                yield TopicAt(producer.address, "")
            elif (one := self._one_topic) is not None:
                yield TopicAt(producer.address, one)
            else:
                for name, is_hidden in producer.topics:
                    if not is_hidden and self._topics.has(name):
                        yield TopicAt(producer.address, name)


def check_peers(cluster: ClusterOptions, topics: TopicSelection | None) -> None:
    """Find mistakes in the addresses before a query runs; creates nothing.

    Daemons that do not answer are not reported: the query waits for them.

    Args:
        cluster: the addresses.
        topics: the topics that a source will read; None for a sink.

    Raises:
        WrongPeerError: there is another daemon, or another of its ports, at an address.
        NoRangesError: an nsqd does not support range reading.
        RemoteError: an nsqd refuses a sink's secret.
        TlsError, AuthRequiredError: an nsqd does not offer TLS, is not trusted, or requires AUTH.
    """
    with contextlib.suppress(OSError):
        NsqdDiscovery(cluster, topics).found()
    give_up_at = time.monotonic() + CHECK_SECONDS
    for address in cluster.nsqd_tcp_addresses:
        if time.monotonic() >= give_up_at:
            return
        with contextlib.suppress(OSError):
            if topics is None:
                BlockingConnection(address, user_agent=CHECKER, layers=cluster.layers).close()
                continue
            reader = RangeReader(address, user_agent=CHECKER, layers=cluster.layers)
            with contextlib.closing(reader), contextlib.suppress(RemoteError):
                # A refusal means that the topic does not exist yet, or that permission is missing:
                # the query reports it.
                reader.ends(topics.names[0])


def _connection(
    scheme: str, host: str, port: int | None, layers: LayerOptions
) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
    context = layers.tls_context()
    return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=context)
