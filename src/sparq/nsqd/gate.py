"""What plain HTTP is told where TLS is required: 403, and where HTTPS is (reference: http.md 1).

Every request is refused, /ping included, before its path is looked at; requests over HTTPS pass.
"""

from __future__ import annotations

from aiohttp import web

from sparq.daemon.http import Gate
from sparq.nsqd.options import Options

HEADERS = {
    "Server": "sparq",
    "X-NSQ-Content-Type": "nsq; version=1.0",
    "Content-Type": "application/json; charset=utf-8",
}


def gate_of(options: Options, https_port: int) -> Gate | None:
    """The gate before all routes; None where plain HTTP is let in.

    Args:
        options: with `tls_required`, of which only "true" concerns HTTP.
        https_port: the real port of HTTPS; -1 without one.
    """
    if options.tls_required != "true":
        return None
    # As NSQ spells it: with spaces, and 0 for no port.
    text = f'{{"message": "TLS_REQUIRED", "https_port": {max(0, https_port)}}}'

    def refuse_plain(request: web.BaseRequest) -> web.Response | None:
        return None if request.secure else web.Response(status=403, text=text, headers=HEADERS)

    return refuse_plain
