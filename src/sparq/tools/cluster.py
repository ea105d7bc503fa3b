"""The HTTP client of the tools, and polling of nsqds for `sparq top` and `nsq_stat`.

1. The list of nsqds is looked up anew each time; while no nsqlookupd answers, the previous list is
   used. nsqds given by address are identified by that address.
2. An nsqd that fails only loses its own figures; `errors` says why.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from sparq.client.arguments import split_texts
from sparq.cluster.address_rule import AddressRule
from sparq.cluster.figures import NsqdFigures
from sparq.cluster.fleet import Fleet
from sparq.cluster.nodes import Node, given_node
from sparq.cluster.upstream import Upstream
from sparq.protocol.durations import SECOND
from sparq.tools.command_line import ClusterHttpOptions, HttpAccessOptions, UsageError, read_secret
from sparq.tools.common import check_positive

UNKNOWN_TOPIC = "TOPIC_NOT_FOUND"
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]{1,512}=*")  # what a header may carry, by RFC 6750


class Answer(NamedTuple):
    """An nsqd's figures, and their time in seconds on the monotonic clock."""

    stats: NsqdFigures
    at_seconds: float


class ClusterPoller:
    """Polls the nsqds of a fleet.

    Args:
        fleet: the cluster.
        topic: only figures of this topic; "": all topics.
        channel: only figures of this channel; "": all channels.

    Attributes:
        errors: why a daemon did not answer the last request, by its address.
    """

    def __init__(self, fleet: Fleet, topic: str = "", channel: str = "") -> None:
        self.errors: dict[str, str] = {}
        self._fleet = fleet
        self._topic = topic
        self._channel = channel
        self._nodes = [given_node(at) for at in fleet.nsqds]

    async def stats(self) -> dict[str, Answer]:
        """Return each nsqd's figures by address; nsqds that did not answer are in `errors`."""
        self.errors = {}
        if self._fleet.lookupds:
            await self._look_up()
        answers, errors = await self._fleet.each(self._nodes, self._ask)
        self.errors |= errors
        return answers

    async def clients(self, topic: str, channel: str) -> dict[str, NsqdFigures]:
        """Return one channel's figures with its clients, by nsqd.

        It asks the nsqds of the last `stats` call; those that do not answer are left out. `errors`
        stays unchanged.
        """
        found = await self._fleet.stats(topic, channel, clients=True, nodes=self._nodes)
        return found.value

    async def _look_up(self) -> None:
        fleet, topic = self._fleet, self._topic
        found = await (fleet.producers(topic) if topic else fleet.nodes())
        # An nsqlookupd that does not know the topic has answered. If none answers, the nsqds of the
        # last answer are asked again.
        unknown = {at for at, why in found.errors.items() if UNKNOWN_TOPIC in why}
        self.errors = {at: why for at, why in found.errors.items() if at not in unknown}
        if unknown or not found.failed:
            self._nodes = found.value

    async def _ask(self, node: Node) -> Answer:
        stats = await self._fleet.node_stats(node.at, self._topic, self._channel)
        # Each answer has its own time: nsqds answer at different times, and rates are computed for
        # each.
        return Answer(stats, time.monotonic())


def upstream_of(options: ClusterHttpOptions) -> Upstream:
    """Return the HTTP client for the daemons, as the flags describe it.

    Raises:
        UsageError: a timeout is not positive, or the token or the CA file is not valid.
    """
    check_positive(options, "http_client_connect_timeout_ns", "http_client_request_timeout_ns")
    return Upstream(
        connect_seconds=options.http_client_connect_timeout_ns / SECOND,
        request_seconds=options.http_client_request_timeout_ns / SECOND,
        token=token_of(options.token),
        tls=tls_of(options),
    )


def tls_of(options: HttpAccessOptions) -> ssl.SSLContext | None:
    """Return the TLS context for HTTPS; None: the system's authorities.

    Raises:
        UsageError: the CA file cannot be used.
    """
    path = options.http_client_tls_root_ca_file
    if not path:
        return None
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"--http-client-tls-root-ca-file: {path}: {reason}") from None


def token_of(text: str) -> str:
    """Return the token: the text itself, or the content of the file `@FILE`; "" means none.

    Raises:
        UsageError: the file cannot be read, or the token is not valid in a header.
    """
    try:
        text = read_secret("--token", text)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if text and not _TOKEN.fullmatch(text):
        raise UsageError("--token must have at most 512 characters: letters, digits and ._~+/-")
    return text


@asynccontextmanager
async def opened(
    options: ClusterHttpOptions, topic: str, channel: str
) -> AsyncIterator[ClusterPoller]:
    """Open the cluster that the flags name; the flags have been checked."""
    nsqds = split_texts(options.nsqd_http_addresses)
    lookupds = split_texts(options.lookupd_http_addresses)
    async with upstream_of(options) as upstream:
        # Tools that show figures ask every listed nsqd, even on loopback, as Go's tools do.
        anywhere = AddressRule(allowed=("0.0.0.0/0", "::/0"), vouches=False)
        fleet = Fleet(upstream, nsqds=nsqds, lookupds=lookupds, reach=anywhere)
        yield ClusterPoller(fleet, topic, channel)
