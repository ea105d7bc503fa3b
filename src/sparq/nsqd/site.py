"""nsqd's HTTP and HTTPS: everything that needs aiohttp, loaded once TCP clients are served.

Loading takes a quarter of a second, which a start does not wait for: `serving.serve` has a thread
do it. Clients that connect before wait in the kernel's queue.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sparq.daemon.http import Site
from sparq.nsqd.gate import gate_of
from sparq.nsqd.http import Endpoints
from sparq.nsqd.http_publish import Door
from sparq.protocol.durations import SECOND

if TYPE_CHECKING:
    from sparq.nsqd.main import Listeners
    from sparq.nsqd.server import Nsqd

logger = logging.getLogger(__name__)


async def start_http(nsqd: Nsqd, listeners: Listeners) -> Site:
    """Answer HTTP and HTTPS, where they are."""
    _, http, https = listeners
    gate = gate_of(nsqd.options, nsqd.https_port)
    options = nsqd.options
    site = Site(
        Endpoints(nsqd).routes(),
        gate,
        nsqd.http_connections_max,
        nsqd.http_token,
        options.http_request_timeout_ns / SECOND,
    )
    if http is not None:
        # Whoever must be let in by a gate or a token is looked at by aiohttp's handlers.
        is_open = gate is None and not nsqd.http_token and not options.http_request_timeout_ns
        await site.start(http, short_way=Door(nsqd, site.protocol) if is_open else None)
        logger.info("HTTP: listening on %s", http.text)
    if https is not None and nsqd.tls is not None:
        await site.start(https, nsqd.tls.listening_context)
        logger.info("HTTPS: listening on %s", https.text)
    return site
