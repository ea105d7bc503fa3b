"""nsqd's HTTP and HTTPS: everything that needs aiohttp, loaded once TCP clients are served.

Loading takes a quarter of a second, which a start does not wait for: `serving.serve` has a thread
do it. Clients that connect before wait in the kernel's queue.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from aiohttp import web

from sparq.daemon.http import Gate, Site
from sparq.nsqd.http import Endpoints
from sparq.nsqd.http_publish import Door
from sparq.nsqd.options import Options
from sparq.protocol.durations import SECOND

if TYPE_CHECKING:
    from sparq.nsqd.main import Listeners
    from sparq.nsqd.reload import Reloader
    from sparq.nsqd.server import Nsqd


HEADERS = {
    "Server": "sparq",
    "X-NSQ-Content-Type": "nsq; version=1.0",
    "Content-Type": "application/json; charset=utf-8",
}


def gate_of(options: Options, https_port: int) -> Gate | None:
    """What answers plain HTTP where TLS is required: 403, and where HTTPS is (http.md 1).

    It refuses every request, /ping included, before its path is looked at; requests over HTTPS
    pass. None where plain HTTP is let in.

    Args:
        options: with `tls_required`, of which only "true" concerns HTTP.
        https_port: the real port of HTTPS; -1 without one.
    """
    if options.tls.required != "true":
        return None
    # As NSQ spells it: with spaces, and 0 for no port.
    text = f'{{"message": "TLS_REQUIRED", "https_port": {max(0, https_port)}}}'

    def refuse_plain(request: web.BaseRequest) -> web.Response | None:
        return None if request.secure else web.Response(status=403, text=text, headers=HEADERS)

    return refuse_plain


logger = logging.getLogger(__name__)


async def start_http(nsqd: Nsqd, reloader: Reloader, listeners: Listeners) -> Site:
    """Answer HTTP and HTTPS, where they are."""
    _, http, https = listeners
    gate = gate_of(nsqd.options, nsqd.https_port)
    options = nsqd.options
    site = Site(
        Endpoints(nsqd, reloader).routes(),
        gate,
        nsqd.http_connections_max,
        nsqd.access,
        options.http.request_timeout_ns / SECOND,
    )
    if http is not None:
        # Whoever must be let in by a gate or a token is looked at by aiohttp's handlers.
        asks = nsqd.access is not None and nsqd.access.asks
        is_open = gate is None and not asks and not options.http.request_timeout_ns
        await site.start(http, short_way=Door(nsqd, site.protocol) if is_open else None)
        logger.info("HTTP: listening on %s", http.text)
    if https is not None and (certificates := nsqd.clients.tls) is not None:
        await site.start(https, certificates.listening_context)
        logger.info("HTTPS: listening on %s", https.text)
    return site
