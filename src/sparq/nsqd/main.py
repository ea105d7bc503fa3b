"""The program `nsqd`: its data path, its listeners, its life, its command line.

It starts in NSQ's order (lock, node id, listeners, data) and stops as `Nsqd.stop` has it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from sparq.broker.broker import Broker
from sparq.broker.catalog import CatalogError
from sparq.broker.options import BrokerOptions
from sparq.daemon import address, flags, lifecycle
from sparq.daemon import logging as log_lines
from sparq.daemon.http import Site
from sparq.log.disk import DiskError, File, RealDisk
from sparq.nsqd.commit import instant
from sparq.nsqd.http import Endpoints
from sparq.nsqd.lookup_peers import LookupPeers
from sparq.nsqd.options import Options, default_node_id, node_id_error
from sparq.nsqd.reload import Reloader
from sparq.nsqd.server import Nsqd
from sparq.protocol.identify import Limits

PROGRAM = "nsqd"
MILLISECOND_NS = 1_000_000
LOCK_NAME = "nsqd.lock"

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
        has_lookupd=bool(options.lookupd_tcp_addresses),
    )


def lock(disk: RealDisk, data_path: Path) -> File:
    """Hold the data path against a second nsqd.

    Raises:
        StartError: it cannot be held.
    """
    try:
        return disk.lock(str(data_path / LOCK_NAME))
    except DiskError as error:
        raise lifecycle.StartError(
            f"failed to lock data-path: cannot flock directory {data_path} - {error.reason}"
            " (possibly in use by another instance of nsqd)"
        ) from error


def open_broker(options: Options, disk: RealDisk, data_path: Path) -> Broker:
    """Recover what the data path holds, and say what an operator should know of it.

    Raises:
        StartError: it cannot be read.
    """
    now = instant()
    try:
        broker = Broker(
            broker_options(options),
            disk,
            str(data_path),
            now,
            server_facts={
                "topology_region": options.topology_region,
                "topology_zone": options.topology_zone,
            },
        )
        for line in broker.load(now):
            logger.info("%s", line)
    except (DiskError, CatalogError) as error:
        raise lifecycle.StartError(f"failed to load metadata - {error}") from error
    return broker


def listen(options: Options) -> tuple[address.Listener, address.Listener | None]:
    """The TCP and the HTTP listener; without an HTTP address there is none.

    Raises:
        StartError: an address cannot be had.
    """
    try:
        tcp = address.listen(options.tcp_address)
        return tcp, address.listen(options.http_address) if options.http_address else None
    except address.ListenError as error:
        raise lifecycle.StartError(str(error)) from error


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
    disk = RealDisk()
    held = lock(disk, data_path)
    if reason := node_id_error(options):
        raise lifecycle.StartError(reason)
    tcp, http = listen(options)
    nsqd = Nsqd(options, open_broker(options, disk, data_path), asyncio.get_running_loop())
    nsqd.tcp_port, nsqd.http_port = tcp.port, http.port if http else -1
    site = Site(Endpoints(nsqd).routes())
    peers = LookupPeers(nsqd)
    nsqd.reloader = Reloader(nsqd, peers, read_again)
    await nsqd.start(tcp)
    logger.info("TCP: listening on %s", tcp.text)
    if http is not None:
        await site.start(http)
        logger.info("HTTP: listening on %s", http.text)
    await peers.start()
    lifecycle.on_hangup(nsqd.reloader.reload)
    await stop.wait()
    logger.info("NSQ: stopping")
    if http is not None:
        http.close()
    await nsqd.stop()
    await peers.stop()
    await site.stop()
    held.close()
    logger.info("NSQ: bye")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    version = lifecycle.version_line(PROGRAM)
    options = flags.parse(Options, PROGRAM, version, words)
    log_lines.set_up(options.log_prefix, log_lines.chosen_level(options.log_level, options.verbose))
    logger.info("%s", version)
    os.umask(0o077)
    data_path = Path(options.data_path or ".").resolve()
    read_again = partial(flags.parse_again, Options, PROGRAM, words)
    return lifecycle.run(PROGRAM, lambda stop: serve(options, data_path, read_again, stop))
