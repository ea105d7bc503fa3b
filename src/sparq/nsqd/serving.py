"""One nsqd from its data to its end, once it listens: recovery, TCP, HTTP, the orderly stop.

It starts in NSQ's order (lock, node id, listeners, data) and stops as `Nsqd.stop` has it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from sparq.broker.broker import Broker
from sparq.broker.catalog import CatalogError
from sparq.broker.options import BrokerOptions
from sparq.log.disk import DiskError, RealDisk
from sparq.nsqd.commit import instant
from sparq.nsqd.go_import import ImportStopped
from sparq.nsqd.go_switch import GoImportError, Switch
from sparq.nsqd.lookup_peers import LookupPeers
from sparq.nsqd.opening import run_all
from sparq.nsqd.options import TOPOLOGY, Options, default_node_id
from sparq.nsqd.reload import Reloader
from sparq.nsqd.server import Nsqd
from sparq.nsqd.statsd import Statsd
from sparq.nsqd.timings import MeasuredDisk
from sparq.program import lifecycle
from sparq.program.version import sparq_version
from sparq.protocol.identify import Limits
from sparq.protocol.instant import Instant

if TYPE_CHECKING:
    from sparq.daemon.http import Site
    from sparq.nsqd.main import Beginning

MILLISECOND_NS = 1_000_000
READING = ("open", "read", "list", "stat")
"""The operations of a disk that only look; see log/disk.py."""

logger = logging.getLogger(__name__)


def limits_of(options: Options) -> Limits:
    """What clients may ask for, from the flags."""
    return Limits(
        max_msg_size=options.max_msg_size,
        max_body_size=options.max_body_size,
        max_rdy_count=options.max_rdy_count,
        max_req_timeout_ms=options.max_req_timeout_ns // MILLISECOND_NS,
        msg_timeout_ms=options.msg_timeout_ns // MILLISECOND_NS,
        max_msg_timeout_ms=options.max_msg_timeout_ns // MILLISECOND_NS,
        max_heartbeat_interval_ms=options.max_heartbeat_interval_ns // MILLISECOND_NS,
        max_output_buffer_size=options.max_output_buffer_size,
        output_buffer_timeout_ms=options.output_buffer_timeout_ns // MILLISECOND_NS,
        min_output_buffer_timeout_ms=options.min_output_buffer_timeout_ns // MILLISECOND_NS,
        max_output_buffer_timeout_ms=options.max_output_buffer_timeout_ns // MILLISECOND_NS,
        max_deflate_level=options.max_deflate_level,
        deflate=options.deflate,
        snappy=options.snappy,
        max_line_size=options.max_line_size,
        require_heartbeats=options.require_heartbeats,
        strict_identify=options.strict_identify,
    )


def broker_options(options: Options) -> BrokerOptions:
    """The broker's options, from the flags."""
    node_id = default_node_id(options) if options.node_id is None else options.node_id
    return BrokerOptions(
        limits=limits_of(options),
        node_id=node_id,
        max_bytes_per_file=options.max_bytes_per_file,
        sync_every=options.sync_every,
        sync_timeout_ns=options.sync_timeout_ns,
        mem_queue_size=options.mem_queue_size,
        requeue_on_disconnect=options.requeue_on_disconnect,
        max_channel_consumers=options.max_channel_consumers,
        max_topics=options.max_topics,
        max_channels=options.max_channels,
        max_topic_bytes=options.max_topic_bytes,
        auth_required=bool(options.auth_http_addresses),
        topology_aware=TOPOLOGY in options.enable_experiment,
        topology_region=options.topology_region,
        topology_zone=options.topology_zone,
        has_lookupd=bool(options.lookupd_tcp_addresses),
        e2e_percentiles=options.e2e_processing_latency_percentiles,
        e2e_window_ns=options.e2e_processing_latency_window_time_ns,
        retention_bytes=options.retention_bytes,
        retention_time_ns=options.retention_time_ns,
        max_channel_lag_bytes=options.max_channel_lag_bytes,
        max_channel_lag_time_ns=options.max_channel_lag_time_ns,
    )


def open_broker(options: Options, disk: RealDisk, data_path: Path) -> Broker:
    """Recover what the data path holds, and say what an operator should know of it.

    Raises:
        LoadError: it cannot be read, or written.
    """
    now = instant()
    try:
        broker = Broker(
            broker_options(options),
            disk,
            str(data_path),
            now,
            server_facts={
                "sparq_version": sparq_version(),
                "tls": bool(options.tls_cert or options.tls_key),
                "topology_region": options.topology_region,
                "topology_zone": options.topology_zone,
            },
        )
        for line in _load(broker, now):
            logger.info("%s", line)
    except CatalogError as error:
        raise lifecycle.LoadError(f"failed to load metadata - {error}") from error
    except DiskError as error:
        what = "load" if error.operation in READING else "persist"
        raise lifecycle.LoadError(f"failed to {what} metadata - {error}") from error
    if options.node_id not in (None, broker.node_id):
        logger.warning(
            "the data path has node id %d: --node-id=%d has no effect",
            broker.node_id,
            options.node_id,
        )
    return broker


def _load(broker: Broker, now: Instant) -> list[str]:
    """Recover the broker's topics; what an operator should know.

    What is loaded stays: the collector would go through millions of objects again and again while
    they are made, and at each full collection after that.
    """
    gc.disable()
    try:
        return list(broker.load(now, run_all))
    finally:
        gc.freeze()
        gc.enable()


async def take_over(options: Options, disk: RealDisk, data_path: Path, stop: asyncio.Event) -> bool:
    """Import what Go's nsqd has left in the data path, if it has; False: stopped meanwhile.

    Raises:
        StartError: it cannot be imported; it is as it was.
    """
    switch = Switch(
        disk,
        str(data_path),
        node_id=broker_options(options).node_id,
        max_bytes_per_file=options.max_bytes_per_file,
        clock=instant,
    )
    try:
        await asyncio.to_thread(switch.run, stop.is_set)
    except ImportStopped:
        logger.info("NSQ: stopped while importing; the next start begins the import anew")
        return False
    except (GoImportError, CatalogError, DiskError) as error:
        raise lifecycle.LoadError(f"failed to load metadata - {error}") from error
    return True


async def serve(
    options: Options, beginning: Beginning, read_again: Callable[[], Options], stop: asyncio.Event
) -> None:
    """Run one nsqd until the event is set.

    Args:
        options: what it is told.
        beginning: the data path that is held, and the sockets that listen.
        read_again: makes the options anew at SIGHUP.
        stop: the event.
    Raises:
        StartError: it cannot start.
    """
    data_path, share, held, certificates, listeners = beginning
    disk = MeasuredDisk(share.logs)
    if not await take_over(options, disk, data_path, stop):
        return
    broker = await asyncio.to_thread(open_broker, options, disk, data_path)
    nsqd = Nsqd(options, broker, asyncio.get_running_loop())
    nsqd.tls = certificates
    nsqd.connections_max = share.connections
    if options.max_connections > 0:
        nsqd.connections_max = min(share.connections, options.max_connections)
    nsqd.http_connections_max = share.http
    nsqd.tcp_port, nsqd.http_port, nsqd.https_port = (
        -1 if listener is None else listener.port for listener in listeners
    )
    peers = LookupPeers(nsqd)
    nsqd.reloader = Reloader(nsqd, peers, read_again)
    if certificates is not None:
        nsqd.reloader.load_certificates = certificates.load
    await nsqd.start(listeners.tcp)
    logger.info("TCP: listening on %s", listeners.tcp.text)
    await peers.start()
    web = await asyncio.to_thread(import_module, "sparq.nsqd.site")
    site: Site = await web.start_http(nsqd, listeners)
    # The modules stay as well, and are half of what a full collection would go through.
    gc.freeze()
    reports = Statsd(nsqd)
    reports.start()
    lifecycle.on_hangup(nsqd.reloader.reload)
    await stop.wait()
    logger.info("NSQ: stopping")
    for listener in listeners[1:]:
        if listener is not None:
            listener.close()
    await reports.stop()
    await nsqd.stop()
    await peers.stop()
    await site.stop()
    held.close()
    logger.info("NSQ: bye")
