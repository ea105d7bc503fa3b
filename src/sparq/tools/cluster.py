"""The cluster that a tool's flags name, and polling of its nsqds for `sparq top` and `nsq_stat`.

`sparq admin` uses the same `fleet_of`, with the default rule on the addresses of listed nsqds.
"""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from sparq.cluster.figures import NsqdFigures
from sparq.cluster.fleet import Fleet, Node, given_node
from sparq.cluster.rows import NodeStats
from sparq.cluster.upstream import AddressRule, Upstream
from sparq.options.units import SECOND
from sparq.tools.commands import (
    LOOKUPD_VARIABLE,
    NSQD_VARIABLE,
    ClusterHttpOptions,
    UsageError,
    read_secret,
)
from sparq.tools.common import require_source

UNKNOWN_TOPIC = "TOPIC_NOT_FOUND"
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]{1,512}=*")  # what a header may carry, by RFC 6750

ANYWHERE: Final = AddressRule(allowed=("0.0.0.0/0", "::/0"), vouches=False)
"""Tools that show figures ask every listed nsqd, even on loopback, as Go's tools do."""


class ClusterPoller:
    """Polls the nsqds of a fleet.

    The list of nsqds is looked up anew each time; while no nsqlookupd answers, the previous list is
    used. An nsqd that fails only loses its own figures.

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

    async def stats(self) -> dict[str, NodeStats]:
        """Return each nsqd's figures by address, with their time on the monotonic clock.

        nsqds that did not answer are in `errors`.
        """
        self.errors = {}
        fleet, topic = self._fleet, self._topic
        if fleet.lookupds:
            found = await (fleet.producers(topic) if topic else fleet.nodes())
            # An nsqlookupd that does not know the topic has answered. If none answers, the nsqds of
            # the last answer are asked again.
            self.errors = {at: why for at, why in found.errors.items() if UNKNOWN_TOPIC not in why}
            if len(self.errors) < len(found.errors) or not found.failed:
                self._nodes = found.value

        async def ask(node: Node) -> NodeStats:
            # Each answer has its own time: nsqds answer at different times, and rates are computed
            # for each.
            figures = await fleet.node_stats(node.at, topic, self._channel)
            return NodeStats(figures, time.monotonic())

        answers, errors = await fleet.each(self._nodes, ask)
        self.errors |= errors
        return answers

    async def clients(self, topic: str, channel: str) -> dict[str, NsqdFigures]:
        """Return one channel's figures with its clients, by nsqd.

        It asks the nsqds of the last `stats` call; those that do not answer are left out. `errors`
        stays unchanged.
        """
        found = await self._fleet.stats(topic, channel, clients=True, nodes=self._nodes)
        return found.value


def _sources(options: ClusterHttpOptions) -> tuple[Sequence[str], Sequence[str]]:
    """Return the addresses of nsqds and of nsqlookupds; if no flag gives any, the environment's."""
    nsqds, lookupds = options.nsqd_http_addresses, options.lookupd_http_addresses
    if nsqds or lookupds:
        return nsqds, lookupds
    nsqds, lookupds = (
        tuple(os.environ.get(name, "").replace(",", " ").split())
        for name in (NSQD_VARIABLE, LOOKUPD_VARIABLE)
    )
    return () if lookupds else nsqds, lookupds


@asynccontextmanager
async def fleet_of(
    options: ClusterHttpOptions, reach: AddressRule | None = None, *, is_required: bool = True
) -> AsyncIterator[Fleet]:
    """Open the cluster that the flags or the environment name.

    Raises:
        UsageError: an address, the token or the CA file is not valid; or no address is given, but
            one is required.
    """
    nsqds, lookupds = _sources(options)
    if is_required:
        require_source(nsqds, lookupds, "nsqd-http-address")
    try:
        token = read_secret("--token", options.token)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if token and not _TOKEN.fullmatch(token):
        raise UsageError("--token must have at most 512 characters: letters, digits and ._~+/-")
    tls = None
    if path := options.http_client_tls_root_ca_file:
        try:
            tls = ssl.create_default_context(cafile=path)
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(f"--http-client-tls-root-ca-file: {path}: {reason}") from None
    async with Upstream(
        connect_seconds=options.http_client_connect_timeout_ns / SECOND,
        request_seconds=options.http_client_request_timeout_ns / SECOND,
        token=token,
        tls=tls,
    ) as upstream:
        try:
            fleet = Fleet(upstream, nsqds=nsqds, lookupds=lookupds, reach=reach)
        except ValueError as error:  # in the environment; the flags are checked
            raise UsageError(str(error)) from None
        yield fleet
