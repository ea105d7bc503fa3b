"""The program `nsqd`: its data path, its listeners, its life, its command line.

It starts in NSQ's order (lock, node id, listeners, data) and stops as `Nsqd.stop` has it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from sparq.broker.broker import Broker
from sparq.broker.catalog import CatalogError
from sparq.broker.options import BrokerOptions
from sparq.broker.topics import Opening
from sparq.daemon import address, files
from sparq.daemon.http import Site
from sparq.log.disk import DiskError, File, RealDisk
from sparq.nsqd import checks, tls
from sparq.nsqd.commit import instant
from sparq.nsqd.gate import gate_of
from sparq.nsqd.go_import import ImportStopped
from sparq.nsqd.go_switch import GoImportError, Switch
from sparq.nsqd.http import Endpoints
from sparq.nsqd.http_publish import Door
from sparq.nsqd.lookup_peers import LookupPeers
from sparq.nsqd.options import TOPOLOGY, Options, default_node_id
from sparq.nsqd.reload import Reloader
from sparq.nsqd.server import Nsqd
from sparq.nsqd.statsd import Statsd
from sparq.nsqd.timings import MeasuredDisk
from sparq.program import flags, lifecycle
from sparq.program import logging as log_lines
from sparq.program.version import sparq_version, version_line
from sparq.protocol.durations import SECOND
from sparq.protocol.identify import Limits

PROGRAM = "nsqd"
MILLISECOND_NS = 1_000_000
READING = ("open", "read", "list", "stat")
"""The operations of a disk that only look; see log/disk.py."""
OPENERS = 16
"""Threads that read the topics' files at the start."""

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


def lock(disk: RealDisk, data_path: Path) -> File:
    """Hold the data path against a second nsqd, also against Go's: both lock the folder itself.

    Raises:
        StartError: it cannot be held.
    """
    if not data_path.is_dir():
        reason = "not a directory" if data_path.exists() else "no such file or directory"
        raise lifecycle.StartError(f"failed to lock data-path: open {data_path}: {reason}")
    try:
        return disk.lock(str(data_path))
    except DiskError as error:
        if error.number in (errno.EACCES, errno.EPERM):
            raise lifecycle.StartError(
                f"failed to lock data-path: open {data_path}: {error.reason}"
                f" (nsqd runs as user {os.geteuid()}, which must be able to read and write it)"
            ) from error
        raise lifecycle.StartError(
            f"failed to lock data-path: cannot flock directory {data_path} - {error.reason}"
            " (possibly in use by another instance of nsqd)"
        ) from error


def run_all(openings: Sequence[Opening]) -> None:
    """Read the files of many topics, several at a time: most of it is waiting for syncs."""
    with ThreadPoolExecutor(OPENERS, "nsqd-open") as pool:
        for _ in pool.map(Opening.run, openings):
            pass


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
        for line in broker.load(now, run_all):
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


class Listeners(NamedTuple):
    """The listening sockets; None where the flags say that there is none."""

    tcp: address.Listener
    http: address.Listener | None
    https: address.Listener | None


def listen(options: Options, *, has_tls: bool = False) -> Listeners:
    """Open all listeners.

    Raises:
        StartError: an address cannot be had.
    """
    try:
        return Listeners(
            address.listen(options.tcp_address),
            address.listen(options.http_address) if options.http_address else None,
            address.listen(options.https_address) if has_tls and options.https_address else None,
        )
    except address.ListenError as error:
        raise lifecycle.StartError(str(error)) from error


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


async def serve(
    options: Options, data_path: Path, read_again: Callable[[], Options], stop: asyncio.Event
) -> None:
    """Run one nsqd until the event is set.

    Args:
        options: what it is told.
        data_path: where its data is.
        read_again: makes the options anew at SIGHUP.
        stop: the event.
    Raises:
        StartError: it cannot start.
    """
    share = files.shares(files.raise_limit())
    disk = MeasuredDisk(share.logs)
    held = lock(disk, data_path)
    certificates = checks.check(options, tls.build)
    listeners = listen(options, has_tls=certificates is not None)
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
    site = await start_http(nsqd, listeners)
    await peers.start()
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    version = version_line(PROGRAM)
    options = flags.parse(Options, PROGRAM, version, words)
    log_lines.set_up(options.log_prefix, log_lines.chosen_level(options.log_level, options.verbose))
    logger.info("%s", version)
    os.umask(0o077)
    data_path = Path(options.data_path or ".").resolve()
    read_again = partial(flags.parse_again, Options, PROGRAM, words)
    return lifecycle.run(PROGRAM, lambda stop: serve(options, data_path, read_again, stop))
