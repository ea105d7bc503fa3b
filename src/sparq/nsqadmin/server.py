"""The nsqadmin daemon: creates its parts, serves HTTP, and starts, reloads and stops.

1. Each route states the role that it needs, which is checked before its handler runs.
2. It stores nothing that it needs: after a restart it uses what the daemons report, and its audit
   log.
3. SIGHUP reloads the nsqlookupds, the rights and tokens, and the log level.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import aiohttp
from prometheus_client import generate_latest

from sparq.cluster.fleet import Fleet
from sparq.cluster.upstream import AddressRule, Upstream, UpstreamError
from sparq.daemon import files
from sparq.daemon import reload as hangup
from sparq.daemon.access import tokens
from sparq.daemon.access.audit import AuditLog
from sparq.daemon.access.rules import Role
from sparq.daemon.address import Listener, listen
from sparq.daemon.http import Content, Site
from sparq.daemon.prometheus_text import CONTENT_TYPE, Family, labels, process_registry
from sparq.nsqadmin import api
from sparq.nsqadmin.access import SECURE_HEADERS, AdminAccess, AdminRoute
from sparq.nsqadmin.dead_letters import DeadLetterList
from sparq.nsqadmin.notify import Notifier
from sparq.nsqadmin.options import NsqadminOptions, base_of, check
from sparq.nsqadmin.pages import site as pages
from sparq.nsqadmin.services import Services
from sparq.nsqadmin.v2.routes import ENDPOINTS
from sparq.nsqadmin.watch.watch import ClusterWatch
from sparq.options.units import SECOND
from sparq.program import lifecycle
from sparq.program.lifecycle import StartError
from sparq.protocol import NSQ_VERSION, SPARQ_VERSION
from sparq.protocol.names import is_valid_name

OWN_FILES: Final = 256
"""Open files that are not client connections: nsqadmin's own, and connections to nsqds."""

CONNECTIONS_MIN: Final = 16
REGISTRY: Final = process_registry()

logger = logging.getLogger(__name__)


class Nsqadmin:
    """One nsqadmin, from `start` to `stop`."""

    def __init__(self, options: NsqadminOptions) -> None:
        """Raises StartError if nsqadmin cannot run with an option."""
        seconds = options.http_client_request_timeout_ns / SECOND
        connect = options.http_client_connect_timeout_ns / SECOND
        tls = upstream_tls(options)
        upstream = Upstream(
            connect_seconds=connect,
            request_seconds=seconds,
            tls=tls,
            token=tokens.resolve(options.upstream_token, "--upstream-token"),
        )
        fleet = _fleet(upstream, options)
        audit = AuditLog(options.audit_log, _publisher(fleet, options.audit_topic))
        access = AdminAccess(options, audit)
        timeout = aiohttp.ClientTimeout(total=seconds, connect=connect)
        notifier = Notifier(options.notification_http_endpoint, timeout, tls)
        letters = DeadLetterList(fleet, audit)
        self.services = Services(
            options, fleet, access, audit, notifier, ClusterWatch(fleet), letters
        )
        self._stack = contextlib.AsyncExitStack()
        self._listener: Listener | None = None
        self.site: Site | None = None
        self.http_port = 0

    async def start(self, listener: Listener | None = None) -> None:
        """Serve on this listener; without one, at the address in the options.

        Raises:
            ListenError: the address is not available.
        """
        services, options = self.services, self.services.options
        self._listener = listener or listen(options.http_address)
        self.http_port = self._listener.port
        await self._stack.enter_async_context(services.fleet.upstream)
        await self._stack.enter_async_context(services.watch)
        self.site = Site(
            map(services.access.guarded, routes(services)),
            services.access.check_origin,
            options.http_connections or _connections(),
            request_seconds=options.http_request_timeout_ns / SECOND,
            base=base_of(options),
            headers=SECURE_HEADERS,
            compresses=True,
            words=partial(pages.error, services),
        )
        await self.site.start(self._listener)
        logger.info("HTTP: listening on %s", self._listener.text)

    async def stop(self) -> None:
        """Stop listening, end open requests, send queued notifications and audit entries."""
        if self._listener is not None:
            self._listener.close()
        if self.site is not None:
            await self.site.stop()
        # After the site, whose last requests may queue further notifications and audit entries.
        await self.services.notifier.close()
        await self.services.audit.close()
        await self._stack.aclose()
        logger.info("bye")

    def reload(self, wanted: NsqadminOptions) -> None:
        """Apply the options of the changed configuration file."""
        try:
            check(wanted)
        except StartError as error:
            logger.error("SIGHUP: nothing is changed: %s", error)
            return
        services = self.services
        rights = ("rights",) if services.access.reload(wanted) else ()
        services.options = hangup.apply_live_options(
            services.options, wanted, ("log", "lookupds", *rights)
        )
        services.fleet.set_lookupds(services.options.lookupd_http_addresses)


def routes(services: Services) -> list[AdminRoute]:
    """All routes."""
    access = services.access
    return [
        AdminRoute(Role.NONE, "GET", "/ping", lambda _call: "OK", plain=True, log=False),
        AdminRoute(
            Role.READ, "GET", "/metrics", lambda _: exposition(services), plain=True, log=False
        ),
        AdminRoute(Role.NONE, "POST", "/signin", access.sign_in),
        AdminRoute(Role.NONE, "POST", "/signout", access.sign_out),
        *api.routes(services),
        *(one.route(services) for one in ENDPOINTS),
        *pages.routes(services),
    ]


def exposition(services: Services) -> Content:
    """`/metrics`: the load that nsqadmin puts on its daemons (docs/monitoring.md)."""
    build = Family("nsqadmin_build_info", "gauge", "Build information, always 1")
    build.add(1, labels(version=NSQ_VERSION, sparq_version=SPARQ_VERSION))
    text, upstream = build.text(), services.fleet.upstream
    for name, help_text, count in (
        ("upstream_requests", "Requests to nsqds and nsqlookupds", upstream.calls),
        ("upstream_failures", "Requests to nsqds and nsqlookupds that failed", upstream.failures),
        ("watch_rounds", "Rounds of fetching all figures", services.watch.rounds),
    ):
        family = Family(f"nsqadmin_{name}_total", "counter", help_text)
        family.add(count)
        text += family.text()
    return Content(text.encode() + generate_latest(REGISTRY), CONTENT_TYPE)


def _fleet(upstream: Upstream, options: NsqadminOptions) -> Fleet:
    lookupds, allowed = options.lookupd_http_addresses, options.allowed_nodes
    try:
        reach = AddressRule(lookupds, allowed) if allowed else None
    except ValueError as error:
        raise StartError(f"--allow-node-address: {error}") from None
    try:
        return Fleet(upstream, nsqds=options.nsqd_http_addresses, lookupds=lookupds, reach=reach)
    except ValueError as error:
        raise StartError(str(error)) from None


def upstream_tls(options: NsqadminOptions) -> ssl.SSLContext:
    """TLS context for requests to nsqds: authorities to verify them, and a client certificate.

    Raises:
        StartError: a file cannot be used; the text names it.
    """
    root = options.http_client_tls_root_ca_file
    try:
        found = ssl.create_default_context(cafile=root or None)
    except OSError as error:
        why = error.strerror or error
        raise StartError(f"failed to read --http-client-tls-root-ca-file {root} - {why}") from None
    if options.http_client_tls_cert:
        cert, key = options.http_client_tls_cert, options.http_client_tls_key
        try:
            found.load_cert_chain(cert, key)
        except OSError as error:
            why = error.strerror or error
            raise StartError(f"failed to load {cert} and {key} - {why}") from None
    if options.http_client_tls_insecure_skip_verify:
        found.check_hostname = False
        found.verify_mode = ssl.CERT_NONE
    return found


def _publisher(fleet: Fleet, topic: str) -> Callable[[bytes], Awaitable[None]] | None:
    """Return a function that publishes to a topic, at the first node that accepts it."""
    if not topic:
        return None
    if not is_valid_name(topic):
        raise StartError(f"--audit-topic={topic} is not a valid topic name")

    async def publish(entry: bytes) -> None:
        why = "no nsqd is known"
        for node in (await fleet.nodes()).value:
            try:
                await fleet.post(node, "/pub", entry, topic=topic)
                return
            except UpstreamError as error:
                why = str(error)
        raise OSError(why)

    return publish


def _connections() -> int:
    limit = files.raise_limit()
    return max(CONNECTIONS_MIN, limit - OWN_FILES) if limit > 0 else files.UNLIMITED


async def serve(
    options: NsqadminOptions,
    listener: Listener,
    read_again: Callable[[], NsqadminOptions],
    stop: asyncio.Event,
) -> None:
    """Run one nsqadmin until the event is set; SIGHUP reloads its options.

    Raises:
        StartError: nsqadmin cannot run with an option.
    """
    daemon = Nsqadmin(options)
    await daemon.start(listener)

    def reload() -> None:
        wanted = hangup.read_again(read_again)
        if wanted is not None:
            daemon.reload(wanted)

    lifecycle.on_hangup(reload)
    await lifecycle.until_stopped(stop)
    await daemon.stop()
