"""nsqd's HTTP and HTTPS servers: the code that needs aiohttp, loaded after TCP clients are served.

Loading takes a quarter of a second; `serving.serve` does it in a thread, so that the start does not
wait for it. Until then the HTTP ports refuse clients.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from aiohttp import web

from sparq.daemon.http import Gate, Site
from sparq.nsqd.http import NsqdEndpoints
from sparq.nsqd.http_publish import FastPublishPath
from sparq.nsqd.options import HTTPS_ADDRESS, NsqdOptions
from sparq.options.units import SECOND

if TYPE_CHECKING:
    from sparq.daemon.address import Listener
    from sparq.nsqd.main import Listeners
    from sparq.nsqd.reload import Reloader
    from sparq.nsqd.server import Nsqd


HEADERS = {
    "Server": "sparq",
    "X-Nsq-Content-Type": "nsq; version=1.0",
    "Content-Type": "application/json; charset=utf-8",
}


def tls_requirement(options: NsqdOptions, https_port: int) -> Gate | None:
    """Return the check that answers plain HTTP with 403 if TLS is required (docs/http.md).

    The answer names the HTTPS port. Every plain request is refused, including /ping, before the
    path is examined; requests over HTTPS pass. None if plain HTTP is allowed.

    Args:
        options: of `tls_required`, only the value "true" applies to HTTP.
        https_port: the port bound for HTTPS; -1 if there is none.
    """
    if options.tls.required != "true":
        return None
    # As NSQ spells it: with spaces, and 0 for no port.
    text = f'{{"message": "TLS_REQUIRED", "https_port": {max(0, https_port)}}}'

    def refuse_plain(request: web.BaseRequest) -> web.Response | None:
        return None if request.secure else web.Response(status=403, text=text, headers=HEADERS)

    return refuse_plain


logger = logging.getLogger(__name__)


def _is_everywhere(listener: Listener) -> bool:
    return listener.text.startswith(("0.0.0.0:", "[::]:"))


async def start_http(nsqd: Nsqd, reloader: Reloader, listeners: Listeners) -> Site:
    """Start the HTTP and HTTPS servers on their listeners, if there are any."""
    _, http, https = listeners
    gate = tls_requirement(nsqd.options, nsqd.https_port)
    options = nsqd.options
    site = Site(
        NsqdEndpoints(nsqd, reloader).routes(),
        gate,
        nsqd.http_connections_max,
        nsqd.access,
        options.http.request_timeout_ns / SECOND,
    )
    if http is not None:
        # Requests that need a check (TLS gate, token, timeout) go through aiohttp's handlers.
        asks = nsqd.access is not None and nsqd.access.needs_token
        is_open = gate is None and not asks and not options.http.request_timeout_ns
        await site.start(http, fast_path=FastPublishPath(nsqd, site.protocol) if is_open else None)
        logger.info("HTTP: listening on %s", http.text)
    if https is not None and (certificates := nsqd.tls) is not None:
        await site.start(https, certificates.listening_context)
        logger.info("HTTPS: listening on %s", https.text)
        if options.listen.https_address == HTTPS_ADDRESS and not _is_everywhere(https):
            logger.warning(
                "HTTPS: the port is open on the host of --http-address alone, where Go's nsqd"
                " listens on every address: --https-address=0.0.0.0:%d does that",
                https.port,
            )
    return site
