"""Sends each action to an HTTP endpoint of the operator (`--notification-http-endpoint`).

1. A notification is sent once, after the action, in NSQ's form and in the order of the actions. The
   action's answer does not wait for it.
2. At most `WAITING_MAX` notifications are queued; further ones are dropped and logged. If the
   endpoint cannot be reached or answers with an error, this is logged and has no other effect.
3. The user is the one that access control identified; if it has no name, the user of Basic auth.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from typing import Any, Final

import aiohttp
from aiohttp import web

from sparq.client.lookup import http_reason
from sparq.daemon.access.rules import Caller
from sparq.daemon.options import public

WAITING_MAX: Final = 1000
ANSWER_BYTES_MAX: Final = 65_536
FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError, ValueError)

logger = logging.getLogger(__name__)


class Notifier:
    """Sends notifications.

    Args:
        endpoint: a URL; "": there is none, and nothing may be queued.
        timeout: for each notification.
        tls: for an HTTPS endpoint.
    """

    def __init__(
        self, endpoint: str, timeout: aiohttp.ClientTimeout, tls: ssl.SSLContext | None = None
    ) -> None:
        self.endpoint = endpoint
        self._timeout = timeout
        self._tls = tls
        self._waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue(WAITING_MAX)
        self._task: asyncio.Task[None] | None = None

    def queue(
        self,
        request: web.BaseRequest,
        who: Caller,
        action: str,
        *,
        topic: str,
        channel: str = "",
        node: str = "",
    ) -> None:
        """Queue the notification of an action that a caller has performed with a request."""
        # A name that access control has only derived, such as `local`, is nobody's.
        name = who.name if who.via in ("header", "token") else ""
        optional = {
            "channel": channel,
            "node": node,
            "user": name or basic_user(request.headers.get("Authorization", "")),
        }
        notification = {
            "action": action,
            "topic": topic,
            **{name: value for name, value in optional.items() if value},
            "timestamp": int(time.time()),
            "remote_ip": who.remote,
            "user_agent": who.user_agent,
            "url": url_of(request),
            "via": socket.gethostname(),
        }
        try:
            self._waiting.put_nowait(notification)
        except asyncio.QueueFull:
            logger.error("NOTIFY: dropped %s: %d notifications are queued", action, WAITING_MAX)
            return
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._send_all())

    async def close(self) -> None:
        """Stop sending; all queued notifications together get the timeout of one."""
        if self._task is None:
            return
        # An endpoint that hangs must not keep the daemon from ending: what is left is dropped.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout.total):
                await self._waiting.join()
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _send_all(self) -> None:
        connector = aiohttp.TCPConnector(limit=1, ssl=self._tls or True)
        async with aiohttp.ClientSession(
            connector=connector, timeout=self._timeout, cookie_jar=aiohttp.DummyCookieJar()
        ) as session:
            while True:
                notification = await self._waiting.get()
                try:
                    async with session.post(
                        self.endpoint, json=notification, allow_redirects=False
                    ) as response:
                        await response.content.read(ANSWER_BYTES_MAX)
                    why = f"status {response.status}" if response.status >= 300 else ""
                except FAILURES as error:
                    why = http_reason(error)
                finally:
                    self._waiting.task_done()
                if why:
                    action, shown = notification["action"], public(self.endpoint)
                    logger.error("NOTIFY: failed to send %s to %s: %s", action, shown, why)


def basic_user(authorization: str) -> str:
    """The user name of Basic auth; "" if there is none."""
    try:
        return str(aiohttp.BasicAuth.decode(authorization, "utf-8").login)
    except ValueError:
        return ""


def url_of(request: web.BaseRequest) -> str:
    """The URL that a request was sent to, as far as its headers show it."""
    transport = request.transport
    is_tls = transport is not None and transport.get_extra_info("sslcontext") is not None
    scheme = "https" if is_tls or request.headers.get("X-Scheme") == "https" else "http"
    return f"{scheme}://{request.headers.get('Host', '')}{request.raw_path}"
